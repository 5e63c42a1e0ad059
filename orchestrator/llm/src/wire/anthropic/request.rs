//! Builds Anthropic requests. Owns the cache marks and how thinking blocks are sent back to the provider.

use protocol::{CompletionRequest, Message, ToolCall, ToolChoice, ToolDefinition};
use serde_json::{Value, json};

use crate::{
    arguments,
    wire::{ForcedTool, RequestOptions},
};

/// The maximum temperature of this format.
const MAX_TEMPERATURE: f64 = 1.0;
/// Replaces an empty text: the provider refuses empty blocks.
const EMPTY: &str = "(empty)";

pub(in crate::wire) fn body(request: &CompletionRequest, options: &RequestOptions<'_>) -> Value {
    let mut body = json!({
        "model": options.model,
        "max_tokens": options.max_output_tokens,
        "stream": true,
    });
    // Each call of a conversation repeats the previous one: the prefix that is marked here is read from the cache by
    // the next call.
    let mut system = system(&request.messages);
    if mark_last(&mut system) {
        body["system"] = Value::Array(system);
    }
    let mut messages = messages(&request.messages);
    if let Some(Value::Array(last)) = messages.last_mut().map(|message| &mut message["content"]) {
        mark_last(last);
    }
    body["messages"] = Value::Array(messages);
    if let Some(temperature) = request.temperature.filter(|given| given.is_finite()) {
        body["temperature"] = json!(temperature.clamp(0.0, MAX_TEMPERATURE));
    }
    let mut tools: Vec<Value> = request.tools.iter().map(tool).collect();
    if mark_last(&mut tools) {
        body["tools"] = Value::Array(tools);
        if let Some(choice) = tool_choice(request.tool_choice, options) {
            body["tool_choice"] = choice;
        }
    }
    body
}

/// Ends a cacheable prefix with the last block; false if there is none.
fn mark_last(blocks: &mut [Value]) -> bool {
    let Some(last) = blocks.last_mut() else { return false };
    // The provider refuses marks on these.
    if !matches!(last["type"].as_str(), Some("thinking" | "redacted_thinking")) {
        last["cache_control"] = json!({"type": "ephemeral"});
    }
    true
}

fn text_block(text: &str) -> Value {
    json!({"type": "text", "text": if text.trim().is_empty() { EMPTY } else { text }})
}

fn system(messages: &[Message]) -> Vec<Value> {
    let texts = messages.iter().filter_map(|message| match message {
        Message::System { content } if !content.trim().is_empty() => Some(text_block(content)),
        _ => None,
    });
    texts.collect()
}

fn messages(conversation: &[Message]) -> Vec<Value> {
    let mut messages = Vec::with_capacity(conversation.len());
    let mut results: Vec<Value> = Vec::new();
    for message in conversation {
        if let Message::Tool { tool_call_id, content, .. } = message {
            results.push(json!({"type": "tool_result", "tool_use_id": tool_call_id, "content": content}));
            continue;
        }
        flush(&mut results, &mut messages);
        match message {
            Message::User { content } => messages.push(json!({"role": "user", "content": [text_block(content)]})),
            Message::Assistant { content, tool_calls, reasoning } => {
                let blocks = assistant(content, tool_calls, reasoning.as_deref());
                if !blocks.is_empty() {
                    messages.push(json!({"role": "assistant", "content": blocks}));
                }
            }
            Message::System { .. } | Message::Tool { .. } => {}
        }
    }
    flush(&mut results, &mut messages);
    messages
}

/// The results of one reply belong into one message.
fn flush(results: &mut Vec<Value>, messages: &mut Vec<Value>) {
    if !results.is_empty() {
        messages.push(json!({"role": "user", "content": std::mem::take(results)}));
    }
}

/// Thinking comes before everything else, and before the call that it belongs to.
fn assistant(content: &str, calls: &[ToolCall], reasoning: Option<&str>) -> Vec<Value> {
    let mut blocks = Vec::new();
    let (first, others) = calls.split_at(calls.len().min(1));
    for call in first {
        thinking(call, reasoning, &mut blocks);
    }
    if !content.trim().is_empty() {
        blocks.push(text_block(content));
    }
    blocks.extend(first.iter().map(tool_use));
    for call in others {
        thinking(call, reasoning, &mut blocks);
        blocks.push(tool_use(call));
    }
    blocks
}

/// The counterpart of the decoder: a plain signature signs the reasoning, everything else is a whole block.
fn thinking(call: &ToolCall, reasoning: Option<&str>, blocks: &mut Vec<Value>) {
    for signature in call.thought_signatures.iter().filter(|signature| !signature.is_empty()) {
        match serde_json::from_str::<Value>(signature) {
            Ok(block) if matches!(block["type"].as_str(), Some("thinking" | "redacted_thinking")) => blocks.push(block),
            // Signatures of other wires are not valid here.
            Ok(Value::Object(_)) => {}
            _ => blocks.push(json!({
                "type": "thinking", "thinking": reasoning.unwrap_or_default(), "signature": signature,
            })),
        }
    }
}

fn tool_use(call: &ToolCall) -> Value {
    json!({"type": "tool_use", "id": call.id, "name": call.name, "input": arguments::as_object(&call.arguments)})
}

fn tool(tool: &ToolDefinition) -> Value {
    json!({"name": tool.name, "description": tool.description, "input_schema": tool.parameters})
}

fn tool_choice(choice: ToolChoice, options: &RequestOptions<'_>) -> Option<Value> {
    let mut choice = match (choice, options.forced_tool) {
        (ToolChoice::None, _) => return Some(json!({"type": "none"})),
        (ToolChoice::Auto, None) => {
            options.parallel_tool_calls?;
            json!({"type": "auto"})
        }
        (ToolChoice::Auto, Some(ForcedTool::Any)) => json!({"type": "any"}),
        (ToolChoice::Auto, Some(ForcedTool::Named(name))) => json!({"type": "tool", "name": name}),
    };
    if let Some(parallel) = options.parallel_tool_calls {
        choice["disable_parallel_tool_use"] = json!(!parallel);
    }
    Some(choice)
}
