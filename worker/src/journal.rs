//! The worker's journal: a bounded queue whose events are sent in numbered batches until they are stored.
//!
//! Owns `client_seq`, the size of a batch and what becomes of an event that is too large. Never reorders and never
//! drops an event without leaving another in its place: the numbers have no gaps.

use std::{collections::VecDeque, convert::Infallible, ops::ControlFlow, sync::Arc, time::Duration};

use agent::{Journal, JournalClosed, elide};
use protocol::{
    AgentEvent, EventAck, EventBatch, WorkerEvent,
    limits::{MAX_EVENT_BATCH_BYTES, MAX_EVENT_BYTES, MAX_MESSAGE_EVENT_BYTES},
};
use serde_json::Value;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, timeout_at},
};

use crate::{
    client::{Call, CallError, OrchestratorClient},
    stop::StopCause,
};

const QUEUE_EVENTS: usize = 64;
const BATCH_EVENTS: usize = 256;
/// How long a batch waits for more events, so that those of a quick turn go in one request.
const LINGER_MS: u64 = 5;
/// Delay before a batch is sent again that was refused without a Retry-After.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Tries of a batch that is refused for a reason that is not in its events.
const MAX_TRIES: u32 = 10;

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
    /// Returns once everything recorded before is stored, or nothing more can be.
    pub(crate) async fn flush(&self) {
        let (done, stored) = oneshot::channel();
        if self.entries.send(Entry::Flush(done)).await.is_ok() {
            // An error means that the pump has given up: there is nothing to wait for.
            let _ = stored.await;
        }
    }
}

impl Journal for EventQueue {
    async fn record(&self, event: AgentEvent) -> Result<(), JournalClosed> {
        self.entries.send(Entry::Event(event)).await.map_err(|_| JournalClosed)
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
    /// For as long as the session lives.
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
                // Whoever asked may have stopped waiting.
                let _ = flush.send(());
            }
        }
        self.entries.close();
        // Those who wait for a flush hear that there will be none.
        while self.entries.try_recv().is_ok() {}
        std::future::pending().await
    }

    fn take(&mut self, entry: Entry, flushes: &mut Vec<oneshot::Sender<()>>) {
        match entry {
            Entry::Flush(done) => flushes.push(done),
            Entry::Event(event) => {
                self.last_seq += 1;
                let cap_bytes = event_cap(&event);
                let (data, bytes) = shrunk(event, cap_bytes);
                self.unsent.push_back((WorkerEvent { client_seq: self.last_seq, data }, bytes));
            }
        }
    }

    fn unsent_bytes(&self) -> usize {
        self.unsent.iter().map(|(_, bytes)| bytes).sum()
    }

    async fn send_all(&mut self) -> ControlFlow<()> {
        let (mut most, mut tries) = (BATCH_EVENTS, 0);
        while !self.unsent.is_empty() {
            let events = self.batch(most);
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
                        "events are stored that this worker never sent"
                    );
                    self.client.stop().stop(StopCause::Impersonated);
                    return ControlFlow::Break(());
                }
                Ok(ack) => self.stored(ack, count),
                Err(CallError::Stopped) => return ControlFlow::Break(()),
                Err(CallError::Refused(refusal)) if refusal.status == 429 => {
                    tokio::time::sleep(refusal.retry_after.unwrap_or(RETRY_DELAY)).await;
                }
                Err(CallError::Refused(refusal)) if is_about_the_events(refusal.status) => {
                    if count > 1 {
                        most = count / 2;
                    } else {
                        self.replace_first(&refusal.detail)?;
                    }
                }
                Err(error) => {
                    tracing::warn!(error = &error as &dyn std::error::Error, "a batch of events was refused");
                    tries += 1;
                    if tries >= MAX_TRIES {
                        return self.give_up();
                    }
                    tokio::time::sleep(RETRY_DELAY).await;
                }
            }
        }
        ControlFlow::Continue(())
    }

    fn batch(&self, most: usize) -> Vec<WorkerEvent> {
        let mut bytes = 0;
        let fits = |(index, (_, size)): &(usize, &(WorkerEvent, usize))| {
            bytes += size;
            *index == 0 || bytes <= MAX_EVENT_BATCH_BYTES
        };
        self.unsent.iter().take(most).enumerate().take_while(fits).map(|(_, (event, _))| event.clone()).collect()
    }

    /// An orchestrator that acknowledges less than it was sent gets the rest again.
    fn stored(&mut self, ack: EventAck, sent: usize) {
        let before = self.unsent.len();
        while self.unsent.front().is_some_and(|(event, _)| event.client_seq <= ack.last_client_seq) {
            self.unsent.pop_front();
        }
        if self.unsent.len() == before {
            tracing::warn!(last_client_seq = ack.last_client_seq, "events were taken but not acknowledged");
            self.unsent.drain(..sent.min(before));
        }
    }

    /// Replaces a single event that is refused for its content by a note with the same number. A refused note ends the
    /// session: without it the numbers would have a gap, and every later event would be refused.
    fn replace_first(&mut self, detail: &str) -> ControlFlow<()> {
        let Some((event, bytes)) = self.unsent.front_mut() else { return ControlFlow::Continue(()) };
        tracing::warn!(kind = event.data.kind().as_str(), detail, "an event was refused");
        if matches!(event.data, AgentEvent::Status { .. }) {
            return self.give_up();
        }
        let message = format!("an event of kind {} was refused and left out", event.data.kind().as_str());
        event.data = AgentEvent::Status { message, iteration: 0 };
        *bytes = size_of_json(&event.data);
        ControlFlow::Continue(())
    }

    /// Stops the session because its events cannot be stored.
    fn give_up(&self) -> ControlFlow<()> {
        self.client.stop().stop(StopCause::EventsRefused);
        ControlFlow::Break(())
    }
}

