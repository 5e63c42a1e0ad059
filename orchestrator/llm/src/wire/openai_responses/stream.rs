//! Assembles responses from events, or decodes a complete one.

use protocol::{Completion, FinishReason, ToolCall};
use serde_json::{Value, json};

use super::usage::{self, kind};
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
pub(in crate::wire) struct ResponseAssembler {
    outputs: Vec<Output>,
    end: Option<FinishReason>,
    counter: UsageCounter,
}

/// One output item. Its deltas are replaced by the complete item when that arrives.
#[derive(Default)]
struct Output {
    index: Option<u64>,
    id: String,
    item: Value,
    text: String,
    arguments: String,
    reasoning: String,
    is_refusal: bool,
}

impl Assembler for ResponseAssembler {
    fn payload(&mut self, event: Option<&str>, value: &Value, on_delta: OnDelta<'_>) -> Result<(), DecodeError> {
        let kind = kind(event, value);
        if kind == "error" || !value["error"].is_null() {
            return Err(DecodeError::Provider(value.clone()));
        }
        usage::read(event, value, &mut self.counter);
        match kind {
            "response.failed" => return Err(failed(&value["response"])),
            "response.output_item.added" | "response.output_item.done" => {
                self.output(kind, value).item = value["item"].clone();
            }
            "response.output_text.delta" | "response.refusal.delta" => {
                let more = text(&value["delta"]).unwrap_or_default();
                let output = self.output(kind, value);
                output.text.push_str(more);
                output.is_refusal |= kind == "response.refusal.delta";
                on_delta(Delta::Text(more));
            }
            "response.function_call_arguments.delta" => {
                let more = text(&value["delta"]).unwrap_or_default();
                self.output(kind, value).arguments.push_str(more);
            }
            "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" => {
                let more = text(&value["delta"]).unwrap_or_default();
                self.output(kind, value).reasoning.push_str(more);
                on_delta(Delta::Reasoning(more));
            }
            "response.completed" | "response.incomplete" => return self.finish(&value["response"], on_delta),
            _ if value["object"] == "response" => return self.finish(value, on_delta),
            _ => {}
        }
        Ok(())
    }

    fn end_mark(&mut self) {}

    fn counter(&self) -> &UsageCounter {
        &self.counter
    }

    fn into_completion(mut self: Box<Self>) -> Result<Completion, DecodeError> {
        let Some(end) = self.end else { return Err(DecodeError::Interrupted) };
        if self.outputs.iter().all(|output| output.index.is_some()) {
            self.outputs.sort_by_key(|output| output.index);
        }
        let mut completion = empty_completion();
        let is_refusal = put_together(&self.outputs, &mut completion)?;
        if is_refusal || end == FinishReason::ContentFilter {
            let category = if is_refusal { "refusal" } else { "content_filter" };
            return Err(DecodeError::Refused(category.to_owned()));
        }
        completion.finish_reason = finish_reason(Some(end), !completion.tool_calls.is_empty());
        Ok(completion)
    }
}

impl ResponseAssembler {
    /// The output item that an event is about. An event with neither index nor id adds an item or is about the newest
    /// one.
    fn output(&mut self, kind: &str, event: &Value) -> &mut Output {
        let index = event["output_index"].as_u64();
        let id = text(&event["item_id"]).or_else(|| text(&event["item"]["id"])).unwrap_or_default();
        let position = |is_it: &dyn Fn(&Output) -> bool| self.outputs.iter().rposition(is_it);
        let known = match index {
            Some(_) => position(&|output| output.index == index),
            None if !id.is_empty() => position(&|output| output.id == id),
            None if kind == "response.output_item.added" => None,
            None => self.outputs.len().checked_sub(1),
        };
        let at = known.unwrap_or_else(|| {
            self.outputs.push(Output { index, id: id.to_owned(), ..Output::default() });
            self.outputs.len() - 1
        });
        &mut self.outputs[at]
    }

