//! The policy for relayed requests: the operator decides the model, the output limit and the tools. Owns the parts of
//! patching and estimating that the wires share.

use serde_json::{Map, Value};

use super::json;
use crate::arguments::tokens_of_text;

/// An image costs about this many tokens whatever the size of its file; the providers scale large ones down.
const IMAGE_TOKENS: u64 = 2_000;
/// Punctuation and the name of a field, in bytes.
const FIELD_BYTES: usize = 4;

/// The limits that a request is patched to.
#[derive(Debug, Clone, Copy)]
pub struct RelayPolicy<'a> {
    /// The model that is asked, whatever the client names.
    pub model: &'a str,
    /// Maximum completion tokens.
    pub max_output_tokens: u64,
    /// The largest context, where a request can set it.
    pub context_tokens: u64,
}

/// Properties of a patched request that a relay needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patched {
    /// The answer will be a stream.
    pub is_stream: bool,
    /// The stream will report its usage although the client did not ask for it.
    pub usage_was_added: bool,
}

/// Identifiers of people, and settings that change where data is kept or what a token costs.
const DROPPED: &[&str] =
    &["metadata", "user", "safety_identifier", "client_metadata", "service_tier", "background", "speed"];

/// Removes the fields that no client may set.
pub(super) fn drop_fields(body: &mut Map<String, Value>, more: &[&str]) {
    for field in DROPPED.iter().chain(more) {
        body.shift_remove(*field);
    }
}

/// Limits a count. A value that is not a positive number becomes the limit.
pub(super) fn clamp(value: &mut Value, limit: u64) {
    let allowed = json::count(value).filter(|count| (1..=limit).contains(count));
    *value = Value::from(allowed.unwrap_or(limit));
}

/// Keeps the tools that the client runs itself. If none is left, the fields that require tools are removed as well.
pub(super) fn keep_tools(body: &mut Map<String, Value>, runs_at_client: impl Fn(&Value) -> bool, needing: &[&str]) {
    let Some(tools) = body.get_mut("tools") else { return };
    let Some(list) = tools.as_array_mut() else {
        body.shift_remove("tools");
        return;
    };
    list.retain(runs_at_client);
    if list.is_empty() {
        body.shift_remove("tools");
        for field in needing {
            body.shift_remove(*field);
        }
    }
}

/// The estimated tokens of a request body.
pub(super) fn estimate(body: &Value) -> u64 {
    let mut images = 0;
    let tokens = tokens(body, &mut images);
    tokens.saturating_add(images * IMAGE_TOKENS).max(1)
}

fn tokens(value: &Value, images: &mut u64) -> u64 {
    match value {
        Value::Null | Value::Bool(_) => 1,
        Value::Number(number) => tokens_of_text(&number.to_string()),
        Value::String(text) if text.starts_with("data:image/") => {
            *images += 1;
            0
        }
        Value::String(text) => tokens_of_text(text),
        Value::Array(items) => items.iter().map(|item| tokens(item, images)).sum(),
        Value::Object(fields) => fields.iter().map(|(name, field)| field_tokens(name, field, fields, images)).sum(),
    }
}

fn field_tokens(name: &str, field: &Value, fields: &Map<String, Value>, images: &mut u64) -> u64 {
    let is_image_data = match name {
        // Anthropic: {"type": "base64", "media_type": "image/png", "data": …}.
        "data" => fields.get("media_type").and_then(Value::as_str).is_some_and(|kind| kind.starts_with("image/")),
        // Ollama: a list of base64 texts beside the message's content.
        "images" => fields.contains_key("role"),
        _ => false,
    };
    if is_image_data {
        *images += field.as_array().map_or(1, |list| list.len() as u64);
        return 0;
    }
    tokens(field, images) + ((name.len() + FIELD_BYTES) as u64).div_ceil(4)
}
