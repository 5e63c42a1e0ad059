//! Tool arguments between what a model writes and what a wire takes, and the estimate of tokens where the provider
//! reports none. Never judges whether arguments fit a tool.

use serde_json::{Map, Value, json};

/// The arguments that a model wrote: an empty text is an empty object, and what is not JSON stays text.
pub(super) fn read(written: &str) -> Value {
    if written.trim().is_empty() {
        return Value::Object(Map::new());
    }
    serde_json::from_str(written).unwrap_or_else(|_| Value::String(written.to_owned()))
}

/// Arguments on their way back to a provider; each wire takes objects only.
pub(super) fn as_object(arguments: &Value) -> Value {
    match arguments {
        Value::Object(_) => arguments.clone(),
        Value::Null => Value::Object(Map::new()),
        other => json!({ "invalid_arguments": other }),
    }
}

/// Bytes of English text or code in a token, on average.
const BYTES_PER_TOKEN: usize = 4;

/// The estimate for ASCII text, rounded up.
pub(super) fn tokens_of_bytes(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX).div_ceil(BYTES_PER_TOKEN as u64)
}

/// The estimate for any text: characters outside ASCII take two to four bytes and often a token each.
pub(super) fn tokens_of_text(text: &str) -> u64 {
    let others = text.bytes().filter(|byte| !byte.is_ascii()).count();
    tokens_of_bytes(text.len() + others)
}
