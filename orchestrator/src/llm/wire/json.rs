//! Accessors for JSON values, shared by the codecs.

use serde_json::{Map, Value};

/// A string that is not empty.
pub(super) fn text(value: &Value) -> Option<&str> {
    value.as_str().filter(|text| !text.is_empty())
}

/// A string; anything else is empty.
pub(super) fn string(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// A token count. Some servers write it as a float.
pub(super) fn count(value: &Value) -> Option<u64> {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to be positive and finite")]
    let of_float = |number: f64| (number.is_finite() && number >= 0.0).then_some(number as u64);
    value.as_u64().or_else(|| value.as_f64().and_then(of_float))
}

/// The items of an array; none for any other value.
pub(super) fn items(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

/// The value as an object; any other value is replaced by an empty object.
pub(super) fn object(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = Value::Object(Map::new());
    }
    match value {
        Value::Object(fields) => fields,
        _ => unreachable!("it was made an object above"),
    }
}
