//! Builds Anthropic requests. Owns the cache marks and how thinking blocks are sent back to the provider.

use std::borrow::Cow;

use protocol::{Message, NativeReply, ToolCall, ToolChoice, ToolDefinition};
use serde_json::{Value, json};

use crate::{
    arguments,
    wire::{ForcedTool, RequestOptions, adapt::Adapted, json::text},
};

/// The maximum temperature of this format.
const MAX_TEMPERATURE: f64 = 1.0;
/// Replaces an empty text: the provider refuses empty blocks.
const EMPTY: &str = "(empty)";

pub(in crate::wire) fn body(request: &Adapted<'_>, options: &RequestOptions<'_>) -> Value {
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
    mark_requests(&mut messages);
    body["messages"] = Value::Array(messages);
    if let Some(temperature) = request.temperature.filter(|given| given.is_finite()) {
        body["temperature"] = json!(temperature.clamp(0.0, MAX_TEMPERATURE));
    }
    if let Some(effort) = options.effort {
        body["output_config"] = json!({"effort": effort});
    }
    let mut tools: Vec<Value> = request.tools.iter().map(|definition| tool(definition)).collect();
    if mark_last(&mut tools) {
        body["tools"] = Value::Array(tools);
        if let Some(choice) = tool_choice(request.tool_choice, options) {
            body["tool_choice"] = choice;
        }
    }
    body
}

/// Marks the end of this request, and that of the one before, which ended before the newest reply: the provider looks back
/// 20 blocks for what it has, and a reply with its results may have more.
fn mark_requests(messages: &mut [Value]) {
    let reply = messages.iter().rposition(|message| message["role"] == "assistant");
    let ends = [reply.and_then(|reply| reply.checked_sub(1)), messages.len().checked_sub(1)];
    for end in ends.into_iter().flatten() {
        if let Value::Array(blocks) = &mut messages[end]["content"] {
            mark_last(blocks);
        }
    }
}

/// Ends a cacheable prefix with the last block; false if there is none.
fn mark_last(blocks: &mut [Value]) -> bool {
    let Some(last) = blocks.last_mut() else { return false };
    // The provider refuses marks on these.
    if !is_thinking(last) {
        last["cache_control"] = json!({"type": "ephemeral"});
    }
    true
}

fn text_block(text: &str) -> Value {
    json!({"type": "text", "text": if text.trim().is_empty() { EMPTY } else { text }})
}

fn system(messages: &[Cow<'_, Message>]) -> Vec<Value> {
    let texts = messages.iter().filter_map(|message| match message.as_ref() {
        Message::System { content } if !content.trim().is_empty() => Some(text_block(content)),
        _ => None,
    });
    texts.collect()
}

fn messages(conversation: &[Cow<'_, Message>]) -> Vec<Value> {
    let mut messages = Vec::with_capacity(conversation.len());
    let mut results: Vec<Value> = Vec::new();
    for message in conversation.iter().map(Cow::as_ref) {
        if let Message::Tool { tool_call_id, content, .. } = message {
            results.push(json!({"type": "tool_result", "tool_use_id": tool_call_id, "content": content}));
            continue;
        }
        flush(&mut results, &mut messages);
        match message {
            Message::User { content } => messages.push(json!({"role": "user", "content": [text_block(content)]})),
            Message::Assistant { content, tool_calls, native } => {
                let blocks = assistant(content, tool_calls, native.as_ref());
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

fn assistant(content: &str, calls: &[ToolCall], native: Option<&NativeReply>) -> Vec<Value> {
    if let Some(NativeReply { value: Value::Array(parts), .. }) = native {
        return replayed(parts, calls);
    }
    let text = Some(content).filter(|text| !text.trim().is_empty()).map(text_block);
    text.into_iter().chain(calls.iter().map(tool_use)).collect()
}

/// A reply as the provider made it, of which a worker may have sent anything. Calls that were not run are left out, with the
/// thinking that would end the reply.
fn replayed(parts: &[Value], calls: &[ToolCall]) -> Vec<Value> {
    let mut calls = calls.iter();
    let block = |part: &Value| match part["type"].as_str() {
        Some("tool_use") => calls.next().map(tool_use),
        Some("text") => text(&part["text"]).filter(|text| !text.trim().is_empty()).map(text_block),
        _ => Some(part).filter(|part| is_thinking(part)).cloned(),
    };
    let mut blocks: Vec<Value> = parts.iter().filter_map(block).collect();
    while blocks.last().is_some_and(is_thinking) {
        blocks.pop();
    }
    blocks
}

fn is_thinking(block: &Value) -> bool {
    matches!(block["type"].as_str(), Some("thinking" | "redacted_thinking"))
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
