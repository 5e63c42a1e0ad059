//! From the client library's end of a stream to a completion.

use genai::chat::{ContentPart, MessageContent, StopReason, StreamEnd, Usage};
use protocol::{Completion, FinishReason, TokenUsage, ToolCall};
use serde_json::{Map, Value, json};

pub(super) fn completion(end: StreamEnd, estimate: TokenUsage) -> Completion {
    let usage = end.captured_usage.map_or(estimate, |told| usage(&told, estimate));
    let parts = end.captured_content.map(MessageContent::into_parts).unwrap_or_default();
    let mut content = String::new();
    let mut tool_calls = Vec::new();
    let mut thinking = Vec::new();
    for part in parts {
        match part {
            ContentPart::Text(text) => content.push_str(&text),
            ContentPart::ToolCall(call) => tool_calls.push(tool_call(call)),
            ContentPart::ThoughtSignature(signature) => {
                thinking.push(json!({"type": "thinking", "thinking": "", "signature": signature}));
            }
            ContentPart::ReasoningContent(text) => {
                if let Some(block) = thinking.last_mut() {
                    block["thinking"] = Value::String(text);
                }
            }
            ContentPart::Custom(custom) => thinking.push(custom.data),
            ContentPart::Binary(_) | ContentPart::ToolResponse(_) => {}
        }
    }
    if let Some(first) = tool_calls.first_mut() {
        first.thought_signatures = signatures(&thinking);
    }
    let finish_reason = finish_reason(end.captured_stop_reason.as_ref(), !tool_calls.is_empty());
    let reasoning = end.captured_reasoning_content.filter(|text| !text.is_empty());
    Completion { content, tool_calls, reasoning, finish_reason, usage, notice: None }
}

/// One signed block is its signature, the reasoning travels in its own field; of several each is kept whole.
fn signatures(thinking: &[Value]) -> Vec<String> {
    match thinking {
        [block] if block["type"] == "thinking" => block["signature"].as_str().map(str::to_owned).into_iter().collect(),
        _ => thinking.iter().map(Value::to_string).collect(),
    }
}

fn tool_call(call: genai::chat::ToolCall) -> ToolCall {
    let arguments = match call.fn_arguments {
        Value::Null => Value::Object(Map::new()),
        Value::String(text) if text.trim().is_empty() => Value::Object(Map::new()),
        other => other,
    };
    ToolCall { id: call.call_id, name: call.fn_name, arguments, thought_signatures: Vec::new() }
}

fn finish_reason(told: Option<&StopReason>, calls: bool) -> FinishReason {
    match told {
        // Some providers say "stop" of a reply that asks for tools.
        Some(StopReason::Completed(_) | StopReason::StopSequence(_)) | None if calls => FinishReason::ToolCalls,
        Some(StopReason::Completed(_) | StopReason::StopSequence(_)) | None => FinishReason::Stop,
        Some(StopReason::MaxTokens(_)) => FinishReason::Length,
        Some(StopReason::ToolCall(_)) => FinishReason::ToolCalls,
        Some(StopReason::ContentFilter(_)) => FinishReason::ContentFilter,
        Some(StopReason::Other(_)) => FinishReason::Other,
    }
}

/// What the provider counted; what it did not is estimated.
fn usage(told: &Usage, estimate: TokenUsage) -> TokenUsage {
    let count = |tokens: Option<i32>| tokens.and_then(|tokens| u64::try_from(tokens).ok());
    let cache = told.prompt_tokens_details.as_ref();
    TokenUsage {
        input_tokens: count(told.prompt_tokens).unwrap_or(estimate.input_tokens),
        output_tokens: count(told.completion_tokens).unwrap_or(estimate.output_tokens),
        cache_read_tokens: count(cache.and_then(|cache| cache.cached_tokens)).unwrap_or(0),
        cache_write_tokens: count(cache.and_then(|cache| cache.cache_creation_tokens)).unwrap_or(0),
    }
}
