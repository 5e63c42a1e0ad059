//! Patches a client's chat completion request to comply with a policy.

use serde_json::{Value, json};

use crate::wire::{
    json::object,
    policy::{Patched, RelayPolicy, clamp, drop_fields, keep_tools},
};

/// `n` and `best_of` multiply the output; the others run at the provider or keep data there.
const DROPPED: &[&str] = &["n", "best_of", "web_search_options", "store"];

pub(in crate::wire) fn patch(body: &mut Value, policy: &RelayPolicy<'_>) -> Patched {
    let body = object(body);
    body.insert("model".to_owned(), json!(policy.model));
    drop_fields(body, DROPPED);
    let mut is_limited = false;
    for field in ["max_tokens", "max_completion_tokens"] {
        if let Some(limit) = body.get_mut(field).filter(|limit| !limit.is_null()) {
            clamp(limit, policy.max_output_tokens);
            is_limited = true;
        }
    }
    if !is_limited {
        body.insert("max_completion_tokens".to_owned(), json!(policy.max_output_tokens));
    }
    keep_tools(
        body,
        |tool| matches!(tool["type"].as_str(), Some("function" | "custom")),
        &["tool_choice", "parallel_tool_calls"],
    );
    let is_stream = body.get("stream").and_then(Value::as_bool) == Some(true);
    let mut usage_was_added = false;
    if is_stream {
        let options = object(body.entry("stream_options").or_insert_with(|| json!({})));
        usage_was_added = options.insert("include_usage".to_owned(), json!(true)) != Some(json!(true));
    }
    Patched { is_stream, usage_was_added }
}
