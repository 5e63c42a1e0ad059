//! The events of a chat as this program reads them.

use protocol::{ChatDelta, ChatEventKind, ChatMessage, ChatStatus, Gate, ThreadId, ThreadState};
use serde::Deserialize;
use serde_json::{Value, from_str};

use crate::client::stream::StreamEvent;

/// An event of `GET /api/chat/events`.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum ChatEvent {
    Entry(ThreadId, Box<ChatMessage>),
    /// A piece of an answer.
    Delta(ChatDelta),
    /// A tool call waits for approval.
    GateRequired(Box<Gate>),
    /// It no longer waits.
    GateResolved(Box<Gate>),
    State(ThreadId, ThreadState),
    Status(ChatStatus),
}

#[derive(Deserialize)]
struct Entry {
    thread_id: ThreadId,
    #[serde(flatten)]
    message: Box<ChatMessage>,
}

#[derive(Deserialize)]
struct ThreadStateEvent {
    thread_id: ThreadId,
    state: ThreadState,
}

impl StreamEvent for ChatEvent {
    fn parse(name: &str, data: &str) -> Option<Self> {
        Some(match ChatEventKind::parse(name)? {
            ChatEventKind::Message | ChatEventKind::ToolUse | ChatEventKind::ToolResult | ChatEventKind::Error => {
                let Entry { thread_id, message } = from_str(data).ok()?;
                Self::Entry(thread_id, message)
            }
            ChatEventKind::Delta => Self::Delta(from_str(data).ok()?),
            ChatEventKind::GateRequired => Self::GateRequired(from_str(data).ok()?),
            ChatEventKind::GateResolved => Self::GateResolved(from_str(data).ok()?),
            ChatEventKind::ThreadState => {
                let ThreadStateEvent { thread_id, state } = from_str(data).ok()?;
                Self::State(thread_id, state)
            }
            ChatEventKind::Status => Self::Status(from_str(data).ok()?),
        })
    }
}

impl ChatEvent {
    pub(super) const fn thread(&self) -> ThreadId {
        match self {
            Self::Entry(thread, _) | Self::State(thread, _) => *thread,
            Self::Delta(delta) => delta.thread_id,
            Self::GateRequired(gate) | Self::GateResolved(gate) => gate.thread_id,
            Self::Status(status) => status.thread_id,
        }
    }

    fn kind(&self) -> ChatEventKind {
        match self {
            Self::Entry(_, message) => ChatEventKind::of_role(message.content.role()),
            Self::Delta(_) => ChatEventKind::Delta,
            Self::GateRequired(_) => ChatEventKind::GateRequired,
            Self::GateResolved(_) => ChatEventKind::GateResolved,
            Self::State(..) => ChatEventKind::ThreadState,
            Self::Status(_) => ChatEventKind::Status,
        }
    }

    /// Its data with its name as `event`.
    pub(super) fn named(&self, data: &str) -> Value {
        let mut value: Value = from_str(data).unwrap_or_default();
        if let Value::Object(fields) = &mut value {
            fields.insert("event".to_owned(), self.kind().as_str().into());
        }
        value
    }
}
