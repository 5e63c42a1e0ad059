//! The journal of a lightweight run: its conversation, kept in memory until the attempt has ended.
//!
//! Owns how much of it is kept. Never writes it.

use agent::{Journal, JournalError};
use base::clock::Clock;
use parking_lot::Mutex;
use protocol::{AgentEvent, EventData, MessageRole, RunMessage};

/// The size from which on a conversation is not continued. Each message has a limit, too.
const MAX_BYTES: usize = 512 * 1024;
const NOT_KEPT: &str = "what follows is not kept: the conversation is too long";

pub(super) struct Conversation {
    clock: Clock,
    attempt: u32,
    recorded: Mutex<Recorded>,
}

#[derive(Default)]
struct Recorded {
    messages: Vec<RunMessage>,
    bytes: usize,
    /// The prompt as the model reads it, and as it is kept.
    prompt: (String, String),
}

impl Conversation {
    pub(super) fn new(clock: Clock, attempt: u32) -> Self {
        Self { clock, attempt, recorded: Mutex::default() }
    }

    /// Begins with the instructions. The prompt, which the loop records, is kept as `shown`.
    pub(super) fn begin(&self, system: String, prompt: String, shown: String) {
        self.recorded.lock().prompt = (prompt, shown);
        self.add(EventData::Message { role: MessageRole::System, content: system });
    }

    fn add(&self, data: EventData) {
        let mut recorded = self.recorded.lock();
        let data = match data {
            EventData::Message { role: MessageRole::User, content } if content == recorded.prompt.0 => {
                EventData::Message { role: MessageRole::User, content: recorded.prompt.1.clone() }
            }
            other => other,
        };
        if recorded.bytes > MAX_BYTES {
            return;
        }
        recorded.bytes += serde_json::to_string(&data).map_or(0, |text| text.len());
        let is_last = recorded.bytes > MAX_BYTES;
        let data = if is_last { EventData::Status { message: NOT_KEPT.to_owned(), iteration: 0 } } else { data };
        recorded.messages.push(RunMessage { seq: 0, attempt: self.attempt, at: self.clock.now(), data });
    }

    pub(super) fn into_messages(self) -> Vec<RunMessage> {
        self.recorded.into_inner().messages
    }
}

impl Journal for Conversation {
    async fn record(&self, event: AgentEvent) -> Result<(), JournalError> {
        // Progress is of interest while it happens.
        if !matches!(event, AgentEvent::Status { .. } | AgentEvent::Log { .. }) {
            self.add(event.into());
        }
        Ok(())
    }
}
