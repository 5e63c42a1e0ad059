//! Builds chat completion requests.

use protocol::{CompletionRequest, Message, ToolCall, ToolDefinition};
use serde_json::{Value, json};

use crate::{
    arguments,
    wire::{
        RequestOptions,
        openai::{self, ToolShapes},
    },
};

pub(in crate::wire) fn body(request: &CompletionRequest, options: &RequestOptions<'_>) -> Value {
    let messages: Vec<Value> = request.messages.iter().filter_map(message).collect();
    let mut body = json!({
        "model": options.model,
        "messages": messages,
        "stream": true,
        "stream_options": {"include_usage": true},
    });
    body[options.output_limit_field.as_str()] = json!(options.max_output_tokens);
    openai::add_options(&mut body, request, options, &ToolShapes { tool, choice });
    body
}

fn message(message: &Message) -> Option<Value> {
    Some(match message {
        Message::System { content } => json!({"role": "system", "content": content}),
        Message::User { content } => json!({"role": "user", "content": content}),
        Message::Tool { tool_call_id, content, .. } => {
            json!({"role": "tool", "tool_call_id": tool_call_id, "content": content})
        }
        // Some servers refuse an empty message.
        Message::Assistant { content, tool_calls, .. } if content.trim().is_empty() && tool_calls.is_empty() => {
            return None;
        }
        Message::Assistant { content, tool_calls, reasoning } => assistant(content, tool_calls, reasoning.as_deref()),
    })
}

fn assistant(content: &str, calls: &[ToolCall], reasoning: Option<&str>) -> Value {
    if calls.is_empty() {
        return json!({"role": "assistant", "content": content});
    }
    let content = if content.trim().is_empty() { Value::Null } else { json!(content) };
    let calls: Vec<Value> = calls.iter().map(tool_call).collect();
    let mut message = json!({"role": "assistant", "content": content, "tool_calls": calls});
    // Servers that return reasoning with a tool call expect it back with the call's result.
    if let Some(reasoning) = reasoning {
        message["reasoning_content"] = json!(reasoning);
    }
    message
}

fn tool_call(call: &ToolCall) -> Value {
    let arguments = arguments::as_object(&call.arguments).to_string();
    let mut sent = json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}});
    for signature in &call.thought_signatures {
        // As stored by this wire's decoder; signatures of other wires are not valid here.
        let known = serde_json::from_str::<Value>(signature).ok();
        if let Some(extra) = known.as_ref().map(|known| &known["extra_content"]).filter(|extra| extra.is_object()) {
            sent["extra_content"] = extra.clone();
        }
    }
    sent
}

fn tool(tool: &ToolDefinition) -> Value {
    let function = json!({"name": tool.name, "description": tool.description, "parameters": tool.parameters});
    json!({"type": "function", "function": function})
}

fn choice(name: &str) -> Value {
    json!({"type": "function", "function": {"name": name}})
}
