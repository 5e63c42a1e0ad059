//! The worker's journal: a bounded queue of events, which are sent in numbered batches until they are stored.
//!
//! Owns `client_seq` and the batch size. Never reorders events, and replaces an event that
//! cannot be stored by a note, so that the numbers have no gaps.

use std::{collections::VecDeque, convert::Infallible, ops::ControlFlow, sync::Arc, time::Duration};

use agent::{Journal, JournalError, event_bytes, shortened_event};
use protocol::{
    AgentEvent, EventAck, EventBatch, WorkerEvent,
    limits::{MAX_BATCH_EVENTS, MAX_EVENT_BATCH_BYTES},
};
use tokio::{
    sync::{
        mpsc::{self, error::TrySendError},
        oneshot,
    },
    time::{Instant, timeout_at},
};

use crate::{
    client::{Call, CallError, OrchestratorClient},
    session::stop::StopCause,
};

const QUEUE_EVENTS: usize = 64;
/// Events of a batch: enough to empty the queue several times, and few enough to be stored quickly.
const BATCH_EVENTS: usize = MAX_BATCH_EVENTS / 4;
/// How long a batch waits for more events, so that the events of a quick turn share one request.
const LINGER_MS: u64 = 5;
/// Retry delay of a batch that was refused without Retry-After.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Attempts to send a batch that is refused for reasons other than its events.
const MAX_ATTEMPTS: u32 = 10;

enum Entry {
    Event(AgentEvent),
    Flush(oneshot::Sender<()>),
}

/// The sending half of the journal's queue.
#[derive(Clone)]
pub(crate) struct EventQueue {
    entries: mpsc::Sender<Entry>,
}

impl EventQueue {
    /// Records an event if there is room for it now, else returns it. A closed journal takes no event.
    pub(crate) fn try_record(&self, event: AgentEvent) -> Option<AgentEvent> {
        match self.entries.try_send(Entry::Event(event)) {
            Err(TrySendError::Full(Entry::Event(event))) => Some(event),
            Ok(()) | Err(TrySendError::Full(Entry::Flush(_)) | TrySendError::Closed(_)) => None,
        }
    }
}

impl Journal for EventQueue {
    async fn record(&self, event: AgentEvent) -> Result<(), JournalError> {
        self.entries.send(Entry::Event(event)).await.map_err(|_| JournalError::Closed)
    }

    async fn flush(&self) -> Result<(), JournalError> {
        let (done, stored) = oneshot::channel();
        self.entries.send(Entry::Flush(done)).await.map_err(|_| JournalError::Closed)?;
        stored.await.map_err(|_| JournalError::Closed)
    }
}

/// The receiving half: sends the events to the orchestrator.
pub(crate) struct EventPump {
    client: Arc<OrchestratorClient>,
    entries: mpsc::Receiver<Entry>,
    unsent: VecDeque<(WorkerEvent, usize)>,
    last_seq: u64,
    last_sent_seq: u64,
}

/// Creates both halves.
pub(crate) fn journal(client: Arc<OrchestratorClient>) -> (EventQueue, EventPump) {
    let (sender, entries) = mpsc::channel(QUEUE_EVENTS);
    let unsent = VecDeque::new();
    (EventQueue { entries: sender }, EventPump { client, entries, unsent, last_seq: 0, last_sent_seq: 0 })
}

impl EventPump {
    /// Sends events for as long as the session runs.
    pub(crate) async fn run(&mut self) -> Infallible {
        while let Some(entry) = self.entries.recv().await {
            let mut flushes = Vec::new();
            self.take(entry, &mut flushes);
            let sent_at = Instant::now() + Duration::from_millis(LINGER_MS);
            while flushes.is_empty() && self.unsent.len() < BATCH_EVENTS && self.unsent_bytes() < MAX_EVENT_BATCH_BYTES
            {
                let Ok(Some(entry)) = timeout_at(sent_at, self.entries.recv()).await else { break };
                self.take(entry, &mut flushes);
            }
            if self.send_all().await.is_break() {
                break;
            }
            for flush in flushes {
                // The receiver may have stopped waiting.
                let _ = flush.send(());
            }
        }
        self.entries.close();
        // Dropping the queued flushes tells their receivers that the pump has given up.
        while self.entries.try_recv().is_ok() {}
        std::future::pending().await
    }

    fn take(&mut self, entry: Entry, flushes: &mut Vec<oneshot::Sender<()>>) {
        match entry {
            Entry::Flush(done) => flushes.push(done),
            Entry::Event(event) => {
                self.last_seq += 1;
                let (data, bytes) = shortened_event(event);
                self.unsent.push_back((WorkerEvent { client_seq: self.last_seq, data }, bytes));
            }
        }
    }

    fn unsent_bytes(&self) -> usize {
        self.unsent.iter().map(|(_, bytes)| bytes).sum()
    }

