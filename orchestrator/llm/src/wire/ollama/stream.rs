//! Assembles Ollama's answers from lines.

use protocol::{Completion, FinishReason, ToolCall};
use serde_json::{Value, json};

use super::usage;
use crate::{
    arguments,
    wire::{
        decoder::{Assembler, DecodeError, Delta, OnDelta, empty_completion, finish_reason, native},
        json::{items, string, text},
        usage_counter::UsageCounter,
    },
};

/// An answer that is being received.
#[derive(Default)]
pub(in crate::wire) struct LineAssembler {
    content: String,
    reasoning: String,
    calls: Vec<ToolCall>,
    finish: Option<FinishReason>,
    counter: UsageCounter,
}

impl Assembler for LineAssembler {
    fn payload(&mut self, _event: Option<&str>, line: &Value, on_delta: OnDelta<'_>) -> Result<(), DecodeError> {
        if !line["error"].is_null() {
            return Err(DecodeError::Provider(line.clone()));
        }
        usage::read(None, line, &mut self.counter);
        let message = &line["message"];
        if !items(&message["images"]).is_empty() {
            return Err(DecodeError::Image);
        }
        if let Some(more) = text(&message["thinking"]) {
            self.reasoning.push_str(more);
            on_delta(Delta::Reasoning(more));
        }
        if let Some(more) = text(&message["content"]) {
            self.content.push_str(more);
            on_delta(Delta::Text(more));
        }
        // Calls are never split on this wire.
        self.calls.extend(items(&message["tool_calls"]).iter().map(tool_call));
        if line["done"] == true {
            self.finish = Some(match line["done_reason"].as_str() {
                None | Some("stop") => FinishReason::Stop,
                Some("length") => FinishReason::Length,
                Some(_) => FinishReason::Other,
            });
        }
        Ok(())
    }

    fn end_mark(&mut self) {}

    fn counter(&self) -> &UsageCounter {
        &self.counter
    }

    fn into_completion(self: Box<Self>) -> Result<Completion, DecodeError> {
        let Some(finish) = self.finish else { return Err(DecodeError::Interrupted) };
        Ok(Completion {
            finish_reason: finish_reason(Some(finish), !self.calls.is_empty()),
            content: self.content,
            native: Some(&self.reasoning)
                .filter(|thinking| !thinking.is_empty() && !self.calls.is_empty())
                .map(|thinking| native(json!({"thinking": thinking}))),
            tool_calls: self.calls,
            reasoning: Some(self.reasoning).filter(|text| !text.is_empty()),
            ..empty_completion()
        })
    }
}

fn tool_call(call: &Value) -> ToolCall {
    let function = &call["function"];
    let arguments = match &function["arguments"] {
        Value::String(text) => arguments::read(text),
        Value::Null => arguments::read(""),
        given => given.clone(),
    };
    ToolCall { id: string(&call["id"]), name: string(&function["name"]), arguments }
}
