//! Reads usage and written text from Anthropic's events.

use serde_json::Value;

use crate::wire::{
    json::{count, items, text},
    usage_counter::{ReportedUsage, UsageCounter},
};

/// Processes one event, or a complete message.
pub(in crate::wire) fn read(event: Option<&str>, value: &Value, counter: &mut UsageCounter) {
    match kind(event, value) {
        "message_start" => counter.report_excluding_cache(counts(&value["message"]["usage"])),
        "content_block_start" => read_block(&value["content_block"], counter),
        "content_block_delta" => {
            let delta = &value["delta"];
            for written in [&delta["text"], &delta["thinking"], &delta["partial_json"]] {
                counter.wrote(text(written).unwrap_or_default());
            }
        }
        "message_delta" => {
            counter.report_excluding_cache(counts(&value["usage"]));
            if value["delta"]["stop_reason"].is_string() {
                counter.complete();
            }
        }
        "message_stop" => counter.complete(),
        "message" => {
            counter.report_excluding_cache(counts(&value["usage"]));
            for block in items(&value["content"]) {
                read_block(block, counter);
            }
            counter.complete();
        }
        _ => {}
    }
}

/// The event's type; some proxies name it in the event only.
pub(super) fn kind<'a>(event: Option<&'a str>, value: &'a Value) -> &'a str {
    value["type"].as_str().or(event).unwrap_or_default()
}

fn read_block(block: &Value, counter: &mut UsageCounter) {
    for written in [&block["text"], &block["thinking"], &block["name"]] {
        counter.wrote(text(written).unwrap_or_default());
    }
    if let Some(input) = block["input"].as_object().filter(|input| !input.is_empty()) {
        counter.wrote(&Value::Object(input.clone()).to_string());
    }
}

fn counts(usage: &Value) -> ReportedUsage {
    ReportedUsage {
        input: count(&usage["input_tokens"]),
        output: count(&usage["output_tokens"]),
        cache_read: count(&usage["cache_read_input_tokens"]),
        cache_write: count(&usage["cache_creation_input_tokens"]),
    }
}
