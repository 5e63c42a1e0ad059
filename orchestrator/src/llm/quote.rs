//! The estimated prompt tokens of a request, before it is sent: everything that is sent, tool definitions included.

use protocol::{CompletionRequest, Message, ToolCall, ToolDefinition};
use serde_json::Value;

use super::arguments::tokens_of_bytes;

/// A message's role and separators, in bytes.
const MESSAGE_BYTES: usize = 16;

/// The estimated prompt tokens of a request.
pub(super) fn prompt_tokens(request: &CompletionRequest) -> u64 {
    let messages: usize = request.messages.iter().map(message).sum();
    let tools: usize = request.tools.iter().map(tool).sum();
    tokens_of_bytes(messages + tools)
}

fn message(message: &Message) -> usize {
    let content = match message {
        Message::System { content } | Message::User { content } => text(content),
        Message::Tool { tool_call_id, name, content } => text(tool_call_id) + text(name) + text(content),
        Message::Assistant { content, tool_calls, reasoning } => {
            text(content) + reasoning.as_deref().map_or(0, text) + tool_calls.iter().map(call).sum::<usize>()
        }
    };
    content + MESSAGE_BYTES
}

fn call(call: &ToolCall) -> usize {
    let signatures: usize = call.thought_signatures.iter().map(|signature| text(signature)).sum();
    text(&call.id) + text(&call.name) + json(&call.arguments) + signatures + MESSAGE_BYTES
}

fn tool(tool: &ToolDefinition) -> usize {
    text(&tool.name) + text(&tool.description) + json(&tool.parameters) + MESSAGE_BYTES
}

/// The bytes of a text. Those outside ASCII count twice, since such characters are often a token each.
fn text(text: &str) -> usize {
    weigh(text.as_bytes())
}

fn weigh(bytes: &[u8]) -> usize {
    bytes.len() + bytes.iter().filter(|byte| !byte.is_ascii()).count()
}

/// The same of a value's JSON, without making it.
fn json(value: &Value) -> usize {
    struct Weight(usize);
    impl std::io::Write for Weight {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += weigh(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut weight = Weight(0);
    // Neither serialising a value nor counting can fail.
    let _ = serde_json::to_writer(&mut weight, value);
    weight.0
}
