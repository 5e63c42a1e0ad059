//! Builds chat completion requests.

use config::{Dialect, EmptyContent, Field, OpaqueBack, ReasoningBack};
use protocol::{Message, ToolCall, ToolDefinition};
use serde_json::{Value, json};

use crate::{
    arguments,
    wire::{
        RequestOptions,
        adapt::Adapted,
        json::{items, text},
        openai::{self, ToolShapes},
    },
};

use super::{CALLS, EXTRA_CONTENT, REASONING_DETAILS, REASONING_FIELDS};

pub(in crate::wire) fn body(request: &Adapted<'_>, options: &RequestOptions<'_>) -> Value {
    let dialect = options.dialect;
    let messages: Vec<Value> = request.messages.iter().filter_map(|sent| message(sent, dialect)).collect();
    let mut body = json!({"model": options.model, "messages": messages, "stream": true});
    if dialect.stream_options != Some(Field::Omit) {
        body["stream_options"] = json!({"include_usage": true});
    }
    body[dialect.output_limit.unwrap_or_default().as_str()] = json!(options.max_output_tokens);
    if let Some(effort) = options.effort {
        body["reasoning_effort"] = json!(effort);
    }
    openai::add_options(&mut body, request, options, &ToolShapes { tool, choice });
    body
}

fn message(message: &Message, dialect: &Dialect) -> Option<Value> {
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
        Message::Assistant { content, tool_calls, native } => {
            assistant(content, tool_calls, native.as_ref().map(|native| &native.value), dialect)
        }
    })
}

fn assistant(content: &str, calls: &[ToolCall], native: Option<&Value>, dialect: &Dialect) -> Value {
    let native = native.unwrap_or(&Value::Null);
    let is_empty = content.trim().is_empty();
    let sent_content = match dialect.empty_content.unwrap_or_default() {
        EmptyContent::Null if is_empty => Value::Null,
        EmptyContent::Text if is_empty => json!(""),
        _ => json!(content),
    };
    let mut message = json!({"role": "assistant", "content": sent_content});
    if !calls.is_empty() {
        message["tool_calls"] = calls.iter().map(tool_call).collect();
        add_reasoning(&mut message, content, native, dialect.reasoning_back.unwrap_or_default());
        add_signatures(&mut message, native, dialect.opaque_back == Some(OpaqueBack::Placeholder));
    }
    let takes_details = dialect.reasoning_back != Some(ReasoningBack::Never);
    for (name, is_taken) in [(REASONING_DETAILS, takes_details), (EXTRA_CONTENT, true)] {
        if is_taken && !native[name].is_null() {
            message[name] = native[name].clone();
        }
    }
    message
}

fn add_reasoning(message: &mut Value, content: &str, native: &Value, back: ReasoningBack) {
    let came = REASONING_FIELDS.into_iter().find_map(|name| Some((name, text(&native[name])?)));
    match (back, came) {
        (ReasoningBack::AsReceived | ReasoningBack::Always, Some((name, reasoning))) => {
            message[name] = json!(reasoning);
        }
        (ReasoningBack::Always, None) => message[REASONING_FIELDS[0]] = json!(""),
        (ReasoningBack::ThinkText, Some((_, reasoning))) => {
            message["content"] = json!(format!("<think>{reasoning}</think>{content}"));
        }
        (ReasoningBack::Never, _) | (ReasoningBack::AsReceived | ReasoningBack::ThinkText, None) => {}
    }
}

/// Google's signatures of calls. It refuses a call without one, and takes a placeholder for those of other models.
fn add_signatures(message: &mut Value, native: &Value, needs_one: bool) {
    let Value::Array(calls) = &mut message["tool_calls"] else { return };
    for (call, extra) in calls.iter_mut().zip(items(&native[CALLS])) {
        if extra.is_object() {
            call[EXTRA_CONTENT] = extra.clone();
        }
    }
    if needs_one && calls[0][EXTRA_CONTENT].is_null() {
        calls[0][EXTRA_CONTENT] = json!({"google": {"thought_signature": "skip_thought_signature_validator"}});
    }
}

fn tool_call(call: &ToolCall) -> Value {
    let arguments = arguments::as_object(&call.arguments).to_string();
    json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments}})
}

fn tool(tool: &ToolDefinition) -> Value {
    let function = json!({"name": tool.name, "description": tool.description, "parameters": tool.parameters});
    json!({"type": "function", "function": function})
}

fn choice(name: &str) -> Value {
    json!({"type": "function", "function": {"name": name}})
}
