//! Builds Ollama chat requests.

use std::borrow::Cow;

use protocol::{Message, ToolCall, ToolChoice, ToolDefinition};
use serde_json::{Value, json};

use crate::{
    arguments,
    wire::{RequestOptions, adapt::Adapted, json::text},
};

const MAX_TEMPERATURE: f64 = 2.0;

pub(in crate::wire) fn body(request: &Adapted<'_>, options: &RequestOptions<'_>) -> Value {
    let messages: Vec<Value> = request.messages.iter().filter_map(|sent| message(sent)).collect();
    // Without `num_ctx` the server silently truncates the prompt to its default.
    let mut settings = json!({"num_predict": options.max_output_tokens, "num_ctx": options.context_tokens});
    if let Some(temperature) = request.temperature.filter(|given| given.is_finite()) {
        settings["temperature"] = json!(temperature.clamp(0.0, MAX_TEMPERATURE));
    }
    let mut body = json!({"model": options.model, "messages": messages, "stream": true, "options": settings});
    if let Some(effort) = options.effort {
        body["think"] = json!(effort);
    }
    // This wire has no way to forbid tool calls.
    if !request.tools.is_empty() && request.tool_choice != ToolChoice::None {
        let tool = |tool: &Cow<'_, ToolDefinition>| {
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
        Message::Assistant { content, tool_calls, native } => {
            let mut message = json!({"role": "assistant", "content": content});
            if !tool_calls.is_empty() {
                message["tool_calls"] = tool_calls.iter().map(tool_call).collect();
                if let Some(thinking) = native.as_ref().and_then(|native| text(&native.value["thinking"])) {
                    message["thinking"] = json!(thinking);
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
