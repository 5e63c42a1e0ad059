//! Assembles chat completions from chunks, or decodes a complete one.

use protocol::{Completion, FinishReason};
use serde_json::{Value, json};

use super::{
    CALLS, EXTRA_CONTENT, REASONING_DETAILS, REASONING_FIELDS,
    usage::{self, choice, part},
};
use crate::wire::{
    decoder::{self, Assembler, DecodeError, Delta, OnDelta, check_end, empty_completion, finish_reason},
    json::{items, text},
    tool_calls::ToolCallAssembler,
    usage_counter::UsageCounter,
};

/// An answer that is being received.
#[derive(Default)]
pub(in crate::wire) struct ChunkAssembler {
    content: String,
    reasoning: String,
    /// The field of the reasoning.
    reasoning_field: Option<&'static str>,
    details: Vec<Value>,
    extra: Value,
    calls: ToolCallAssembler,
    finish: Option<FinishReason>,
    /// The word for why there is no answer.
    refusal: Option<String>,
    has_end_mark: bool,
    counter: UsageCounter,
}

impl Assembler for ChunkAssembler {
    fn payload(&mut self, event: Option<&str>, chunk: &Value, on_delta: OnDelta<'_>) -> Result<(), DecodeError> {
        let choice = choice(chunk);
        let is_error = event == Some("error")
            || chunk["object"] == "error"
            || is_error_of(chunk)
            || is_error_of(choice)
            // MiniMax.
            || chunk["base_resp"]["status_code"].as_i64().is_some_and(|code| code != 0);
        if is_error {
            let error = if is_error_of(choice) { choice } else { chunk };
            return Err(DecodeError::Provider(error.clone()));
        }
        usage::read(event, chunk, &mut self.counter);
        let part = part(choice);
        if !items(&part["images"]).is_empty() {
            return Err(DecodeError::Image);
        }
        let mut named = REASONING_FIELDS.into_iter().rev().filter_map(|name| Some((name, text(&part[name])?)));
        if let Some((name, reasoning)) = named.next() {
            self.reasoning_field = Some(name);
            self.reason(reasoning, on_delta);
        }
        for detail in items(&part[REASONING_DETAILS]) {
            self.take_detail(detail);
        }
        if part[EXTRA_CONTENT].is_object() {
            self.extra = part[EXTRA_CONTENT].clone();
        }
        self.take_content(&part["content"], on_delta)?;
        if let Some(refusal) = text(&part["refusal"]) {
            self.refusal = Some("refusal".to_owned());
            self.say(refusal, on_delta);
        }
        if let Value::Array(pieces) = &part["tool_calls"] {
            self.calls.take(pieces);
        }
        if part["function_call"].is_object() {
            self.calls.take(std::slice::from_ref(&part["function_call"]));
        }
        if let Some(reason) = text(&choice["finish_reason"]) {
            let finish = read_finish_reason(reason)?;
            if finish == FinishReason::ContentFilter {
                self.refusal = Some(reason.to_lowercase());
            }
            self.finish = Some(finish);
        }
        Ok(())
    }

    fn end_mark(&mut self) {
        self.has_end_mark = true;
        self.counter.complete();
    }

    fn counter(&self) -> &UsageCounter {
        &self.counter
    }

    fn into_completion(self: Box<Self>) -> Result<Completion, DecodeError> {
        if let Some(category) = self.refusal {
            return Err(DecodeError::Refused(category));
        }
        let is_empty = self.content.is_empty() && self.reasoning.is_empty() && self.calls.is_empty();
        check_end(self.finish, self.has_end_mark, is_empty)?;
        let (tool_calls, signatures) = self.calls.into_calls();
        let native = native_parts(&self.reasoning, self.reasoning_field, self.details, self.extra, &signatures);
        Ok(Completion {
            content: self.content,
            finish_reason: finish_reason(self.finish, !tool_calls.is_empty()),
            tool_calls,
            native: native.map(decoder::native),
            reasoning: Some(self.reasoning).filter(|text| !text.is_empty()),
            ..empty_completion()
        })
    }
}

