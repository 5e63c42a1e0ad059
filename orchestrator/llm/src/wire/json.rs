//! Accessors for JSON values, shared by the codecs.

use serde_json::{Map, Value};

use super::halves;

/// Length of `\uXXXX`.
const ESCAPE_BYTES: usize = 6;

/// How deep the text of a value nests, read piece by piece, so that it is parsed only when it may be complete.
#[derive(Debug, Default)]
pub(super) struct Nesting {
    depth: usize,
    in_string: bool,
    after_backslash: bool,
}

impl Nesting {
    pub(super) fn read(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if std::mem::take(&mut self.after_backslash) {
                continue;
            }
            match byte {
                b'"' => self.in_string = !self.in_string,
                b'\\' => self.after_backslash = self.in_string,
                b'{' | b'[' if !self.in_string => self.depth += 1,
                b'}' | b']' if !self.in_string => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
        }
    }

    /// Whether an object or a list has begun and not ended.
    pub(super) const fn is_open(&self) -> bool {
        self.depth > 0
    }
}

/// Parses a payload. Servers that cut a text anywhere send parts of characters: bytes that are not UTF-8, and halves of
/// surrogate pairs. Those are replaced by marks (`halves`).
pub(super) fn parse(data: &[u8]) -> serde_json::Result<Value> {
    serde_json::from_slice(data).or_else(|_| serde_json::from_str(&with_marks(data)))
}

fn with_marks(data: &[u8]) -> String {
    let mut text = String::with_capacity(data.len());
    for chunk in data.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|byte| halves::of_byte(*byte)));
    }
    let mut whole = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(at) = rest.find('\\') {
        whole.push_str(&rest[..at]);
        rest = &rest[at..];
        let (first, second) = (surrogate(rest), rest.get(ESCAPE_BYTES..).and_then(surrogate));
        let kept = match (first, second) {
            (Some(0xd800..=0xdbff), Some(0xdc00..=0xdfff)) => 2 * ESCAPE_BYTES,
            (Some(_), _) => 0,
            (None, _) => 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
        };
        match first.filter(|_| kept == 0) {
            Some(lone) => whole.push(halves::of_surrogate(lone)),
            None => whole.push_str(&rest[..kept]),
        }
        rest = &rest[kept.max(first.map_or(0, |_| ESCAPE_BYTES))..];
    }
    whole.push_str(rest);
    whole
}

/// The surrogate whose escape begins a text.
fn surrogate(text: &str) -> Option<u16> {
    let digits = text.strip_prefix("\\u")?.get(..ESCAPE_BYTES - 2)?;
    u16::from_str_radix(digits, 16).ok().filter(|unit| (0xd800..=0xdfff).contains(unit))
}

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
