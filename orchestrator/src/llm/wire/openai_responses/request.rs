//! Builds requests of OpenAI's responses API. The conversation is always sent whole and kept nowhere.

use protocol::{CompletionRequest, Message, ToolCall, ToolChoice, ToolDefinition};
use serde_json::{Value, json};

use crate::llm::{
    arguments,
    wire::{ForcedTool, RequestOptions},
};

/// The format's upper end.
const MAX_TEMPERATURE: f64 = 2.0;

pub(in crate::llm::wire) fn body(request: &CompletionRequest, options: &RequestOptions<'_>) -> Value {
    let input: Vec<Value> = request.messages.iter().flat_map(items).collect();
    let mut body = json!({
        "model": options.model,
        "input": input,
        "max_output_tokens": options.max_output_tokens,
        "store": false,
        "stream": true,
    });
    if let Some(temperature) = request.temperature.filter(|given| given.is_finite()) {
        body["temperature"] = json!(temperature.clamp(0.0, MAX_TEMPERATURE));
    }
    if !request.tools.is_empty() {
        body["tools"] = request.tools.iter().map(tool).collect();
        if let Some(choice) = tool_choice(request.tool_choice, options.forced_tool) {
            body["tool_choice"] = choice;
        }
        if let Some(parallel) = options.parallel_tool_calls {
            body["parallel_tool_calls"] = json!(parallel);
        }
    }
    body
}

fn items(message: &Message) -> Vec<Value> {
    let said = |role: &str, kind: &str, text: &str| json!({"type": "message", "role": role, "content": [{"type": kind, "text": text}]});
    match message {
        Message::System { content } => vec![said("system", "input_text", content)],
        Message::User { content } => vec![said("user", "input_text", content)],
        Message::Tool { tool_call_id, content, .. } => {
            vec![json!({"type": "function_call_output", "call_id": tool_call_id, "output": content})]
        }
        Message::Assistant { content, tool_calls, .. } => {
            let mut items: Vec<Value> = tool_calls.first().into_iter().flat_map(reasoning).collect();
            if !content.trim().is_empty() {
                items.push(said("assistant", "output_text", content));
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

/// The reasoning items that came before a call. One that is not encrypted is known to the provider only by an id that it
/// did not keep.
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

fn tool_choice(choice: ToolChoice, forced: Option<ForcedTool<'_>>) -> Option<Value> {
    match (choice, forced) {
        (ToolChoice::None, _) => Some(json!("none")),
        (ToolChoice::Auto, None) => None,
        (ToolChoice::Auto, Some(ForcedTool::Any)) => Some(json!("required")),
        (ToolChoice::Auto, Some(ForcedTool::Named(name))) => Some(json!({"type": "function", "name": name})),
    }
}
