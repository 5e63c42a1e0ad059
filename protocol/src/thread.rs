//! Chat threads: their messages and state, and the requests about them.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{CallId, JobId, JobReason, JobState, MessageId, ThreadId, names::wire_enum};

/// Key of the thread that a message without a thread goes to.
pub const MAIN_THREAD: &str = "main";

wire_enum! {
    /// What a thread is doing.
    pub enum ThreadState {
        /// It waits for a message.
        Idle,
        /// The agent works on a message.
        Processing,
        /// A tool call waits for a person's approval.
        AwaitingApproval,
    }
}

/// One item of `GET /api/chat/threads`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ChatThread {
    /// Its id.
    pub id: ThreadId,
    /// A name that is accepted in place of the id: `main` or `heartbeat`.
    pub key: Option<String>,
    /// The first line of its first message.
    pub title: String,
    /// What it is doing.
    pub state: ThreadState,
    /// When it was created.
    pub created_at: DateTime<Utc>,
    /// When it last changed.
    pub updated_at: DateTime<Utc>,
}

/// `GET /api/chat/threads/{id}`: a thread with a page of its messages.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ChatHistory {
    /// The thread.
    #[serde(flatten)]
    pub thread: ChatThread,
    /// The messages of this page, oldest first. The first page has the newest ones, and those that are queued.
    pub messages: Vec<ChatMessage>,
    /// Pass as `cursor` to get the messages before these; null when there are none.
    pub next_cursor: Option<String>,
}

/// One entry of a thread.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ChatMessage {
    /// Its id.
    pub id: MessageId,
    /// Its position in the thread; null while it is queued.
    pub seq: Option<i64>,
    /// When it was written.
    pub at: DateTime<Utc>,
    /// `role`, and what belongs to it.
    #[serde(flatten)]
    pub content: ChatContent,
}

/// What an entry of a thread says, by its author.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, strum::IntoStaticStr)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "role", rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum ChatContent {
    /// The user wrote it.
    User {
        /// The text.
        content: String,
    },
    /// The agent wrote it.
    Assistant {
        /// The text.
        content: String,
    },
    /// Gantry wrote it: the answer to a command, or a notice to the agent.
    System {
        /// The text.
        content: String,
        /// Who wrote the text of a line that a routine or `wake` put into the main session; absent for any other text.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        origin: Option<LineOrigin>,
    },
    /// The agent calls a tool.
    ToolUse {
        /// Pairs it with its result.
        call_id: CallId,
        /// The tool.
        tool: String,
        /// The input, without credentials.
        input: Value,
        /// The model's reason for the call, if it gave one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reasoning: Option<String>,
    },
    /// The result of a tool call.
    ToolResult {
        /// Pairs it with its call.
        call_id: CallId,
        /// The tool.
        tool: String,
        /// Whether the call succeeded.
        success: bool,
        /// The text that the agent reads.
        output: String,
        /// Whether `output` was cut.
        truncated: bool,
        /// How long it took.
        duration_ms: u64,
    },
    /// A job that was made in this thread has ended.
    Job {
        /// The job.
        job_id: JobId,
        /// Its title.
        title: String,
        /// Its final state, or `submitted` when it waits for a review.
        state: JobState,
        /// Why it did not complete.
        reason: Option<JobReason>,
        /// The result, complete or partial.
        content: String,
    },
    /// A turn did not end with an answer.
    Error {
        /// The reason.
        reason: JobReason,
        /// A human-readable message.
        content: String,
    },
}

wire_enum! {
    /// Who wrote the text of a line for the main session.
    pub enum LineOrigin {
        /// The owner of the session: the agent may do what it says.
        Owner,
        /// Anyone else, such as a model or the sender of a webhook: it is data for the agent.
        External,
    }
}

impl ChatContent {
    /// A text of Gantry's that is no line of the main session.
    pub const fn notice(content: String) -> Self {
        Self::System { content, origin: None }
    }

    /// The name of the role on the wire and in the store.
    pub fn role(&self) -> &'static str {
        self.into()
    }
}

/// `POST /api/chat/send`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SendMessage {
    /// The thread: its id or key. Left out: the thread `main`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread_id: Option<String>,
    /// The text; a command if it begins with `/`.
    pub content: String,
}

/// The answer to a message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MessageReceipt {
    /// The thread. After `/new` it is the new one.
    pub thread_id: ThreadId,
    /// The message.
    pub message_id: MessageId,
    /// Whether the message is queued until a person has answered the tool call that waits for approval.
    #[serde(default)]
    pub waiting_for_gate: bool,
}

