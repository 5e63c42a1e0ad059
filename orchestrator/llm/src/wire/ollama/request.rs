//! Builds Ollama chat requests.

use protocol::{CompletionRequest, Message, ToolCall, ToolChoice};
use serde_json::{Value, json};

use crate::{arguments, wire::RequestOptions};

const MAX_TEMPERATURE: f64 = 2.0;

pub(in crate::wire) fn body(request: &CompletionRequest, options: &RequestOptions<'_>) -> Value {
    let messages: Vec<Value> = request.messages.iter().filter_map(message).collect();
    // Without `num_ctx` the server silently truncates the prompt to its default.
    let mut settings = json!({"num_predict": options.max_output_tokens, "num_ctx": options.context_tokens});
    if let Some(temperature) = request.temperature.filter(|given| given.is_finite()) {
        settings["temperature"] = json!(temperature.clamp(0.0, MAX_TEMPERATURE));
    }
    let mut body = json!({"model": options.model, "messages": messages, "stream": true, "options": settings});
    // This wire has no way to forbid tool calls.
    if !request.tools.is_empty() && request.tool_choice != ToolChoice::None {
        let tool = |tool: &protocol::ToolDefinition| {
            let function = json!({"name": tool.name, "description": tool.description, "parameters": tool.parameters});
            json!({"type": "function", "function": function})
        };
        body["tools"] = request.tools.iter().map(tool).collect();
    }
    body
}

fn message(message: &Message) -> Option<Value> {
    Some(match message {
        Message::System { content } => json!({"role": "system", "content": content}),
        Message::User { content } => json!({"role": "user", "content": content}),
        Message::Tool { tool_call_id, name, content } => {
            json!({"role": "tool", "tool_name": name, "tool_call_id": tool_call_id, "content": content})
        }
        Message::Assistant { content, tool_calls, .. } if content.trim().is_empty() && tool_calls.is_empty() => {
            return None;
        }
        Message::Assistant { content, tool_calls, reasoning } => {
            let mut message = json!({"role": "assistant", "content": content});
            if !tool_calls.is_empty() {
                message["tool_calls"] = tool_calls.iter().map(tool_call).collect();
                if let Some(reasoning) = reasoning {
                    message["thinking"] = json!(reasoning);
                }
            }
            message
        }
    })
}

fn tool_call(call: &ToolCall) -> Value {
    let arguments = arguments::as_object(&call.arguments);
    json!({"id": call.id, "function": {"name": call.name, "arguments": arguments}})
}
