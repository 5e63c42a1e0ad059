//! Reads query parameters.
//!
//! Owns their syntax and the messages about it. An empty value is a value: `limit=` is no integer. Never knows what a value means.

use std::collections::BTreeMap;

use percent_encoding::percent_decode_str;
use protocol::FieldError;
use serde::{
    Deserializer,
    de::{
        DeserializeOwned, Error as _, IntoDeserializer, Visitor,
        value::{Error, MapDeserializer, SeqDeserializer},
    },
    forward_to_deserialize_any,
};

use domain::field_errors::{field_error, wording};

/// Reads the parameters of a query. A parameter that is no list must be given at most once.
pub(super) fn read<T: DeserializeOwned>(query: &str) -> Result<T, FieldError> {
    let mut parameters = BTreeMap::<String, Vec<Vec<u8>>>::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        parameters.entry(lossy(&decode(name))).or_default().push(decode(value));
    }
    let parameters = parameters.into_iter().map(|(name, values)| (name, Values(values)));
    let read: Result<T, _> = serde_path_to_error::deserialize(MapDeserializer::<_, Error>::new(parameters));
    read.map_err(|error| {
        let mut described = field_error(&error.path().to_string(), &error.inner().to_string(), "query");
        if let Some(known) = described.message.strip_prefix("unknown field; the fields are ") {
            described.message = format!("unknown parameter; the parameters are {known}");
        }
        described
    })
}

/// Decodes a name or a value of `application/x-www-form-urlencoded`.
fn decode(text: &str) -> Vec<u8> {
    percent_decode_str(&text.replace('+', " ")).collect()
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The values of a parameter.
struct Values(Vec<Vec<u8>>);

impl Values {
    fn single(self) -> Result<String, Error> {
        self.single_bytes().map(|bytes| lossy(&bytes))
    }

    fn single_bytes(self) -> Result<Vec<u8>, Error> {
        let mut values = self.0.into_iter();
        match (values.next(), values.next()) {
            (Some(value), None) => Ok(value),
            _ => Err(Error::custom("must be given only once")),
        }
    }

    fn integer<N: TryFrom<i128>>(self, name: &str) -> Result<N, Error> {
        let text = self.single()?;
        let range = wording::range(name).unwrap_or(i128::MIN..=i128::MAX);
        let is_integer = text.strip_prefix('-').unwrap_or(&text).bytes().all(|byte| byte.is_ascii_digit());
        let number = text.parse::<i128>().ok().filter(|_| is_integer);
        let number = number.ok_or_else(|| Error::custom(wording::kind_of_integer(&range)))?;
        N::try_from(number).map_err(|_| Error::custom(wording::out_of_range(number, &range)))
    }
}

impl IntoDeserializer<'_, Error> for Values {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

/// Deserializes integers of a type.
macro_rules! integers {
    ($($method:ident $visit:ident $type:ident),+ $(,)?) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            visitor.$visit(self.integer::<$type>(stringify!($type))?)
        })+
    };
}

impl<'de> Deserializer<'de> for Values {
    type Error = Error;

    integers! {
        deserialize_u8 visit_u8 u8, deserialize_u16 visit_u16 u16, deserialize_u32 visit_u32 u32, deserialize_u64 visit_u64 u64,
        deserialize_i8 visit_i8 i8, deserialize_i16 visit_i16 i16, deserialize_i32 visit_i32 i32, deserialize_i64 visit_i64 i64,
    }

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_string(self.single()?)
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_byte_buf(self.single_bytes()?)
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.single()?.as_str() {
            "true" => visitor.visit_bool(true),
            "false" => visitor.visit_bool(false),
            _ => Err(Error::custom("must be true or false")),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _name: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(SeqDeserializer::new(self.0.iter().map(|value| lossy(value))))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_enum(self.single()?.into_deserializer())
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        i128 u128 f32 f64 char str string bytes unit unit_struct tuple tuple_struct map struct identifier
    }
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, Utc};
    use protocol::{JobId, UsageSort};
    use rstest::rstest;
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct Params {
        limit: Option<u32>,
        after: Option<i64>,
        by: Option<UsageSort>,
        job: Option<JobId>,
        since: Option<DateTime<Utc>>,
        flag: bool,
        label: Vec<String>,
        q: Option<String>,
    }

    #[rstest]
    #[case("limit=", "limit", "must be an integer of at least 0")]
    #[case("limit", "limit", "must be an integer of at least 0")]
    #[case("limit=ten", "limit", "must be an integer of at least 0")]
    #[case("limit=-1", "limit", "must be an integer of at least 0")]
    #[case("limit=%2B5", "limit", "must be an integer of at least 0")]
    #[case("limit=99999999999", "limit", "must be an integer of at most 4294967295")]
    #[case("limit=1&limit=2", "limit", "must be given only once")]
    #[case("after=1.5", "after", "must be an integer")]
    #[case("by=week", "by", "must be one of group, cost")]
    #[case("job=7", "job", "not a UUID in its hyphenated form (36 characters)")]
    #[case("since=yesterday", "since", "must be a time such as 2030-01-31T08:00:00Z (RFC 3339)")]
    #[case("flag=yes", "flag", "must be true or false")]
    #[case("q=a&q=b", "q", "must be given only once")]
    #[case("limt=1", "limt", "unknown parameter; the parameters are limit, after, by, job, since, flag, label, q")]
    fn an_invalid_parameter_is_named(#[case] query: &str, #[case] field: &str, #[case] message: &str) {
        let error = read::<Params>(query).unwrap_err();
        assert_eq!((error.field.as_str(), error.message.as_str()), (field, message));
    }

    #[test]
    fn a_required_parameter_is_named() {
        #[derive(Debug, Deserialize)]
        struct Required {
            #[expect(dead_code, reason = "only read")]
            path: String,
        }
        let error = read::<Required>("").unwrap_err();
        assert_eq!((error.field.as_str(), error.message.as_str()), ("path", "is required"));
    }

    #[test]
    fn parameters_are_decoded() {
        let params: Params = read("limit=5&label=a%3Ab&&label=c+d&q=&after=-3&flag=true&by=cost").unwrap();
        let label = vec!["a:b".to_owned(), "c d".to_owned()];
        let expected = Params {
            limit: Some(5),
            after: Some(-3),
            by: Some(UsageSort::Cost),
            flag: true,
            label,
            q: Some(String::new()),
            ..Params::default()
        };
        assert_eq!(params, expected);
        assert_eq!(read::<Params>("").unwrap(), Params::default());
    }
}