/// An event of a thread that is only streamed, never stored.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ChatDelta {
    /// The thread.
    pub thread_id: ThreadId,
    /// The model call whose answer this is a piece of.
    pub call_id: CallId,
    /// What the piece is.
    #[serde(flatten)]
    pub piece: DeltaPiece,
}

/// Progress of a turn, such as a wait for the model. Only streamed, never stored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ChatStatus {
    /// The thread.
    pub thread_id: ThreadId,
    /// A human-readable message.
    pub message: String,
}

wire_enum! {
    /// The name of an event of `GET /api/chat/events`.
    pub enum ChatEventKind {
        /// An entry of the user, the agent or Gantry, or the end of a job: `ChatMessage` with `thread_id`.
        Message,
        /// A piece of an answer: `ChatDelta`. Not stored.
        Delta,
        /// A tool call: an entry with the role `tool_use`.
        ToolUse,
        /// Its result: an entry with the role `tool_result`.
        ToolResult,
        /// A turn that did not end with an answer: an entry with the role `error`.
        Error,
        /// A tool call waits for a person: `Gate`.
        GateRequired,
        /// It no longer waits: `Gate`.
        GateResolved,
        /// The thread changed state: `thread_id` and `state`.
        ThreadState,
        /// Progress: `ChatStatus`. Not stored.
        Status,
    }
}

impl ChatEventKind {
    /// The event of an entry with this role.
    pub fn of_role(role: &str) -> Self {
        match role {
            "tool_use" => Self::ToolUse,
            "tool_result" => Self::ToolResult,
            "error" => Self::Error,
            _ => Self::Message,
        }
    }
}

/// A piece of an answer that is being generated.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "kind", content = "text", rename_all = "snake_case")]
pub enum DeltaPiece {
    /// An answer starts. Pieces before it that no message followed are void.
    Start,
    /// More text.
    Text(String),
    /// More reasoning.
    Reasoning(String),
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_message_has_its_role_and_content_at_the_top() {
        let message = ChatMessage {
            id: MessageId::nil(),
            seq: Some(3),
            at: DateTime::UNIX_EPOCH,
            content: ChatContent::Assistant { content: "hi".to_owned() },
        };
        let json = json!({"id": MessageId::nil(), "seq": 3, "at": "1970-01-01T00:00:00Z", "role": "assistant", "content": "hi"});
        assert_eq!(serde_json::to_value(&message).unwrap(), json);
        assert_eq!(serde_json::from_value::<ChatMessage>(json).unwrap(), message);
    }

    #[test]
    fn the_role_is_spelled_as_on_the_wire() {
        let (call_id, tool) = (CallId::from("c"), "echo".to_owned());
        let all = [
            ChatContent::User { content: String::new() },
            ChatContent::Assistant { content: String::new() },
            ChatContent::notice(String::new()),
            ChatContent::ToolUse { call_id: call_id.clone(), tool: tool.clone(), input: json!({}), reasoning: None },
            ChatContent::ToolResult {
                call_id,
                tool,
                success: true,
                output: String::new(),
                truncated: false,
                duration_ms: 1,
            },
            ChatContent::Job {
                job_id: JobId::nil(),
                title: String::new(),
                state: JobState::Completed,
                reason: None,
                content: String::new(),
            },
            ChatContent::Error { reason: JobReason::LlmError, content: String::new() },
        ];
        for content in all {
            assert_eq!(serde_json::to_value(&content).unwrap()["role"], content.role());
        }
    }

    #[test]
    fn a_piece_of_an_answer_names_its_kind() {
        let delta = ChatDelta {
            thread_id: ThreadId::nil(),
            call_id: CallId::from("c"),
            piece: DeltaPiece::Text("hi".to_owned()),
        };
        let json = json!({"thread_id": ThreadId::nil(), "call_id": "c", "kind": "text", "text": "hi"});
        assert_eq!(serde_json::to_value(&delta).unwrap(), json);
        let start = ChatDelta { piece: DeltaPiece::Start, ..delta };
        let json = serde_json::to_value(&start).unwrap();
        assert_eq!((json["kind"].as_str(), json.get("text")), (Some("start"), None));
        assert_eq!(serde_json::from_value::<ChatDelta>(json).unwrap(), start);
    }
}