impl ChunkAssembler {
    fn say(&mut self, text: &str, on_delta: OnDelta<'_>) {
        self.content.push_str(text);
        on_delta(Delta::Text(text));
    }

    fn reason(&mut self, text: &str, on_delta: OnDelta<'_>) {
        self.reasoning.push_str(text);
        on_delta(Delta::Reasoning(text));
    }

    /// Details come in pieces, of which the later ones have what the first ones lack.
    fn take_detail(&mut self, detail: &Value) {
        if !detail.is_object() {
            return;
        }
        let last =
            self.details.last_mut().filter(|last| last["type"] == detail["type"] && last["index"] == detail["index"]);
        let Some(last) = last.filter(|_| detail["type"] != "reasoning.encrypted") else {
            return self.details.push(detail.clone());
        };
        for (name, value) in detail.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null()) {
            match (&mut last[name], value) {
                (Value::String(known), Value::String(more)) if matches!(name.as_str(), "text" | "summary") => {
                    known.push_str(more);
                }
                (known, value) => *known = value.clone(),
            }
        }
    }

    /// A text, or parts of several types.
    fn take_content(&mut self, content: &Value, on_delta: OnDelta<'_>) -> Result<(), DecodeError> {
        if let Some(content) = text(content) {
            self.say(content, on_delta);
        }
        for part in items(content) {
            match part["type"].as_str() {
                Some("image_url" | "image" | "output_image") => return Err(DecodeError::Image),
                // Mistral's reasoning: a list of texts.
                Some("thinking") => {
                    for inner in items(&part["thinking"]) {
                        self.reason(text(&inner["text"]).unwrap_or_default(), on_delta);
                    }
                }
                _ => self.say(text(&part["text"]).unwrap_or_default(), on_delta),
            }
        }
        Ok(())
    }
}

/// Whether a part says that something failed. Some servers have an empty error beside what they answer.
fn is_error_of(part: &Value) -> bool {
    match &part["error"] {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        _ => true,
    }
}

/// What goes back to the provider with the reply, if there is something. Plain reasoning does with the calls that it led to.
fn native_parts(
    reasoning: &str,
    field: Option<&'static str>,
    details: Vec<Value>,
    extra: Value,
    signatures: &[Option<Value>],
) -> Option<Value> {
    let mut parts = json!({});
    if let Some(field) = field.filter(|_| !signatures.is_empty()) {
        parts[field] = json!(reasoning);
    }
    if !details.is_empty() {
        parts[REASONING_DETAILS] = Value::Array(details);
    }
    if extra.is_object() {
        parts[EXTRA_CONTENT] = extra;
    }
    if signatures.iter().any(Option::is_some) {
        parts[CALLS] = json!(signatures);
    }
    Some(parts).filter(|parts| parts != &json!({}))
}

fn read_finish_reason(reason: &str) -> Result<FinishReason, DecodeError> {
    let broken = || DecodeError::Invalid(format!("the provider ended the answer with '{reason}'"));
    let word = reason.to_ascii_lowercase();
    Ok(match word.as_str() {
        "stop" | "eos" | "eos_token" | "end_turn" | "stop_sequence" => FinishReason::Stop,
        "length" | "max_tokens" | "model_length" | "model_context_window_exceeded" => FinishReason::Length,
        "tool_calls" | "function_call" | "tool_use" => FinishReason::ToolCalls,
        "content_filter" | "refusal" | "safety" | "sensitive" | "prohibited_content" | "new_sensitive" => {
            FinishReason::ContentFilter
        }
        // The text of a server that was cut off (KoboldCpp), and of one that gave up the request (vLLM).
        "null" | "abort" => return Err(DecodeError::Interrupted),
        // OpenRouter, Z.ai, DeepSeek: the generation broke.
        "error" | "network_error" | "insufficient_system_resource" => return Err(broken()),
        // Google writes `function_call_filter: ` before them.
        _ if word.ends_with("malformed_function_call") || word.ends_with("unexpected_tool_call") => {
            return Err(broken());
        }
        _ => FinishReason::Other,
    })
}
