//! Patches a client's Ollama chat request to comply with a policy.

use serde_json::{Value, json};

use crate::wire::{
    json::object,
    policy::{Patched, RelayPolicy, clamp, drop_fields},
};

/// The client could keep the model in memory for any time.
const DROPPED: &[&str] = &["keep_alive"];

pub(in crate::wire) fn patch(body: &mut Value, policy: &RelayPolicy<'_>) -> Patched {
    let body = object(body);
    body.insert("model".to_owned(), json!(policy.model));
    drop_fields(body, DROPPED);
    let options = object(body.entry("options").or_insert_with(|| json!({})));
    clamp(options.entry("num_predict").or_insert(Value::Null), policy.max_output_tokens);
    clamp(options.entry("num_ctx").or_insert(Value::Null), policy.context_tokens);
    // This wire streams by default, and always reports its usage.
    let is_stream = body.get("stream").and_then(Value::as_bool) != Some(false);
    Patched { is_stream, usage_was_added: false }
}