/// Whether a refusal with this status is about the content of the events: malformed, too large or invalid.
const fn is_about_the_events(status: u16) -> bool {
    matches!(status, 400 | 413 | 422)
}

/// The size to which an event is shortened. Messages are kept whole where possible: a resumed attempt reads them.
const fn event_cap(event: &AgentEvent) -> usize {
    match event {
        AgentEvent::Message { .. } => MAX_MESSAGE_EVENT_BYTES,
        _ => MAX_EVENT_BYTES,
    }
}

fn size_of_json(event: &AgentEvent) -> usize {
    serde_json::to_vec(event).map_or(0, |json| json.len())
}

/// The event with its texts cut until it fits, and its size. A tool result that was cut says so.
fn shrunk(event: AgentEvent, cap_bytes: usize) -> (AgentEvent, usize) {
    let bytes = size_of_json(&event);
    if bytes <= cap_bytes {
        return (event, bytes);
    }
    let kind = event.kind().as_str();
    let Ok(mut value) = serde_json::to_value(event) else {
        return (AgentEvent::Status { message: format!("an event of kind {kind} could not be kept"), iteration: 0 }, 0);
    };
    let bytes = cut_to_fit(&mut value, cap_bytes);
    if let Some(truncated) = value.pointer_mut("/data/truncated") {
        *truncated = Value::Bool(true);
    }
    match serde_json::from_value(value) {
        Ok(event) if bytes <= cap_bytes => {
            let bytes = size_of_json(&event);
            (event, bytes)
        }
        // Not text but structure makes it large: its place is kept.
        _ => {
            let message = format!("an event of kind {kind} was too large and left out");
            let note = AgentEvent::Status { message, iteration: 0 };
            let bytes = size_of_json(&note);
            (note, bytes)
        }
    }
}

/// Cuts the longest texts of `value` until its JSON has `cap_bytes` at most, if that is possible. Its size then.
pub(crate) fn cut_to_fit(value: &mut Value, cap_bytes: usize) -> usize {
    let mut bytes = value.to_string().len();
    let mut text_bytes = cap_bytes / 2;
    while bytes > cap_bytes && text_bytes > 16 {
        cut_texts(value, text_bytes);
        bytes = value.to_string().len();
        text_bytes /= 2;
    }
    bytes
}

fn cut_texts(value: &mut Value, text_bytes: usize) {
    match value {
        Value::String(text) if text.len() > text_bytes => {
            *text = elide(text, text_bytes);
        }
        Value::Array(items) => items.iter_mut().for_each(|item| cut_texts(item, text_bytes)),
        Value::Object(fields) => fields.values_mut().for_each(|field| cut_texts(field, text_bytes)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use protocol::{CallId, MessageRole};
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn result(output: String) -> AgentEvent {
        let (call_id, tool) = (CallId("c".to_owned()), "shell".to_owned());
        AgentEvent::ToolResult { call_id, tool, success: true, output, truncated: false, duration_ms: 1 }
    }

    #[rstest]
    #[case::message(AgentEvent::Message { role: MessageRole::Assistant, content: "ü".repeat(900_000) })]
    #[case::escapes(AgentEvent::Reasoning { content: "\u{1}\"\n".repeat(300_000) })]
    #[case::result(result("x".repeat(5_000_000)))]
    #[case::nested(AgentEvent::ToolUse { call_id: CallId("c".into()), tool: "write_file".into(), input: json!({"a": [{"b": "y".repeat(900_000)}]}), reasoning: None })]
    fn an_event_that_is_too_large_is_cut_and_keeps_its_kind(#[case] event: AgentEvent) {
        let (cut, bytes) = shrunk(event.clone(), event_cap(&event));
        assert!(bytes <= event_cap(&event));
        assert_eq!(size_of_json(&cut), bytes);
        assert_eq!(cut.kind(), event.kind());
        if let AgentEvent::ToolResult { truncated, .. } = cut {
            assert!(truncated);
        }
    }

    #[test]
    fn an_event_that_is_large_by_structure_leaves_a_note_in_its_place() {
        let input = json!(vec![1; 300_000]);
        let event = AgentEvent::ToolUse { call_id: CallId("c".into()), tool: "t".into(), input, reasoning: None };
        assert!(matches!(shrunk(event, MAX_EVENT_BYTES).0, AgentEvent::Status { .. }));
    }

    #[test]
    fn the_largest_prompt_is_recorded_whole() {
        let content = "\"\n".repeat(protocol::limits::MAX_PROMPT_BYTES / 2);
        let event = AgentEvent::Message { role: MessageRole::User, content };
        assert_eq!(shrunk(event.clone(), event_cap(&event)).0, event);
    }

    #[test]
    fn an_event_that_fits_is_left_alone() {
        assert_eq!(shrunk(result("short".into()), MAX_EVENT_BYTES).0, result("short".into()));
    }
}
