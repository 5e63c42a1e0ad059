//! Builds requests of OpenAI's responses API. The whole conversation is sent with each request; the provider stores
//! nothing.

use config::OpaqueBack;
use protocol::{Message, NativeReply, ToolCall, ToolDefinition};
use serde_json::{Value, json};

use crate::{
    arguments,
    wire::{
        RequestOptions,
        adapt::Adapted,
        json::items as parts_of,
        openai::{self, ToolShapes},
    },
};

pub(in crate::wire) fn body(request: &Adapted<'_>, options: &RequestOptions<'_>) -> Value {
    let input: Vec<Value> = request.messages.iter().flat_map(|message| items(message)).collect();
    let mut body = json!({
        "model": options.model,
        "input": input,
        "max_output_tokens": options.max_output_tokens,
        "store": false,
        "stream": true,
    });
    if options.dialect.opaque_back != Some(OpaqueBack::Never) {
        body["include"] = json!(["reasoning.encrypted_content"]);
    }
    if let Some(effort) = options.effort {
        body["reasoning"] = json!({"effort": effort});
    }
    openai::add_options(&mut body, request, options, &ToolShapes { tool, choice });
    body
}

fn items(message: &Message) -> Vec<Value> {
    // Parts of text that a model wrote need an id, a status and annotations; a string needs none of that.
    let message_item = |role: &str, text: &str| json!({"type": "message", "role": role, "content": text});
    match message {
        Message::System { content } => vec![message_item("system", content)],
        Message::User { content } => vec![message_item("user", content)],
        Message::Tool { tool_call_id, content, .. } => {
            vec![json!({"type": "function_call_output", "call_id": tool_call_id, "output": content})]
        }
        Message::Assistant { tool_calls, native: Some(NativeReply { value: Value::Array(parts), .. }), .. } => {
            replayed(parts, tool_calls)
        }
        Message::Assistant { content, tool_calls, .. } => {
            let text = Some(content).filter(|text| !text.trim().is_empty());
            let text = text.map(|text| message_item("assistant", text));
            text.into_iter().chain(tool_calls.iter().map(|call| function_call(&Value::Null, call))).collect()
        }
    }
}

/// A reply as the provider made it, of which a worker may have sent anything. Calls that were not run are left out, with the reasoning that led to them: it is refused
/// without what followed.
fn replayed(parts: &[Value], calls: &[ToolCall]) -> Vec<Value> {
    let mut calls = calls.iter();
    let item = |part: &Value| match part["type"].as_str() {
        Some("function_call") => calls.next().map(|call| function_call(part, call)),
        Some("message") => Some(part).filter(|part| is_said(part)).cloned(),
        _ => Some(part).filter(|part| part["type"] == "reasoning").cloned(),
    };
    let mut items: Vec<Value> = parts.iter().filter_map(item).collect();
    while items.last().is_some_and(|item| item["type"] == "reasoning") {
        items.pop();
    }
    items
}

fn is_said(item: &Value) -> bool {
    let is_text = |part: &Value| matches!(part["type"].as_str(), Some("output_text" | "refusal"));
    item["role"] == "assistant" && parts_of(&item["content"]).iter().all(is_text)
}

fn function_call(made: &Value, call: &ToolCall) -> Value {
    let arguments = arguments::as_object(&call.arguments).to_string();
    let mut item = json!({"type": "function_call", "call_id": call.id, "name": call.name, "arguments": arguments});
    if made["id"].is_string() {
        item["id"] = made["id"].clone();
    }
    item
}

fn tool(tool: &ToolDefinition) -> Value {
    json!({
        "type": "function", "name": tool.name, "description": tool.description, "parameters": tool.parameters,
        "strict": false,
    })
}

fn choice(name: &str) -> Value {
    json!({"type": "function", "name": name})
}
