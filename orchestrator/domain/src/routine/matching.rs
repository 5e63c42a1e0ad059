//! Whether something that arrived fires a routine: messages, and events of systems.
//!
//! Owns the comparison of channels, sources and types, which ignores case, the limits of patterns, and the meaning of
//! filters. Pure.

use std::{collections::BTreeMap, time::Instant};

use protocol::RoutineTrigger;
use serde_json::{Number, Value};

use super::{
    expression::{EvaluationError, Expression, Input, InvalidExpression, Names, TIME_LIMIT},
    pattern::{MAX_COMPILED_BYTES, Pattern, TimeUp},
};

/// Maximum length of a pattern.
pub const MAX_PATTERN_BYTES: usize = 4 * 1024;
/// Maximum length of a channel, a source and a type.
pub const MAX_NAME_BYTES: usize = 128;
/// Maximum number of filters.
const MAX_FILTERS: usize = 32;
/// Maximum length of a filter's name and value.
const MAX_FILTER_BYTES: usize = 1024;

/// What arrived.
#[derive(Debug, Clone, Copy)]
pub enum MatchInput<'a> {
    /// A message of the owner.
    Message {
        channel: Option<&'a str>,
        content: &'a str,
    },
    System {
        source: &'a str,
        event_type: &'a str,
        payload: &'a Value,
    },
}

/// A trigger that is fired by messages, by events of systems or by webhook deliveries, ready to be compared.
#[derive(Debug)]
pub enum Matcher {
    Message {
        channel: Option<String>,
        /// What the text must match.
        pattern: Pattern,
    },
    System {
        source: String,
        event_type: String,
        filters: BTreeMap<String, Value>,
        condition: Option<Expression>,
    },
    Webhook {
        condition: Option<Expression>,
    },
}

/// A trigger that is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field} {detail}")]
pub struct InvalidMatcher {
    /// The field of the trigger.
    pub field: &'static str,
    pub detail: String,
}