    fn finish(&mut self, response: &Value, on_delta: OnDelta<'_>) -> Result<(), DecodeError> {
        if !response["error"].is_null() || response["status"] == "failed" {
            return Err(failed(response));
        }
        if self.outputs.is_empty() {
            let whole = items(&response["output"]).iter();
            for item in whole {
                for part in items(&item["content"]).iter().filter(|part| part["type"] == "output_text") {
                    on_delta(Delta::Text(text(&part["text"]).unwrap_or_default()));
                }
                self.outputs.push(Output { item: item.clone(), ..Output::default() });
            }
        }
        // Some servers have calls in the final event alone.
        let is_known = |call: &Value| self.outputs.iter().any(|output| output.item["call_id"] == call["call_id"]);
        let calls = items(&response["output"]).iter().filter(|item| item["type"] == "function_call");
        let missing: Vec<Value> = calls.filter(|call| !is_known(call)).cloned().collect();
        self.outputs.extend(missing.into_iter().map(|item| Output { item, ..Output::default() }));
        self.end = Some(match response["incomplete_details"]["reason"].as_str() {
            None => FinishReason::Stop,
            Some("content_filter") => FinishReason::ContentFilter,
            // `max_output_tokens`, `max_messages` and others: the answer is not complete.
            Some(_) => FinishReason::Length,
        });
        Ok(())
    }
}

/// The error of a response, without the conversation and the tools that stand beside it.
fn failed(response: &Value) -> DecodeError {
    DecodeError::Provider(json!({"error": response["error"], "status": response["status"]}))
}

/// Whether the model refused.
fn put_together(outputs: &[Output], completion: &mut Completion) -> Result<bool, DecodeError> {
    let mut reasoning = String::new();
    let mut parts = Vec::new();
    let mut is_encrypted = false;
    let mut is_refusal = false;
    for output in outputs {
        let item = &output.item;
        is_refusal |= output.is_refusal;
        match item["type"].as_str() {
            Some("function_call") => {
                let written = text(&item["arguments"]).unwrap_or(&output.arguments);
                completion.tool_calls.push(ToolCall {
                    id: text(&item["call_id"]).map_or_else(|| string(&item["id"]), str::to_owned),
                    name: string(&item["name"]),
                    arguments: arguments::read(written),
                });
                parts.push(json!({"type": "function_call", "id": item["id"]}));
            }
            Some("reasoning") => {
                let texts = items(&item["summary"]).iter().chain(items(&item["content"]));
                let whole: String = texts.filter_map(|part| text(&part["text"])).collect();
                reasoning.push_str(if whole.is_empty() { &output.reasoning } else { &whole });
                // One that is not encrypted is known to the provider only by an id that it did not keep.
                if item["encrypted_content"].is_string() {
                    is_encrypted = true;
                    parts.push(item.clone());
                }
            }
            Some("image_generation_call") => return Err(DecodeError::Image),
            _ => {
                let mut whole = String::new();
                for part in items(&item["content"]) {
                    is_refusal |= part["type"] == "refusal";
                    whole.push_str(text(&part["text"]).or_else(|| text(&part["refusal"])).unwrap_or_default());
                }
                let is_whole = !whole.is_empty();
                let whole = if is_whole { &whole } else { &output.text };
                completion.content.push_str(whole);
                match is_whole {
                    true => parts.push(item.clone()),
                    false if whole.is_empty() => {}
                    false => parts.push(json!({
                        "type": "message", "role": "assistant", "content": [{"type": "output_text", "text": whole}],
                    })),
                }
            }
        }
    }
    completion.reasoning = Some(reasoning).filter(|text| !text.is_empty());
    // Some models want the phase of what they said back.
    let is_needed = is_encrypted || parts.iter().any(|part| part["phase"].is_string());
    completion.native = is_needed.then(|| native(Value::Array(parts)));
    Ok(is_refusal)
}