    async fn send_all(&mut self) -> ControlFlow<()> {
        let (mut max_events, mut attempts) = (BATCH_EVENTS, 0);
        while !self.unsent.is_empty() {
            let events = self.batch(max_events);
            let count = events.len();
            self.last_sent_seq = events.last().map_or(0, |event| event.client_seq).max(self.last_sent_seq);
            let call = Call::post(&["events"], &EventBatch { events });
            let answer = match call {
                Ok(call) => self.client.ask::<EventAck>(call).await,
                Err(error) => Err(error),
            };
            match answer {
                Ok(ack) if ack.last_client_seq > self.last_sent_seq => {
                    tracing::error!(
                        last_client_seq = ack.last_client_seq,
                        "the orchestrator stored events that this worker never sent"
                    );
                    self.client.stop().stop(StopCause::Impersonated);
                    return ControlFlow::Break(());
                }
                Ok(ack) => self.acknowledge(ack)?,
                Err(CallError::Stopped) => return ControlFlow::Break(()),
                Err(CallError::Refused(refusal)) if refusal.status == 429 => {
                    tokio::time::sleep(refusal.retry_after.unwrap_or(RETRY_DELAY)).await;
                }
                Err(CallError::Refused(refusal)) if is_caused_by_events(refusal.status) => {
                    if count > 1 {
                        max_events = count / 2;
                    } else {
                        self.replace_first(&refusal.detail)?;
                    }
                }
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "a batch of events was refused");
                    attempts += 1;
                    if attempts >= MAX_ATTEMPTS {
                        return self.give_up();
                    }
                    tokio::time::sleep(RETRY_DELAY).await;
                }
            }
        }
        ControlFlow::Continue(())
    }

    fn batch(&self, max_events: usize) -> Vec<WorkerEvent> {
        let mut bytes = 0;
        let fits = |(index, (_, size)): &(usize, &(WorkerEvent, usize))| {
            bytes += size;
            *index == 0 || bytes <= MAX_EVENT_BATCH_BYTES
        };
        self.unsent.iter().take(max_events).enumerate().take_while(fits).map(|(_, (event, _))| event.clone()).collect()
    }

    /// Removes acknowledged events from the queue. Events that were not acknowledged are sent again.
    /// If there are none, the session ends: the orchestrator would never store these events.
    fn acknowledge(&mut self, ack: EventAck) -> ControlFlow<()> {
        let before = self.unsent.len();
        while self.unsent.front().is_some_and(|(event, _)| event.client_seq <= ack.last_client_seq) {
            self.unsent.pop_front();
        }
        if self.unsent.len() == before {
            tracing::error!(last_client_seq = ack.last_client_seq, "events were accepted but not acknowledged");
            return self.give_up();
        }
        ControlFlow::Continue(())
    }

    /// Replaces an event that was refused for its content by a note with the same number. If the note is refused too, the
    /// session ends: leaving it out would create a gap, and every later event would be refused.
    fn replace_first(&mut self, detail: &str) -> ControlFlow<()> {
        let Some((event, bytes)) = self.unsent.front_mut() else { return ControlFlow::Continue(()) };
        tracing::warn!(kind = event.data.kind().as_str(), detail, "an event was refused");
        if matches!(event.data, AgentEvent::Status { .. }) {
            return self.give_up();
        }
        let message = format!("an event of kind {} was refused and dropped", event.data.kind().as_str());
        event.data = AgentEvent::Status { message, iteration: 0 };
        *bytes = event_bytes(&event.data);
        ControlFlow::Continue(())
    }

    /// Stops the session because its events cannot be stored.
    fn give_up(&self) -> ControlFlow<()> {
        self.client.stop().stop(StopCause::EventsRefused);
        ControlFlow::Break(())
    }
}

/// Whether a status is caused by the content of the events: malformed, too large or invalid.
const fn is_caused_by_events(status: u16) -> bool {
    matches!(status, 400 | 413 | 422)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use protocol::{CallId, JobId};
    use rstest::rstest;

    use super::*;
    use crate::{
        client::Identity,
        session::{secret::SessionSecret, stop::StopSwitch},
    };

    fn result(output: String) -> AgentEvent {
        let (call_id, tool) = (CallId("c".to_owned()), "shell".to_owned());
        AgentEvent::ToolResult { call_id, tool, success: true, output, truncated: false, duration_ms: 1 }
    }

    #[rstest]
    #[case::malformed(400, true)]
    #[case::too_large(413, true)]
    #[case::invalid(422, true)]
    #[case::forbidden(403, false)]
    #[case::body_too_slow(408, false)]
    #[case::rate_limited(429, false)]
    #[case::internal(500, false)]
    fn only_the_content_of_events_replaces_them(#[case] status: u16, #[case] expected: bool) {
        assert_eq!(is_caused_by_events(status), expected);
    }

    #[tokio::test(start_paused = true)]
    async fn a_flush_returns_when_the_events_cannot_be_stored() {
        let (session, stop) = (SessionSecret::generate().unwrap(), StopSwitch::default());
        let identity = Identity { job_id: JobId::nil(), token: "token", session: &session, traceparent: None };
        let client = OrchestratorClient::new(Path::new("/nonexistent"), &identity, stop.clone()).unwrap();
        let (queue, mut pump) = journal(Arc::new(client));
        let record = async {
            queue.record(result("one".into())).await.unwrap();
            // The second is queued while the first is being sent.
            let both = tokio::join!(queue.flush(), queue.flush());
            (both, queue.flush().await)
        };
        let record = tokio::time::timeout(Duration::from_mins(10), record);
        let (both, later) = tokio::select! {
            never = pump.run() => match never {},
            results = record => results.expect("the flushes must not wait forever"),
        };
        let closed = Err(JournalError::Closed);
        assert_eq!((both, later), ((closed.clone(), closed.clone()), closed));
        assert_eq!(stop.cause(), Some(StopCause::OrchestratorUnreachable));
    }
}
