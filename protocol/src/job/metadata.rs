//! A job's metadata: the caller's own JSON object, kept as text.
//!
//! Owns its shape and its limit. Never becomes a tree of values: reading one copies its text, and ends where the limit
//! is reached, however much follows.

use std::fmt;

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{DeserializeSeed, MapAccess, SeqAccess, Visitor},
    ser::Error as _,
};
use serde_json::value::RawValue;

use crate::limits::MAX_METADATA_BYTES;

/// The JSON text of an object, without white space around its parts.
#[derive(Clone, PartialEq, Eq)]
pub struct Metadata(String);

impl Metadata {
    /// The JSON text.
    pub fn as_json(&self) -> &str {
        &self.0
    }

    /// Whether it has no members.
    pub fn is_empty(&self) -> bool {
        self.0 == "{}"
    }
}

impl Default for Metadata {
    fn default() -> Self {
        Self("{}".to_owned())
    }
}

impl fmt::Debug for Metadata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for Metadata {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let raw: &RawValue = serde_json::from_str(&self.0).map_err(S::Error::custom)?;
        raw.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Object)
    }
}

/// The outermost object.
struct Object;

impl<'de> Visitor<'de> for Object {
    type Value = Metadata;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Metadata, A::Error> {
        let mut text = Text::default();
        Copy(&mut text).visit_map(map)?;
        Ok(Metadata(text.0))
    }
}

/// The text so far.
#[derive(Default)]
struct Text(String);

impl Text {
    fn push<E: serde::de::Error>(&mut self, part: &str) -> Result<(), E> {
        if self.0.len() + part.len() > MAX_METADATA_BYTES {
            return Err(E::custom(format!("must be at most {MAX_METADATA_BYTES} bytes of JSON")));
        }
        self.0.push_str(part);
        Ok(())
    }

    fn push_value<T: Serialize, E: serde::de::Error>(&mut self, value: T) -> Result<(), E> {
        self.push(&serde_json::to_string(&value).map_err(E::custom)?)
    }

    fn push_string<E: serde::de::Error>(&mut self, value: &str) -> Result<(), E> {
        // Quoting makes no text shorter, so what is too long is not quoted first.
        if value.len() > MAX_METADATA_BYTES { self.push(value) } else { self.push_value(value) }
    }
}

/// Copies one value.
struct Copy<'a>(&'a mut Text);

impl<'de> DeserializeSeed<'de> for Copy<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Copy<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<(), E> {
        self.0.push("null")
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<(), E> {
        self.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<(), E> {
        self.0.push_value(value)
    }

    fn visit_i64<E: serde::de::Error>(self, value: i64) -> Result<(), E> {
        self.0.push_value(value)
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<(), E> {
        self.0.push_value(value)
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<(), E> {
        self.0.push_value(value)
    }

    fn visit_str<E: serde::de::Error>(self, value: &str) -> Result<(), E> {
        self.0.push_string(value)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let mut before = "[";
        loop {
            let mut item = Part { text: &mut *self.0, before };
            if items.next_element_seed(&mut item)?.is_none() {
                break;
            }
            before = ",";
        }
        self.0.push(if before == "[" { "[]" } else { "]" })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<(), A::Error> {
        let mut before = "{";
        loop {
            let mut key = Part { text: &mut *self.0, before };
            if members.next_key_seed(&mut key)?.is_none() {
                break;
            }
            members.next_value_seed(&mut Part { text: &mut *self.0, before: ":" })?;
            before = ",";
        }
        self.0.push(if before == "{" { "{}" } else { "}" })
    }
}

/// A value with what stands before it, which is written only when there is one.
struct Part<'a> {
    text: &'a mut Text,
    before: &'static str,
}

impl<'de> DeserializeSeed<'de> for &mut Part<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        self.text.push(self.before)?;
        Copy(&mut *self.text).deserialize(deserializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Metadata, serde_json::Error> {
        serde_json::from_str(text)
    }

    #[test]
    fn metadata_is_kept_unchanged() {
        for (given, kept) in [
            ("{}", "{}"),
            (
                r#" { "a" : [ 1 , -2.5 , true , null , "x\n\"" , {} , [] ] , "b" : { "c" : "ä" } } "#,
                r#"{"a":[1,-2.5,true,null,"x\n\"",{},[]],"b":{"c":"ä"}}"#,
            ),
            (r#"{"z":1,"a":2,"z":3}"#, r#"{"z":1,"a":2,"z":3}"#),
        ] {
            let metadata = read(given).unwrap();
            assert_eq!(metadata.as_json(), kept);
            assert_eq!(serde_json::to_string(&metadata).unwrap(), kept);
            let tree = serde_json::to_value(&metadata).unwrap();
            assert_eq!(
                serde_json::from_value::<Metadata>(tree.clone()).unwrap().as_json().len(),
                tree.to_string().len()
            );
        }
        assert!(read("{}").unwrap().is_empty() && Metadata::default().is_empty());
    }

    #[test]
    fn it_is_an_object() {
        for wrong in ["null", "[]", "1", "\"x\""] {
            assert!(read(wrong).unwrap_err().to_string().contains("expected an object"), "{wrong}");
        }
    }

    #[test]
    fn its_limit_is_that_of_its_text() {
        let of = |bytes: usize| format!(r#"{{"a":"{}"}}"#, "x".repeat(bytes - r#"{"a":""}"#.len()));
        assert_eq!(read(&of(MAX_METADATA_BYTES)).unwrap().as_json().len(), MAX_METADATA_BYTES);
        let many = format!(r#"{{"a":[{}0],"b":{{"c":1}}}}"#, "0,".repeat(MAX_METADATA_BYTES));
        for large in [of(MAX_METADATA_BYTES + 1), many, format!(r#"{{"{}":1}}"#, "k".repeat(MAX_METADATA_BYTES))] {
            let error = read(&large).unwrap_err().to_string();
            assert!(error.starts_with("must be at most 65536 bytes"), "{error}");
        }
    }
}
