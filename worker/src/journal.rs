//! The journal as a worker keeps it: a bounded queue, sent in numbered batches, sent again until it is stored.
//!
//! Owns `client_seq`, the size of a batch and what becomes of an event that is too large. Never reorders and never
//! drops an event without leaving another in its place: the numbers have no gaps.

use std::{collections::VecDeque, convert::Infallible, ops::ControlFlow, sync::Arc, time::Duration};

use agent::{Journal, JournalClosed};
use protocol::{EventAck, EventBatch, EventData, WorkerEvent};
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
const BATCH_BYTES: usize = 512 * 1024;
/// A quarter of what one body may hold, so that a single event is never refused for its size.
const EVENT_BYTES: usize = 256 * 1024;
/// How long a batch waits for company: a quick turn's events then go in one request, and nobody sees 5 ms.
const LINGER_MS: u64 = 5;
const RATE_LIMIT_WAIT_SECONDS: u64 = 1;

enum Entry {
    Event(EventData),
    Flush(oneshot::Sender<()>),
}

/// The end that events are put into.
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
    async fn record(&self, event: EventData) -> Result<(), JournalClosed> {
        self.entries.send(Entry::Event(event)).await.map_err(|_| JournalClosed)
    }
}

/// The end that sends them.
pub(crate) struct EventPump {
    client: Arc<OrchestratorClient>,
    entries: mpsc::Receiver<Entry>,
    unsent: VecDeque<(WorkerEvent, usize)>,
    last_seq: u64,
    last_sent_seq: u64,
}

/// Both ends.
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
            while flushes.is_empty() && self.unsent.len() < BATCH_EVENTS && self.unsent_bytes() < BATCH_BYTES {
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
                let (data, bytes) = shrunk(event, EVENT_BYTES);
                self.unsent.push_back((WorkerEvent { client_seq: self.last_seq, data }, bytes));
            }
        }
    }

    fn unsent_bytes(&self) -> usize {
        self.unsent.iter().map(|(_, bytes)| bytes).sum()
    }

    async fn send_all(&mut self) -> ControlFlow<()> {
        let mut most = BATCH_EVENTS;
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
                    let wait = refusal.retry_after.unwrap_or(Duration::from_secs(RATE_LIMIT_WAIT_SECONDS));
                    tokio::time::sleep(wait).await;
                }
                Err(_) if count > 1 => most = count / 2,
                Err(error) => self.replace_first(&error),
            }
        }
        ControlFlow::Continue(())
    }

    fn batch(&self, most: usize) -> Vec<WorkerEvent> {
        let mut bytes = 0;
        let fits = |(index, (_, size)): &(usize, &(WorkerEvent, usize))| {
            bytes += size;
            *index == 0 || bytes <= BATCH_BYTES
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

    /// A single event that is refused for what it is: a note takes its number. A refused note is left out.
    fn replace_first(&mut self, error: &CallError) {
        tracing::warn!(error = error as &dyn std::error::Error, "an event was refused");
        let Some((event, _)) = self.unsent.pop_front() else { return };
        if !matches!(event.data, EventData::Status { .. }) {
            let message = format!("an event of kind {} was refused and left out", event.data.kind().as_str());
            let data = EventData::Status { message, iteration: 0 };
            let bytes = size_of_json(&data);
            self.unsent.push_front((WorkerEvent { client_seq: event.client_seq, data }, bytes));
        }
    }
}

fn size_of_json(event: &EventData) -> usize {
    serde_json::to_vec(event).map_or(0, |json| json.len())
}

/// The event with its texts cut until it fits, and its size. A tool result that was cut says so.
fn shrunk(event: EventData, cap_bytes: usize) -> (EventData, usize) {
    let bytes = size_of_json(&event);
    if bytes <= cap_bytes {
        return (event, bytes);
    }
    let kind = event.kind().as_str();
    let Ok(mut value) = serde_json::to_value(event) else {
        return (EventData::Status { message: format!("an event of kind {kind} could not be kept"), iteration: 0 }, 0);
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
            let note = EventData::Status { message, iteration: 0 };
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
            let kept = text.floor_char_boundary(text_bytes);
            let dropped = text.len() - kept;
            *text = format!("{}… [{dropped} bytes dropped]", &text[..kept]);
        }
        Value::Array(items) => items.iter_mut().for_each(|item| cut_texts(item, text_bytes)),
        Value::Object(fields) => fields.values_mut().for_each(|field| cut_texts(field, text_bytes)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use protocol::MessageRole;
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn result(output: String) -> EventData {
        let (call_id, tool) = ("c".to_owned(), "shell".to_owned());
        EventData::ToolResult { call_id, tool, success: true, output, truncated: false, duration_ms: 1 }
    }

    #[rstest]
    #[case::message(EventData::Message { role: MessageRole::Assistant, content: "ü".repeat(400_000) })]
    #[case::escapes(EventData::Reasoning { content: "\u{1}\"\n".repeat(300_000) })]
    #[case::result(result("x".repeat(5_000_000)))]
    #[case::nested(EventData::ToolUse { call_id: "c".into(), tool: "write_file".into(), input: json!({"a": [{"b": "y".repeat(900_000)}]}), reasoning: None })]
    fn an_event_that_is_too_large_is_cut_and_keeps_its_kind(#[case] event: EventData) {
        let (cut, bytes) = shrunk(event.clone(), EVENT_BYTES);
        assert!(bytes <= EVENT_BYTES);
        assert_eq!(size_of_json(&cut), bytes);
        assert_eq!(cut.kind(), event.kind());
        if let EventData::ToolResult { truncated, .. } = cut {
            assert!(truncated);
        }
    }

    #[test]
    fn an_event_that_is_large_by_structure_leaves_a_note_in_its_place() {
        let input = json!(vec![1; 300_000]);
        let event = EventData::ToolUse { call_id: "c".into(), tool: "t".into(), input, reasoning: None };
        assert!(matches!(shrunk(event, EVENT_BYTES).0, EventData::Status { .. }));
    }

    #[test]
    fn an_event_that_fits_is_left_alone() {
        assert_eq!(shrunk(result("short".into()), EVENT_BYTES).0, result("short".into()));
    }
}