impl Matcher {
    /// Checks and compiles a trigger; `None` if it is of another kind.
    pub fn compile(trigger: &RoutineTrigger) -> Result<Option<Self>, InvalidMatcher> {
        match trigger {
            RoutineTrigger::Event { channel, pattern } => {
                channel.as_deref().map_or(Ok(()), |channel| check_name("channel", channel))?;
                Ok(Some(Self::Message { channel: channel.clone(), pattern: compile_pattern(pattern)? }))
            }
            RoutineTrigger::SystemEvent { source, event_type, filters, r#where } => {
                check_name("source", source)?;
                check_name("event_type", event_type)?;
                check_filters(filters)?;
                let condition = compile_condition(r#where.as_deref(), Names::Payload)?;
                let (source, event_type) = (source.clone(), event_type.clone());
                Ok(Some(Self::System { source, event_type, filters: filters.clone(), condition }))
            }
            RoutineTrigger::Webhook(webhook) => {
                let condition = compile_condition(webhook.r#where.as_deref(), Names::PayloadAndHeaders)?;
                Ok(Some(Self::Webhook { condition }))
            }
            _ => Ok(None),
        }
    }

    /// An estimate of its memory.
    pub fn memory_bytes(&self) -> usize {
        const OF_NAMES_AND_FILTERS: usize = 1024;
        let compiled = match self {
            Self::Message { pattern, .. } => pattern.memory_bytes(),
            Self::System { condition, .. } | Self::Webhook { condition } => {
                condition.as_ref().map_or(0, Expression::memory_bytes)
            }
        };
        OF_NAMES_AND_FILTERS + compiled
    }

    /// Whether a message or an event of a system fires the routine. May compute for as long as the limit of time of a
    /// condition, which a pattern has, too.
    pub fn matches(&self, arrival: MatchInput<'_>) -> Result<bool, EvaluationError> {
        match (self, arrival) {
            (Self::Message { channel, pattern }, MatchInput::Message { channel: of_message, content }) => {
                let is_channel = channel
                    .as_deref()
                    .is_none_or(|channel| of_message.is_some_and(|of_message| same_name(channel, of_message)));
                if !is_channel {
                    return Ok(false);
                }
                let searched = pattern.is_match(content, Instant::now() + TIME_LIMIT);
                searched.map_err(|TimeUp| EvaluationError::LimitExceeded)
            }
            (
                Self::System { source, event_type, filters, condition },
                MatchInput::System { source: of_event, event_type: type_of_event, payload },
            ) => {
                let is_named = same_name(source, of_event) && same_name(event_type, type_of_event);
                if !is_named || !filters.iter().all(|(name, value)| is_equal(value, payload.get(name))) {
                    return Ok(false);
                }
                let headers = BTreeMap::new();
                let input = Input { payload, headers: &headers };
                condition.as_ref().map_or(Ok(true), |condition| condition.evaluate(input))
            }
            _ => Ok(false),
        }
    }
}

/// A name in the form in which it is compared.
pub fn folded(name: &str) -> String {
    name.trim().to_lowercase()
}

fn same_name(one: &str, other: &str) -> bool {
    folded(one) == folded(other)
}

/// Whether a field has the value of a filter. Numbers are compared by value, and with texts that are one: senders
/// write ids in both ways.
fn is_equal(filter: &Value, field: Option<&Value>) -> bool {
    match (filter, field) {
        (Value::Number(one), Some(Value::Number(other))) => is_same_number(one, other),
        (Value::Number(number), Some(Value::String(text))) | (Value::String(text), Some(Value::Number(number))) => {
            text.parse().is_ok_and(|other: Number| is_same_number(number, &other))
        }
        (_, Some(field)) => filter == field,
        (_, None) => false,
    }
}

/// Ids may have more digits than a floating-point number.
fn is_same_number(one: &Number, other: &Number) -> bool {
    match (one.as_i128(), other.as_i128()) {
        (Some(one), Some(other)) => one == other,
        _ => one.as_f64() == other.as_f64(),
    }
}

fn check_name(field: &'static str, name: &str) -> Result<(), InvalidMatcher> {
    let detail = match name.trim() {
        "" => "must not be empty".to_owned(),
        trimmed if trimmed.len() > MAX_NAME_BYTES => format!("must have at most {MAX_NAME_BYTES} bytes"),
        _ => return Ok(()),
    };
    Err(InvalidMatcher { field, detail })
}

fn check_filters(filters: &BTreeMap<String, Value>) -> Result<(), InvalidMatcher> {
    let invalid = |detail: String| Err(InvalidMatcher { field: "filters", detail });
    if filters.len() > MAX_FILTERS {
        return invalid(format!("must be at most {MAX_FILTERS}"));
    }
    for (name, value) in filters {
        let length = name.len() + value.as_str().map_or(0, str::len);
        if length > MAX_FILTER_BYTES {
            return invalid(format!("must have names and values of at most {MAX_FILTER_BYTES} bytes"));
        }
        if !matches!(value, Value::String(_) | Value::Number(_) | Value::Bool(_)) {
            return invalid("must be strings, numbers or booleans".to_owned());
        }
    }
    Ok(())
}

fn compile_pattern(pattern: &str) -> Result<Pattern, InvalidMatcher> {
    let invalid = |detail: String| InvalidMatcher { field: "pattern", detail };
    if pattern.len() > MAX_PATTERN_BYTES {
        return Err(invalid(format!("must have at most {MAX_PATTERN_BYTES} bytes")));
    }
    Pattern::compile(pattern).map_err(|error| match error {
        regex::Error::CompiledTooBig(_) => {
            invalid(format!("must have at most {MAX_COMPILED_BYTES} bytes when it is compiled"))
        }
        error => {
            let cause = error.to_string();
            let cause = cause.lines().last().unwrap_or_default().trim().trim_start_matches("error: ");
            invalid(format!("must be a regular expression: {cause}"))
        }
    })
}

fn compile_condition(source: Option<&str>, names: Names) -> Result<Option<Expression>, InvalidMatcher> {
    let compiled = source.map(|source| Expression::compile(source, names)).transpose();
    compiled.map_err(|error: InvalidExpression| InvalidMatcher { field: "where", detail: error.to_string() })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn matcher(trigger: Value) -> Result<Matcher, InvalidMatcher> {
        let trigger: RoutineTrigger = serde_json::from_value(trigger).unwrap();
        Matcher::compile(&trigger).map(|matcher| matcher.expect("a trigger that is compared"))
    }

    #[rstest]
    #[case(json!({"pattern": "(?i)refund"}), None, "A REFUND, please", true)]
    #[case(json!({"pattern": "(?i)refund"}), Some("support"), "refunds", true)]
    #[case(json!({"pattern": "refund"}), None, "REFUND", false)]
    #[case(json!({"channel": "Support", "pattern": "refund"}), Some("support"), "refund", true)]
    #[case(json!({"channel": "ÜBER", "pattern": "x"}), Some("über"), "x", true)]
    #[case(json!({"channel": "support", "pattern": "refund"}), Some("sales"), "refund", false)]
    #[case(json!({"channel": "support", "pattern": "refund"}), None, "refund", false)]
    fn messages(#[case] trigger: Value, #[case] channel: Option<&str>, #[case] content: &str, #[case] expected: bool) {
        let mut trigger = trigger;
        trigger["type"] = json!("event");
        let matched = matcher(trigger).unwrap().matches(MatchInput::Message { channel, content });
        assert_eq!(matched, Ok(expected));
    }

    #[rstest]
    #[case(json!({}), true)]
    #[case(json!({"source": "GitHub", "event_type": "ISSUE.opened"}), true)]
    #[case(json!({"source": "gitlab"}), false)]
    #[case(json!({"event_type": "issue.closed"}), false)]
    #[case(json!({"filters": {"repo": "a/b"}}), true)]
    #[case(json!({"filters": {"repo": "a/c"}}), false)]
    #[case(json!({"filters": {"absent": "a/b"}}), false)]
    #[case(json!({"filters": {"number": 7, "draft": false}}), true)]
    #[case(json!({"filters": {"number": 7.0}}), true)]
    #[case(json!({"filters": {"number": "7"}}), true)]
    #[case(json!({"filters": {"number": "7.0"}}), true)]
    #[case(json!({"filters": {"number": "seven"}}), false)]
    #[case(json!({"filters": {"number": "8"}}), false)]
    #[case(json!({"filters": {"id": "1234567890123456788"}}), true)]
    #[case(json!({"filters": {"id": "1234567890123456789"}}), false)]
    #[case(json!({"filters": {"id": 1_234_567_890_123_456_789_u64}}), false)]
    #[case(json!({"filters": {"draft": true}}), false)]
    #[case(json!({"where": "payload.number > 6"}), true)]
    #[case(json!({"where": "payload.number > 7"}), false)]
    #[case(json!({"filters": {"draft": true}, "where": "payload.number / 0 == 1"}), false)]
    fn events_of_systems(#[case] fields: Value, #[case] expected: bool) {
        let mut trigger = json!({"type": "system_event", "source": "github", "event_type": "issue.opened"});
        trigger.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let payload = json!({"repo": "a/b", "number": 7, "draft": false, "id": 1_234_567_890_123_456_788_u64});
        let arrival = MatchInput::System { source: "github", event_type: "issue.opened", payload: &payload };
        assert_eq!(matcher(trigger).unwrap().matches(arrival), Ok(expected));
    }

    #[test]
    fn a_message_is_no_event_of_a_system() {
        let of_messages = matcher(json!({"type": "event", "pattern": ""})).unwrap();
        let payload = json!({});
        let arrival = MatchInput::System { source: "a", event_type: "b", payload: &payload };
        assert_eq!(of_messages.matches(arrival), Ok(false));
    }

    #[rstest]
    #[case(json!({"type": "event", "pattern": "("}), "pattern must be a regular expression: unclosed group")]
    #[case(json!({"type": "event", "pattern": "(\\w{500}){500}"}), "pattern must have at most 262144 bytes when it is compiled")]
    #[case(json!({"type": "event", "pattern": "a".repeat(5_000)}), "pattern must have at most 4096 bytes")]
    #[case(json!({"type": "event", "pattern": "a", "channel": " "}), "channel must not be empty")]
    #[case(json!({"type": "system_event", "source": "", "event_type": "b"}), "source must not be empty")]
    #[case(json!({"type": "system_event", "source": "a", "event_type": "b".repeat(200)}), "event_type must have at most 128 bytes")]
    #[case(
        json!({"type": "system_event", "source": "a", "event_type": "b", "filters": {"c": []}}),
        "filters must be strings, numbers or booleans"
    )]
    #[case(
        json!({"type": "system_event", "source": "a", "event_type": "b", "where": "headers.a == 'b'"}),
        "where headers is not available"
    )]
    #[case(json!({"type": "webhook", "where": "payload.a ="}), "where is not a CEL expression")]
    fn refusals(#[case] trigger: Value, #[case] expected: &str) {
        let error = matcher(trigger).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }

    /// The time of a match is linear in the text, whatever the pattern.
    #[test]
    fn a_hostile_pattern_ends() {
        let hostile = matcher(json!({"type": "event", "pattern": "(a|aa|a?)*$b"})).unwrap();
        let content = "a".repeat(64 * 1024);
        assert_eq!(hostile.matches(MatchInput::Message { channel: None, content: &content }), Ok(false));
    }
}
