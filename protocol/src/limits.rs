//! Limits of what travels between the programs, in one place: what one side accepts must fit into what it sends on.

/// Maximum length of a call's id, in bytes.
pub const MAX_CALL_ID_BYTES: usize = 200;

/// Maximum length of a prompt, in bytes.
pub const MAX_PROMPT_BYTES: usize = 256 * 1024;

/// Maximum length of a person's reason for a cancellation or a rejection, in bytes.
pub const MAX_REASON_BYTES: usize = 1_000;

/// Maximum size of a job's metadata, as compact JSON.
pub const MAX_METADATA_BYTES: usize = 64 * 1024;

/// Maximum length of a secret's name, in bytes.
pub const MAX_SECRET_NAME_BYTES: usize = 64;

/// Minimum size of a secret's value, in bytes: shorter texts occur by chance, so they could not be told from other
/// text.
pub const MIN_SECRET_BYTES: usize = 8;

/// Maximum size of a secret's value, in bytes.
pub const MAX_SECRET_BYTES: usize = 64 * 1024;

/// Maximum number of hosts that a secret may be sent to.
pub const MAX_SECRET_HOSTS: usize = 20;

/// Maximum number of a user's secrets.
pub const MAX_SECRETS: u32 = 200;

/// Maximum size of the values of a user's secrets in all, in bytes: what one leak detector can look for.
pub const MAX_SECRETS_TOTAL_BYTES: usize = 256 * 1024;

/// Maximum size of the body of a worker's request that is not a model call.
pub const MAX_WORKER_BODY_BYTES: usize = 1024 * 1024;

/// Maximum size of the body of a model call.
pub const MAX_MODEL_BODY_BYTES: usize = 32 * 1024 * 1024;

/// Maximum size of a response to a worker: an answer to a model call, or a job's assignment with its transcript.
pub const MAX_WORKER_RESPONSE_BYTES: usize = 64 * 1024 * 1024;

/// Maximum size of the events, and of the answers beside them, that a transcript is rebuilt from: twice what a context
/// of a million tokens holds.
pub const MAX_TRANSCRIPT_BYTES: usize = 8 * 1024 * 1024;

/// Maximum size of the arguments of a tool call, as JSON.
pub const MAX_TOOL_ARGUMENT_BYTES: usize = 256 * 1024;

/// Maximum size of a document in memory, in bytes.
pub const MAX_MEMORY_DOCUMENT_BYTES: usize = 1024 * 1024;

/// Maximum length of the message of a heartbeat, in bytes; a longer one is cut.
pub const MAX_STATUS_MESSAGE_BYTES: usize = 4 * 1024;

/// Maximum wait of a poll for the next prompt, in seconds.
pub const MAX_PROMPT_WAIT_SECONDS: u64 = 60;

/// Size of what surrounds the events of a batch, or the texts of a report, in a body.
const FRAME_BYTES: usize = 64 * 1024;

/// Maximum size of an event with a message in it, as JSON. A prompt is recorded whole, because a resumed attempt reads
/// it from its event: a prompt that JSON makes larger than twice [`MAX_PROMPT_BYTES`] is refused, so it fits.
pub const MAX_MESSAGE_EVENT_BYTES: usize = MAX_WORKER_BODY_BYTES - FRAME_BYTES;

/// Size to which a worker shortens any other event, as JSON.
pub const MAX_EVENT_BYTES: usize = 256 * 1024;

/// Maximum size of such an event that is accepted: what shortening leaves may grow again by its escapes.
pub const MAX_ACCEPTED_EVENT_BYTES: usize = MAX_EVENT_BYTES / 2 * 3;

/// Maximum number of events in a batch.
pub const MAX_BATCH_EVENTS: usize = 1_000;

/// Maximum length of the path of a file or document that is written, as in tar.
pub const MAX_PATH_BYTES: usize = 1_024;

/// Maximum length of a path's component, as in ext4.
pub const MAX_COMPONENT_BYTES: usize = 255;

/// Maximum depth of a workspace, for every walk.
pub const MAX_PATH_DEPTH: usize = 128;

/// Maximum total size of a request's inline files; larger inputs are uploaded as an archive.
pub const MAX_FILES_BYTES: usize = 16 * 1024 * 1024;

/// Size at which a batch of events is sent, as JSON; a single larger event is sent alone.
pub const MAX_EVENT_BATCH_BYTES: usize = 512 * 1024;

/// Size to which a worker shortens its final report, as JSON.
pub const MAX_REPORT_BYTES: usize = MAX_WORKER_BODY_BYTES - FRAME_BYTES;

const _: () = assert!(MAX_TOOL_ARGUMENT_BYTES + FRAME_BYTES <= MAX_WORKER_BODY_BYTES);
// A transcript has the events and the answers; A prompt is at most twice its limit as JSON.
const _: () = assert!(2 * (MAX_TRANSCRIPT_BYTES + MAX_PROMPT_BYTES) + FRAME_BYTES <= MAX_WORKER_RESPONSE_BYTES);

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
