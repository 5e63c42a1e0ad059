//! Reads usage and written text from chat completion chunks.

use serde_json::Value;

use crate::wire::{
    json::{count, items, text},
    tool_calls::arguments_of,
    usage_counter::{ReportedUsage, UsageCounter},
};

/// Processes one chunk, or a complete answer.
pub(in crate::wire) fn read(_event: Option<&str>, chunk: &Value, counter: &mut UsageCounter) {
    let choice = choice(chunk);
    // Moonshot reports usage in the choice, Groq in a separate field.
    for usage in [&choice["usage"], &chunk["x_groq"]["usage"], &chunk["usage"]] {
        if usage.is_object() {
            counter.report(counts(usage));
        }
    }
    let part = part(choice);
    for written in [&part["reasoning_content"], &part["reasoning"], &part["refusal"]] {
        counter.wrote(text(written).unwrap_or_default());
    }
    match &part["content"] {
        Value::Array(parts) => parts.iter().for_each(|part| counter.wrote(text(&part["text"]).unwrap_or_default())),
        content => counter.wrote(text(content).unwrap_or_default()),
    }
    let calls = items(&part["tool_calls"]).iter().chain(Some(&part["function_call"]).filter(|call| call.is_object()));
    for call in calls {
        let name = text(&call["function"]["name"]).or_else(|| text(&call["name"]));
        counter.wrote(name.unwrap_or_default());
        counter.wrote(arguments_of(call).unwrap_or_default());
    }
    if text(&choice["finish_reason"]).is_some() {
        counter.complete();
    }
}

/// The only choice that was requested.
pub(super) fn choice(chunk: &Value) -> &Value {
    let choices = items(&chunk["choices"]);
    let is_first = |choice: &&Value| choice["index"].as_u64().is_none_or(|index| index == 0);
    choices.iter().find(is_first).unwrap_or(&Value::Null)
}

/// The delta of a chunk, or the message of a complete answer.
pub(super) fn part(choice: &Value) -> &Value {
    if choice["delta"].is_object() { &choice["delta"] } else { &choice["message"] }
}

fn counts(usage: &Value) -> ReportedUsage {
    let details = &usage["prompt_tokens_details"];
    let first = |values: [&Value; 3]| values.into_iter().find_map(count);
    let (input, output) = (count(&usage["prompt_tokens"]), count(&usage["completion_tokens"]));
    // Google, xAI and others leave reasoning out of the completion; the total has it.
    let rest = count(&usage["total_tokens"]).zip(input).map(|(total, input)| total.saturating_sub(input));
    ReportedUsage {
        input,
        output: output.max(rest),
        cache_read: first([
            &details["cached_tokens"],
            // DeepSeek's name and Moonshot's.
            &usage["prompt_cache_hit_tokens"],
            &usage["cached_tokens"],
        ]),
        cache_write: first([
            &details["cache_write_tokens"],
            // LiteLLM's names for Anthropic behind it.
            &details["cache_creation_tokens"],
            &usage["cache_creation_input_tokens"],
        ]),
    }
}
