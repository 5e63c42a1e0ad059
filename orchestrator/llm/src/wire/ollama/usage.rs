//! Reads usage and written text from Ollama's lines.

use serde_json::Value;

use crate::wire::{
    json::{count, items, text},
    meter::{Reported, UsageMeter},
};

/// Processes one line.
pub(in crate::wire) fn read(_event: Option<&str>, line: &Value, meter: &mut UsageMeter) {
    let message = &line["message"];
    for written in [&message["content"], &message["thinking"]] {
        meter.wrote(text(written).unwrap_or_default());
    }
    for call in items(&message["tool_calls"]) {
        meter.wrote(text(&call["function"]["name"]).unwrap_or_default());
        match &call["function"]["arguments"] {
            Value::String(text) => meter.wrote(text),
            arguments => meter.wrote(&arguments.to_string()),
        }
    }
    meter.report(Reported {
        input: count(&line["prompt_eval_count"]),
        output: count(&line["eval_count"]),
        cache_read: count(&line["prompt_eval_cached_count"]),
        cache_write: None,
    });
    if line["done"] == true {
        meter.complete();
    }
}
