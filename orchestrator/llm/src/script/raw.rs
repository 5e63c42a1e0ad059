//! The grammar of a script as it is written. Owns its shapes; what the shapes cannot say is checked in `check`.

use std::fmt;

use regex::Regex;
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, Visitor, value::MapAccessDeserializer},
};
use serde_json::Value;

use super::{Matcher, TurnRange, When};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawScript {
    #[serde(default = "default_model")]
    pub(super) model: String,
    pub(super) rules: Vec<Value>,
}

fn default_model() -> String {
    "scripted".to_owned()
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawRule {
    #[serde(rename = "name")]
    _name: Option<String>,
    #[serde(default)]
    pub(super) when: When,
    pub(super) times: Option<u32>,
    pub(super) reply: Option<RawReply>,
    pub(super) error: Option<RawError>,
    pub(super) rate_limit: Option<RawRateLimit>,
    pub(super) garbage: Option<bool>,
    pub(super) hang: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawReply {
    #[serde(default)]
    pub(super) text: String,
    pub(super) reasoning: Option<String>,
    #[serde(default)]
    pub(super) tool_calls: Vec<RawCall>,
    pub(super) finish_reason: Option<RawFinish>,
    pub(super) usage: Option<RawUsage>,
    #[serde(default)]
    pub(super) delay_ms: u64,
    pub(super) chunk_chars: Option<usize>,
    #[serde(default)]
    pub(super) chunk_ms: u64,
    pub(super) cut_after_chars: Option<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawCall {
    pub(super) id: Option<String>,
    pub(super) name: String,
    #[serde(default = "empty_object")]
    pub(super) arguments: Value,
    #[serde(default)]
    pub(super) thought_signatures: Vec<String>,
}

fn empty_object() -> Value {
    Value::Object(serde_json::Map::new())
}

/// Closed, unlike [`protocol::FinishReason`]: a typing error must not become "other".
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RawFinish {
    Stop,
    Length,
    ToolCalls,
    ContentFilter,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, default)]
#[derive(Default)]
#[expect(clippy::struct_field_names, reason = "the grammar has the names of `TokenUsage`")]
pub(super) struct RawUsage {
    pub(super) input_tokens: u64,
    pub(super) output_tokens: u64,
    pub(super) cache_read_tokens: u64,
    pub(super) cache_write_tokens: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawError {
    pub(super) status: u16,
    #[serde(default)]
    pub(super) message: String,
    pub(super) retry_after_seconds: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawRateLimit {
    pub(super) retry_after_seconds: Option<f64>,
}

// Written by hand: an untagged enum would say only that "no variant matched".
impl<'de> Deserialize<'de> for Matcher {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Shape;

        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Pattern {
            regex: String,
        }

        impl<'de> Visitor<'de> for Shape {
            type Value = Matcher;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string (a substring) or {regex: \"…\"}")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Matcher, E> {
                Ok(Matcher::Contains(text.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Matcher, A::Error> {
                let Pattern { regex } = Pattern::deserialize(MapAccessDeserializer::new(map))?;
                Regex::new(&regex).map(Matcher::Regex).map_err(A::Error::custom)
            }
        }

        deserializer.deserialize_any(Shape)
    }
}

impl<'de> Deserialize<'de> for TurnRange {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Shape;

        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Range {
            from: Option<u32>,
            to: Option<u32>,
        }

        impl<'de> Visitor<'de> for Shape {
            type Value = TurnRange;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the number of a model call, from 1, or {from: 2, to: 5}")
            }

            fn visit_u64<E: serde::de::Error>(self, turn: u64) -> Result<TurnRange, E> {
                match u32::try_from(turn) {
                    Ok(turn) if turn > 0 => Ok(TurnRange { from: turn, to: turn }),
                    _ => Err(E::custom("turns are counted from 1")),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<TurnRange, A::Error> {
                let Range { from, to } = Range::deserialize(MapAccessDeserializer::new(map))?;
                let range = TurnRange { from: from.unwrap_or(1), to: to.unwrap_or(u32::MAX) };
                if range.from > range.to {
                    return Err(A::Error::custom("from is after to"));
                }
                Ok(range)
            }
        }

        deserializer.deserialize_any(Shape)
    }
}
