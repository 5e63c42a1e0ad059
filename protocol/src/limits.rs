//! Limits of what travels between the programs, in one place: what one side accepts must fit into what it sends on.

/// Maximum length of a call's id, in bytes.
pub const MAX_CALL_ID_BYTES: usize = 200;

/// Maximum length of a prompt, in bytes (contract: api, sizes).
pub const MAX_PROMPT_BYTES: usize = 256 * 1024;

/// Maximum length of a person's reason for a cancellation or a rejection, in bytes.
pub const MAX_REASON_BYTES: usize = 1_000;

/// Maximum size of the body of a worker's request that is not a model call.
pub const MAX_WORKER_BODY_BYTES: usize = 1024 * 1024;

/// Size of what surrounds the events of a batch, or the texts of a report, in a body.
const FRAME_BYTES: usize = 64 * 1024;

/// Maximum size of an event with a message in it, as JSON. A prompt is recorded whole, because a resumed attempt reads it
/// from its event: even if every byte of it is escaped (quotes, line breaks), it fits.
pub const MAX_MESSAGE_EVENT_BYTES: usize = MAX_WORKER_BODY_BYTES - FRAME_BYTES;

/// Size to which a worker shortens any other event, as JSON.
pub const MAX_EVENT_BYTES: usize = 256 * 1024;

/// Size at which a batch of events is sent, as JSON; a single larger event is sent alone.
pub const MAX_EVENT_BATCH_BYTES: usize = 512 * 1024;

/// Size to which a worker shortens its final report, as JSON.
pub const MAX_REPORT_BYTES: usize = MAX_WORKER_BODY_BYTES - FRAME_BYTES;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AgentEvent, EventBatch, MessageRole, WorkerEvent};

    fn body_of(content: String) -> usize {
        let data = AgentEvent::Message { role: MessageRole::User, content };
        let event = WorkerEvent { client_seq: u64::MAX, data };
        assert!(serde_json::to_vec(&event).unwrap().len() <= MAX_MESSAGE_EVENT_BYTES);
        serde_json::to_vec(&EventBatch { events: vec![event] }).unwrap().len()
    }

    #[test]
    fn the_largest_prompt_fits_an_event_and_the_largest_event_fits_a_body() {
        for prompt in ["\"\n\\\t".repeat(MAX_PROMPT_BYTES / 4), "ü".repeat(MAX_PROMPT_BYTES / 2)] {
            assert!(body_of(prompt) <= MAX_WORKER_BODY_BYTES);
        }
        let largest = [MAX_MESSAGE_EVENT_BYTES, MAX_EVENT_BYTES, MAX_EVENT_BATCH_BYTES, MAX_REPORT_BYTES];
        assert!(largest.iter().all(|bytes| bytes + 1024 <= MAX_WORKER_BODY_BYTES));
    }
}
