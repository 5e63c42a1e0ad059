//! What is said to a model and what it answers, in Gantry's own words (no provider's wire).

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::CallId;

/// One message of a conversation with a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub enum Message {
    /// Instructions from the operator and the job.
    System {
        /// The text.
        content: String,
    },
    /// From a person, or from the loop on a person's behalf (nudges).
    User {
        /// The text.
        content: String,
    },
    /// From the model.
    Assistant {
        /// The text; may be empty when there are tool calls.
        #[serde(default)]
        content: String,
        /// The calls it asked for, in its order.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<ToolCall>,
        /// The model's own reasoning, where the wire wants it back.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reasoning: Option<String>,
    },
    /// The result of one tool call.
    Tool {
        /// Which call this answers.
        tool_call_id: String,
        /// The tool's name.
        name: String,
        /// What the model reads.
        content: String,
    },
}

/// A call that a model asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Unique within the job's attempt; the loop makes it so.
    pub id: String,
    /// The tool.
    pub name: String,
    /// The arguments: an object when well-formed; a string holds what the model wrote when it was not JSON.
    pub arguments: Value,
    /// Opaque signatures of the provider, returned with the call when it is sent back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub thought_signatures: Vec<String>,
}

/// Where a tool may run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolDomain {
    /// On the host's side, safe there.
    Orchestrator,
    /// Files and shell: only inside a sandbox.
    Container,
}

/// A tool as the model sees it, and what a worker must know to call it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolDefinition {
    /// The tool's name.
    pub name: String,
    /// What the tool does, for the model.
    pub description: String,
    /// JSON Schema of the parameters.
    pub parameters: Value,
    /// Where the tool runs.
    pub domain: ToolDomain,
    /// Names of top-level parameters that never reach a log, an event or the audit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sensitive: Vec<String>,
    /// Whether calls of one reply may run beside others.
    #[serde(default = "allowed", skip_serializing_if = "is_allowed")]
    pub parallel: bool,
    /// Time limit of one call, where the tool runs; absent where only the model reads the definition.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u64>,
}

const fn allowed() -> bool {
    true
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_allowed(parallel: &bool) -> bool {
    *parallel
}

impl ToolDefinition {
    /// A tool without sensitive parameters, whose calls may run beside others.
    pub fn new(name: impl Into<String>, description: impl Into<String>, parameters: Value, domain: ToolDomain) -> Self {
        Self {
            name: name.into(),
            description: description.into(),
            parameters,
            domain,
            sensitive: Vec::new(),
            parallel: true,
            timeout_seconds: None,
        }
    }
}

/// Whether the model may, must or must not call tools.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolChoice {
    /// As it likes.
    #[default]
    Auto,
    /// Not at all (definitions are still sent where a wire needs them).
    None,
}

/// Why a reply ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model was done.
    Stop,
    /// It ran into its completion limit.
    Length,
    /// It wants tools run.
    ToolCalls,
    /// The provider cut it off.
    ContentFilter,
    /// Something else.
    #[serde(other)]
    Other,
}

impl FinishReason {
    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
            Self::ContentFilter => "content_filter",
            Self::Other => "other",
        }
    }
}

/// Tokens of one model call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(default)]
pub struct TokenUsage {
    /// Prompt tokens, cached ones included.
    pub input_tokens: u64,
    /// Completion tokens.
    pub output_tokens: u64,
    /// Prompt tokens read from the provider's cache.
    pub cache_read_tokens: u64,
    /// Prompt tokens written to the provider's cache.
    pub cache_write_tokens: u64,
}

/// One question to the model. The body of `llm/complete` and `llm/complete_with_tools`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CompletionRequest {
    /// The same id again gets the recorded answer.
    pub call_id: CallId,
    /// The conversation.
    pub messages: Vec<Message>,
    /// Tools on offer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<ToolDefinition>,
    /// Whether they may be called.
    #[serde(default)]
    pub tool_choice: ToolChoice,
    /// Completion limit in tokens; clamped by the gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// 0–2; the loop's default is 0.7.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
}

/// A [`CompletionRequest`] of the sender's, who keeps the parts: the same JSON without copies.
#[derive(Debug, Clone, Serialize)]
#[expect(missing_docs, reason = "each field is documented on CompletionRequest")]
pub struct CompletionRequestRef<'a> {
    pub call_id: &'a CallId,
    pub messages: Cow<'a, [Message]>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub tools: &'a [ToolDefinition],
    pub tool_choice: ToolChoice,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
}

impl From<&CompletionRequestRef<'_>> for CompletionRequest {
    fn from(request: &CompletionRequestRef<'_>) -> Self {
        Self {
            call_id: request.call_id.clone(),
            messages: request.messages.to_vec(),
            tools: request.tools.to_vec(),
            tool_choice: request.tool_choice,
            max_tokens: request.max_tokens,
            temperature: request.temperature,
        }
    }
}

/// The model's answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Completion {
    /// The text.
    pub content: String,
    /// The calls it asks for.
    #[serde(default)]
    pub tool_calls: Vec<ToolCall>,
    /// Its reasoning, when the provider shows it.
    #[serde(default)]
    pub reasoning: Option<String>,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// What it cost in tokens.
    #[serde(default)]
    pub usage: TokenUsage,
    /// A word from the orchestrator for the agent, such as that its budget runs low. Never the model's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice: Option<String>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_borrowed_request_has_the_same_json() {
        let call_id = CallId("c".to_owned());
        let messages = vec![Message::User { content: "hi".to_owned() }];
        let tools = [ToolDefinition::new("echo", "returns", json!({"type": "object"}), ToolDomain::Orchestrator)];
        for (tools, max_tokens, temperature) in [(&tools[..], Some(5), Some(0.5)), (&[][..], None, None)] {
            let messages = Cow::Borrowed(messages.as_slice());
            let tool_choice = ToolChoice::Auto;
            let request =
                CompletionRequestRef { call_id: &call_id, messages, tools, tool_choice, max_tokens, temperature };
            let owned = CompletionRequest::from(&request);
            assert_eq!(serde_json::to_string(&request).unwrap(), serde_json::to_string(&owned).unwrap());
        }
    }
}
