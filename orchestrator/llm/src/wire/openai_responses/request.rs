//! Builds requests of OpenAI's responses API. The whole conversation is sent with each request; the provider stores
//! nothing.

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
    let input: Vec<Value> = request.messages.iter().flat_map(items).collect();
    let mut body = json!({
        "model": options.model,
        "input": input,
        "max_output_tokens": options.max_output_tokens,
        "store": false,
        "stream": true,
    });
    openai::add_options(&mut body, request, options, &ToolShapes { tool, choice });
    body
}

fn items(message: &Message) -> Vec<Value> {
    let message_item = |role: &str, kind: &str, text: &str| json!({"type": "message", "role": role, "content": [{"type": kind, "text": text}]});
    match message {
        Message::System { content } => vec![message_item("system", "input_text", content)],
        Message::User { content } => vec![message_item("user", "input_text", content)],
        Message::Tool { tool_call_id, content, .. } => {
            vec![json!({"type": "function_call_output", "call_id": tool_call_id, "output": content})]
        }
        Message::Assistant { content, tool_calls, .. } => {
            let mut items: Vec<Value> = tool_calls.first().into_iter().flat_map(reasoning).collect();
            if !content.trim().is_empty() {
                items.push(message_item("assistant", "output_text", content));
            }
            for (at, call) in tool_calls.iter().enumerate() {
                if at > 0 {
                    items.extend(reasoning(call));
                }
                items.push(function_call(call));
            }
            items
        }
    }
}

/// The reasoning items that came before a call. One that is not encrypted is known to the provider only by an id that
/// it did not keep.
fn reasoning(call: &ToolCall) -> Vec<Value> {
    let known = call.thought_signatures.iter().filter_map(|signature| serde_json::from_str::<Value>(signature).ok());
    known.filter(|item| item["type"] == "reasoning" && item["encrypted_content"].is_string()).collect()
}

fn function_call(call: &ToolCall) -> Value {
    let arguments = arguments::as_object(&call.arguments).to_string();
    json!({"type": "function_call", "call_id": call.id, "name": call.name, "arguments": arguments})
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
