//! Assembles chat completions from chunks, or decodes a complete one.

use protocol::{Completion, FinishReason};
use serde_json::Value;

use super::usage::{self, choice, part};
use crate::wire::{
    decoder::{Assembler, DecodeError, Delta, OnDelta, check_end, empty_completion, finish_reason},
    json::{items, text},
    tool_calls::ToolCallAssembler,
    usage_counter::UsageCounter,
};

/// An answer that is being received.
#[derive(Default)]
pub(in crate::wire) struct ChunkAssembler {
    content: String,
    reasoning: String,
    calls: ToolCallAssembler,
    finish: Option<FinishReason>,
    is_refusal: bool,
    has_end_mark: bool,
    counter: UsageCounter,
}

impl Assembler for ChunkAssembler {
    fn payload(&mut self, event: Option<&str>, chunk: &Value, on_delta: OnDelta<'_>) -> Result<(), DecodeError> {
        let choice = choice(chunk);
        let is_error = event == Some("error")
            || chunk["object"] == "error"
            || !chunk["error"].is_null()
            || !choice["error"].is_null();
        if is_error {
            let error = if choice["error"].is_null() { chunk } else { choice };
            return Err(DecodeError::Provider(error.clone()));
        }
        usage::read(event, chunk, &mut self.counter);
        let part = part(choice);
        if !items(&part["images"]).is_empty() {
            return Err(DecodeError::Image);
        }
        // Two names for the same field; some servers send both.
        if let Some(reasoning) = text(&part["reasoning_content"]).or_else(|| text(&part["reasoning"])) {
            self.reason(reasoning, on_delta);
        }
        self.take_content(&part["content"], on_delta)?;
        if let Some(refusal) = text(&part["refusal"]) {
            self.is_refusal = true;
            self.say(refusal, on_delta);
        }
        if let Value::Array(pieces) = &part["tool_calls"] {
            self.calls.take(pieces);
        }
        if part["function_call"].is_object() {
            self.calls.take(std::slice::from_ref(&part["function_call"]));
        }
        if let Some(reason) = text(&choice["finish_reason"]) {
            self.finish = Some(read_finish_reason(reason));
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
        let is_empty = self.content.is_empty() && self.reasoning.is_empty() && self.calls.is_empty();
        check_end(self.finish, self.has_end_mark, is_empty)?;
        let tool_calls = self.calls.into_calls();
        let reported = if self.is_refusal { Some(FinishReason::ContentFilter) } else { self.finish };
        Ok(Completion {
            content: self.content,
            finish_reason: finish_reason(reported, !tool_calls.is_empty()),
            tool_calls,
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

fn read_finish_reason(reason: &str) -> FinishReason {
    match reason.to_ascii_lowercase().as_str() {
        "stop" | "eos" | "eos_token" | "end_turn" | "stop_sequence" => FinishReason::Stop,
        "length" | "max_tokens" | "model_length" => FinishReason::Length,
        "tool_calls" | "function_call" | "tool_use" => FinishReason::ToolCalls,
        "content_filter" | "refusal" | "safety" => FinishReason::ContentFilter,
        _ => FinishReason::Other,
    }
}
