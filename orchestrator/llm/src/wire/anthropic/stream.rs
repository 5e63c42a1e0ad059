//! Assembles Anthropic messages from events, or decodes a complete one.

use protocol::{Completion, FinishReason, ToolCall};
use serde_json::{Value, json};

use super::usage::{self, kind};
use crate::{
    arguments,
    wire::{
        decoder::{Assembler, DecodeError, Delta, OnDelta, check_end, empty_completion, finish_reason, native},
        json::{items, string, text},
        usage_counter::UsageCounter,
    },
};

/// An answer that is being received.
#[derive(Default)]
pub(in crate::wire) struct MessageAssembler {
    blocks: Vec<(Option<u64>, Block)>,
    finish: Option<FinishReason>,
    /// The category of a refusal.
    refusal: Option<String>,
    has_end_mark: bool,
    counter: UsageCounter,
}

enum Block {
    Text(String),
    Thinking {
        text: String,
        signature: String,
    },
    /// Sent back to the provider unchanged.
    RedactedThinking(Value),
    ToolUse {
        id: String,
        name: String,
        /// The input of servers that send it with the beginning of the block.
        initial: Value,
        json: String,
    },
    /// Blocks of tools that the provider runs itself, and unknown blocks.
    Other,
}

impl Assembler for MessageAssembler {
    fn payload(&mut self, event: Option<&str>, value: &Value, on_delta: OnDelta<'_>) -> Result<(), DecodeError> {
        let kind = kind(event, value);
        if kind == "error" || !value["error"].is_null() {
            return Err(DecodeError::Provider(value.clone()));
        }
        usage::read(event, value, &mut self.counter);
        match kind {
            "content_block_start" => self.start(value["index"].as_u64(), &value["content_block"], on_delta),
            "content_block_delta" => self.extend(value["index"].as_u64(), &value["delta"], on_delta),
            "message_delta" => self.stop(&value["delta"]),
            "message_stop" => self.has_end_mark = true,
            "message" => {
                for block in items(&value["content"]) {
                    self.start(None, block, on_delta);
                }
                self.stop(value);
            }
            _ => {}
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
        check_end(self.finish, self.has_end_mark, self.blocks.is_empty())?;
        let mut completion = empty_completion();
        put_together(self.blocks.into_iter().map(|(_, block)| block).collect(), &mut completion);
        completion.finish_reason = finish_reason(self.finish, !completion.tool_calls.is_empty());
        Ok(completion)
    }
}

impl MessageAssembler {
    fn start(&mut self, index: Option<u64>, block: &Value, on_delta: OnDelta<'_>) {
        let block = match block["type"].as_str() {
            Some("text") => {
                let text = string(&block["text"]);
                if !text.is_empty() {
                    on_delta(Delta::Text(&text));
                }
                Block::Text(text)
            }
            Some("thinking") => {
                let (text, signature) = (string(&block["thinking"]), string(&block["signature"]));
                if !text.is_empty() {
                    on_delta(Delta::Reasoning(&text));
                }
                Block::Thinking { text, signature }
            }
            Some("redacted_thinking") => Block::RedactedThinking(block.clone()),
            Some("tool_use") => Block::ToolUse {
                id: string(&block["id"]),
                name: string(&block["name"]),
                initial: block["input"].clone(),
                json: String::new(),
            },
            _ => Block::Other,
        };
        self.blocks.push((index, block));
    }

    /// Adds to the newest block of this index. Some proxies leave out the beginning of a text block.
    fn extend(&mut self, index: Option<u64>, delta: &Value, on_delta: OnDelta<'_>) {
        let newest = match index {
            Some(_) => self.blocks.iter().rposition(|(own, _)| *own == index),
            None => self.blocks.len().checked_sub(1),
        };
        let at = newest.unwrap_or_else(|| {
            let block = match delta["type"].as_str() {
                Some("text_delta") => Block::Text(String::new()),
                Some("thinking_delta") => Block::Thinking { text: String::new(), signature: String::new() },
                _ => Block::Other,
            };
            self.blocks.push((index, block));
            self.blocks.len() - 1
        });
        match (&mut self.blocks[at].1, delta["type"].as_str()) {
            (Block::Text(content), Some("text_delta")) => {
                let more = text(&delta["text"]).unwrap_or_default();
                content.push_str(more);
                on_delta(Delta::Text(more));
            }
            (Block::Thinking { text: thinking, .. }, Some("thinking_delta")) => {
                let more = text(&delta["thinking"]).unwrap_or_default();
                thinking.push_str(more);
                on_delta(Delta::Reasoning(more));
            }
            (Block::Thinking { signature, .. }, Some("signature_delta")) => {
                signature.push_str(text(&delta["signature"]).unwrap_or_default());
            }
            (Block::ToolUse { json, .. }, Some("input_json_delta")) => {
                json.push_str(text(&delta["partial_json"]).unwrap_or_default());
            }
            _ => {}
        }
    }

    fn stop(&mut self, end: &Value) {
        self.finish = match end["stop_reason"].as_str() {
            None => self.finish,
            Some("end_turn" | "stop_sequence") => Some(FinishReason::Stop),
            // After `pause_turn` the model goes on when it is asked again.
            Some("max_tokens" | "model_context_window_exceeded" | "pause_turn") => Some(FinishReason::Length),
            Some("tool_use") => Some(FinishReason::ToolCalls),
            Some("refusal") => {
                self.refusal = Some(text(&end["stop_details"]["category"]).unwrap_or("refusal").to_owned());
                Some(FinishReason::ContentFilter)
            }
            Some(_) => Some(FinishReason::Other),
        };
    }
}

fn put_together(blocks: Vec<Block>, completion: &mut Completion) {
    let mut reasoning = String::new();
    let mut parts = Vec::new();
    let mut is_signed = false;
    for block in blocks {
        match block {
            Block::Text(text) => {
                completion.content.push_str(&text);
                parts.push(json!({"type": "text", "text": text}));
            }
            Block::Thinking { text, signature } => {
                reasoning.push_str(&text);
                // One that is not signed is of no use to its maker.
                if !signature.is_empty() {
                    is_signed = true;
                    parts.push(json!({"type": "thinking", "thinking": text, "signature": signature}));
                }
            }
            Block::RedactedThinking(block) => {
                is_signed = true;
                parts.push(block);
            }
            Block::ToolUse { id, name, initial, json } => {
                let arguments =
                    if json.trim().is_empty() && !initial.is_null() { initial } else { arguments::read(&json) };
                completion.tool_calls.push(ToolCall { id, name, arguments });
                parts.push(json!({"type": "tool_use"}));
            }
            Block::Other => {}
        }
    }
    completion.reasoning = Some(reasoning).filter(|text| !text.is_empty());
    completion.native = is_signed.then(|| native(Value::Array(parts)));
}
