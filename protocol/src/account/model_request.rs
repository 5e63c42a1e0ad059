//! What a model call was sent, as its job's record has it.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{CallId, Message, ToolCall, names::wire_enum};

wire_enum! {
    /// Who a message of a request is from.
    pub enum ModelMessageRole {
        /// A person, or the loop on a person's behalf.
        User,
        /// The model.
        Assistant,
        /// A tool: the result of a call.
        Tool,
        /// Instructions.
        System,
    }
}

/// One message of a request to a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ModelMessage {
    /// Who it is from.
    pub role: ModelMessageRole,
    /// The text. The result of a tool stands between markers of untrusted content.
    pub content: String,
    /// The calls that the model asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ModelToolCall>,
    /// The call that this is the result of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call_id: Option<CallId>,
    /// The tool that this is the result of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
}

/// A tool call in a request to a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[expect(missing_docs, reason = "as in the tool_use event")]
pub struct ModelToolCall {
    pub call_id: CallId,
    pub tool: String,
    #[cfg_attr(feature = "openapi", schema(value_type = Value))]
    pub input: Value,
}

impl From<Message> for ModelMessage {
    fn from(message: Message) -> Self {
        let text = |role, content| Self { role, content, tool_calls: Vec::new(), call_id: None, tool: None };
        match message {
            Message::System { content } => text(ModelMessageRole::System, content),
            Message::User { content } => text(ModelMessageRole::User, content),
            Message::Assistant { content, tool_calls, .. } => Self {
                tool_calls: tool_calls.into_iter().map(ModelToolCall::from).collect(),
                ..text(ModelMessageRole::Assistant, content)
            },
            Message::Tool { tool_call_id, name, content } => {
                Self { call_id: Some(CallId(tool_call_id)), tool: Some(name), ..text(ModelMessageRole::Tool, content) }
            }
        }
    }
}

impl From<ToolCall> for ModelToolCall {
    fn from(call: ToolCall) -> Self {
        Self { call_id: CallId(call.id), tool: call.name, input: call.arguments }
    }
}

wire_enum! {
    /// What a request had that its job's record has not.
    pub enum UnrecordedPart {
        /// The agent's instructions, in front of the messages.
        Instructions,
        /// The definitions of the tools on offer.
        ToolDefinitions,
        /// The beginning of a conversation that is longer than what is read of it.
        EarlierMessages,
        /// The whole of a text that was shortened when it was recorded.
        LongTexts,
        /// An instruction about the plan, which the loop adds to some requests of a job with a plan.
        PlanInstruction,
        /// All messages: the loop asked for a summary of the conversation so far, which is not a part of it.
        SummaryRequest,
    }
}

/// The answer to `GET /api/jobs/{id}/llm-calls/{call}/request`: what the model was sent, rebuilt from the job's record.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[expect(missing_docs, reason = "as in the call's record")]
pub struct LlmCallRequest {
    pub call_id: CallId,
    pub attempt: u32,
    pub provider: String,
    pub model: String,
    pub at: DateTime<Utc>,
    /// The conversation up to the call, oldest first, without the secrets that the owner has stored.
    pub messages: Vec<ModelMessage>,
    /// What is missing.
    pub unrecorded: Vec<UnrecordedPart>,
}
