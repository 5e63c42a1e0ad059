//! Reads usage and written text from the responses API's events.

use serde_json::Value;

use crate::wire::{
    json::{count, items, text},
    usage_counter::{ReportedUsage, UsageCounter},
};

/// Processes one event, or a complete response.
pub(in crate::wire) fn read(event: Option<&str>, value: &Value, counter: &mut UsageCounter) {
    let kind = kind(event, value);
    if kind.rsplit('.').next() == Some("delta") {
        counter.wrote(text(&value["delta"]).unwrap_or_default());
    }
    match kind {
        "response.output_item.added" => counter.wrote(text(&value["item"]["name"]).unwrap_or_default()),
        "response.completed" | "response.incomplete" | "response.failed" => end(&value["response"], counter),
        _ if value["object"] == "response" => {
            for item in items(&value["output"]) {
                let contents = items(&item["content"]).iter().map(|part| &part["text"]);
                for written in contents.chain([&item["name"], &item["arguments"]]) {
                    counter.wrote(text(written).unwrap_or_default());
                }
            }
            end(value, counter);
        }
        _ => {}
    }
}

/// The event's type; some proxies name it in the event only.
pub(super) fn kind<'a>(event: Option<&'a str>, value: &'a Value) -> &'a str {
    value["type"].as_str().or(event).unwrap_or_default()
}

fn end(response: &Value, counter: &mut UsageCounter) {
    let usage = &response["usage"];
    counter.report(ReportedUsage {
        input: count(&usage["input_tokens"]),
        output: count(&usage["output_tokens"]),
        cache_read: count(&usage["input_tokens_details"]["cached_tokens"]),
        cache_write: count(&usage["input_tokens_details"]["cache_write_tokens"]),
    });
    counter.complete();
}
