//! Tool arguments between what a model writes and what a wire takes, and the estimate of tokens where nobody counted.
//! Never judges whether arguments fit a tool.

use serde_json::{Map, Value, json};

/// What a model wrote, as a value: nothing at all is no arguments, and what is not JSON stays the text it is.
pub(super) fn read(written: &str) -> Value {
    if written.trim().is_empty() {
        return Value::Object(Map::new());
    }
    serde_json::from_str(written).unwrap_or_else(|_| Value::String(written.to_owned()))
}

/// Arguments on their way back to a provider: each wire takes an object only.
pub(super) fn as_object(arguments: &Value) -> Value {
    match arguments {
        Value::Object(_) => arguments.clone(),
        Value::Null => Value::Object(Map::new()),
        other => json!({ "invalid_arguments": other }),
    }
}

/// About four bytes a token; something is never nothing.
pub(super) fn tokens_of_bytes(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX).div_ceil(4)
}
