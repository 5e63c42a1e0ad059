//! Reads usage and written text from Ollama's lines.

use serde_json::Value;

use crate::wire::{
    json::{count, items, text},
    usage_counter::{ReportedUsage, UsageCounter},
};

/// Processes one line.
pub(in crate::wire) fn read(_event: Option<&str>, line: &Value, counter: &mut UsageCounter) {
    let message = &line["message"];
    for written in [&message["content"], &message["thinking"]] {
        counter.wrote(text(written).unwrap_or_default());
    }
    for call in items(&message["tool_calls"]) {
        counter.wrote(text(&call["function"]["name"]).unwrap_or_default());
        match &call["function"]["arguments"] {
            Value::String(text) => counter.wrote(text),
            arguments => counter.wrote(&arguments.to_string()),
        }
    }
    counter.report(ReportedUsage {
        input: count(&line["prompt_eval_count"]),
        output: count(&line["eval_count"]),
        cache_read: count(&line["prompt_eval_cached_count"]),
        cache_write: None,
    });
    if line["done"] == true {
        counter.complete();
    }
}
