//! Refuses arrays in place of objects.
//!
//! A derived deserializer also accepts a struct's fields as an array (`"limits": []` is all defaults). The API's schema does not,
//! so a body is checked against its type once more, with arrays refused for structs.

use serde::{
    Deserializer,
    de::{
        DeserializeOwned, Error as _, IntoDeserializer, Unexpected, Visitor,
        value::{MapDeserializer, SeqDeserializer},
    },
    forward_to_deserialize_any,
};
use serde_json::{Error, Value};

/// Finds an array in place of an object in `bytes`, which have been parsed as a `T` already.
pub(super) fn check<T: DeserializeOwned>(bytes: &[u8]) -> Result<(), (String, Error)> {
    read::<T>(bytes).map(drop)
}

/// Parses `bytes` as a `T`, with arrays refused for structs. The text is parsed once and its strings are moved, so this needs no
/// more memory than the value. The last of duplicate fields wins.
pub(super) fn read<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, (String, Error)> {
    let value: Value = serde_json::from_slice(bytes).map_err(|error| (".".to_owned(), error))?;
    serde_path_to_error::deserialize(Strict(value)).map_err(|error| (error.path().to_string(), error.into_inner()))
}

struct Strict(Value);

impl IntoDeserializer<'_, Error> for Strict {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

impl<'de> Deserializer<'de> for Strict {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Array(items) => {
                let mut items = SeqDeserializer::new(items.into_iter().map(Strict));
                let value = visitor.visit_seq(&mut items)?;
                items.end()?;
                Ok(value)
            }
            Value::Object(fields) => {
                let mut fields = MapDeserializer::new(fields.into_iter().map(|(name, value)| (name, Strict(value))));
                let value = visitor.visit_map(&mut fields)?;
                fields.end()?;
                Ok(value)
            }
            plain => plain.deserialize_any(visitor),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.0 {
            Value::Array(_) => Err(Error::invalid_type(Unexpected::Seq, &"an object")),
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.0 {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _name: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.0.deserialize_enum(name, variants, visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use protocol::{CreateJob, PromptRequest};
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(r#"{"prompt":"p","limits":[]}"#, "limits")]
    #[case(r#"{"prompt":"p","limits":[60]}"#, "limits")]
    #[case(r#"{"prompt":"p","files":[["a","b",null]]}"#, "files[0]")]
    #[case(r#"{"prompt":"p","egress":{"allow":[],"inject":[["h","x","s"]]}}"#, "egress.inject[0]")]
    fn an_array_in_an_objects_place_is_found(#[case] body: &str, #[case] path: &str) {
        assert!(serde_json::from_str::<CreateJob>(body).is_ok(), "else this check would not be needed");
        assert_eq!(check::<CreateJob>(body.as_bytes()).unwrap_err().0, path);
    }

    proptest! {
        #[test]
        fn whatever_the_types_themselves_write_passes(
            content in any::<String>(),
            priority in any::<i32>(),
            labels in prop::collection::btree_map(any::<String>(), any::<String>(), 0..3),
            cpus in prop::option::of(0.0..100.0),
            mode in prop::option::of(Just(protocol::JobMode::Command)),
        ) {
            let limits = cpus.map(|cpus| protocol::LimitsRequest { cpus: Some(cpus), ..Default::default() });
            let job = CreateJob { prompt: content.clone(), priority, labels, limits, mode, ..CreateJob::default() };
            let bytes = serde_json::to_vec(&job).unwrap();
            prop_assert!(check::<CreateJob>(&bytes).is_ok());
            let prompt = PromptRequest { content, mode: protocol::PromptMode::Queue, done: true };
            prop_assert!(check::<PromptRequest>(&serde_json::to_vec(&prompt).unwrap()).is_ok());
        }
    }
}
