//! Requests to a model and its answers, independent of any provider's wire.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{CallId, names::wire_enum};

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
        /// What goes back to the provider that made the reply, and to no other.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        native: Option<NativeReply>,
    },
    /// The result of one tool call.
    Tool {
        /// The call that this is the result of.
        tool_call_id: String,
        /// The tool's name.
        name: String,
        /// The text that the model reads.
        content: String,
    },
}

/// A call that a model asked for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The call's id, unique within the conversation.
    pub id: String,
    /// The tool.
    pub name: String,
    /// The arguments: an object when well-formed; a string holds what the model wrote when it was not JSON.
    pub arguments: Value,
}

/// A reply in the form of its provider: what it signed, encrypted or reasoned, in its order. Valid with the same provider
/// and model, behind the same beginning of the conversation, and only unchanged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NativeReply {
    /// Who reads it: the wire format, the provider's host and the model.
    pub maker: String,
    /// The reply's parts, as the maker's wire format has them; calls without their arguments, which are in the calls of the
    /// message.
    pub value: Value,
    /// The digest of the messages before it as the maker got them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<u64>,
}

/// Where a tool runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ToolDomain {
    /// In the orchestrator.
    Orchestrator,
    /// In the sandbox only: files and shell.
    Container,
}

/// A tool as the model sees it, and what a worker must know to call it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ToolDefinition {
    /// The tool's name.
    pub name: String,
    /// A description of the tool for the model.
    pub description: String,
    /// JSON Schema of the parameters.
    pub parameters: Value,
    /// Where the tool runs.
    pub domain: ToolDomain,
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
    /// A tool whose calls may run beside others.
    pub fn new(name: impl Into<String>, description: impl Into<String>, parameters: Value, domain: ToolDomain) -> Self {
        Self {
            name: name.into(),
            description: description.into(),
            parameters,
            domain,
            parallel: true,
            timeout_seconds: None,
        }
    }
}

/// Whether the model may call tools.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// No calls; definitions are still sent where a wire needs them.
    None,
}

wire_enum! {
    /// How much a model thinks before it answers. Models without such a choice are asked as usual.
    pub enum Effort {
        /// Little.
        Low,
        /// More.
        Medium,
        /// Much.
        High,
    }
}

wire_enum! {
    /// Why a reply ended.
    pub enum FinishReason {
        /// The model was done.
        Stop,
        /// The completion limit was reached.
        Length,
        /// The model calls tools.
        ToolCalls,
        /// The provider's content filter ended the reply.
        ContentFilter,
        /// Any other reason.
        #[serde(other)]
        Other,
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

/// A request to a model. The body of `llm/complete` and `llm/complete_with_tools`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CompletionRequest {
    /// The call's id; a repeated id gets the recorded answer.
    pub call_id: CallId,
    /// The conversation.
    pub messages: Vec<Message>,
    /// The tools that the model is offered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<ToolDefinition>,
    /// Whether the tools may be called.
    #[serde(default)]
    pub tool_choice: ToolChoice,
    /// Completion limit in tokens; clamped by the gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// Sampling temperature, 0–2; left to the provider when absent.
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
    /// The tool calls that the model asks for.
    #[serde(default)]
    pub tool_calls: Vec<ToolCall>,
    /// The model's reasoning, where the provider returns it.
    #[serde(default)]
    pub reasoning: Option<String>,
    /// What goes back to the provider with the reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub native: Option<NativeReply>,
    /// Why the reply ended.
    pub finish_reason: FinishReason,
    /// The tokens used.
    #[serde(default)]
    pub usage: TokenUsage,
    /// A notice of the orchestrator to the agent, such as a budget that runs low. Not part of the model's reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice: Option<String>,
    /// Whether tool calls that the model wrote as text are run. Absent where the setting of the first provider applies, which
    /// the loop was told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text_tool_calls: Option<bool>,
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
