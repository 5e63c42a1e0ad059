//! Parsing of tool calls that are written as text. Pure.

use protocol::ToolCall;
use serde_json::{Map, Value};

use super::tag::attribute;

const NAME_KEYS: [&str; 3] = ["name", "tool", "tool_name"];
const ARGUMENT_KEYS: [&str; 4] = ["arguments", "parameters", "args", "input"];

/// Other keys that a call may have.
const OTHER_KEYS: [&str; 2] = ["id", "type"];

/// Whether a call must say its arguments: a bare `{"name": …}` is a call within a tool tag, elsewhere just JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arguments {
    /// Left out means none.
    Optional,
    /// Left out means that it is no call.
    Required,
}

/// A reply that is nothing but one call, or a list of them, as JSON.
pub(super) fn whole_reply(text: &str, is_offered: &dyn Fn(&str) -> bool) -> Option<Vec<ToolCall>> {
    let trimmed = text.trim();
    let json = trimmed.starts_with(['{', '[']) && trimmed.ends_with(['}', ']']);
    if json { calls_in(trimmed, Arguments::Required, is_offered) } else { None }
}

/// The calls that this JSON is: one, a list, or several in sequence. None when anything in it is not a call of a
/// tool that is offered.
pub(super) fn calls_in(json: &str, arguments: Arguments, is_offered: &dyn Fn(&str) -> bool) -> Option<Vec<ToolCall>> {
    let mut calls = Vec::new();
    for value in serde_json::Deserializer::from_str(json).into_iter::<Value>() {
        match value.ok()? {
            Value::Array(items) => {
                for item in items {
                    calls.push(one(item, arguments, is_offered)?);
                }
            }
            item => calls.push(one(item, arguments, is_offered)?),
        }
    }
    (!calls.is_empty()).then_some(calls)
}

fn one(value: Value, arguments: Arguments, is_offered: &dyn Fn(&str) -> bool) -> Option<ToolCall> {
    let Value::Object(mut fields) = value else { return None };
    // One wire's own way: `{"type": "function", "function": {"name": …, "arguments": …}}`.
    if let Some(Value::Object(inner)) = fields.remove("function") {
        fields = inner;
    }
    let name = NAME_KEYS.iter().find_map(|key| fields.remove(*key))?;
    let name = name.as_str().filter(|name| is_offered(name))?.to_owned();
    let given = ARGUMENT_KEYS.iter().find_map(|key| fields.remove(*key));
    if fields.keys().any(|key| !OTHER_KEYS.contains(&key.as_str())) {
        return None;
    }
    let given = match (given, arguments) {
        (None, Arguments::Required) => return None,
        (None | Some(Value::Null), _) => Value::Object(Map::new()),
        (Some(Value::String(text)), _) => serde_json::from_str(&text).unwrap_or(Value::String(text)),
        (Some(given), _) => given,
    };
    (given.is_object() || given.is_string()).then(|| call(name, given))
}

/// A call of `tool` whose body is one JSON object, or parameter tags, or nothing.
pub(super) fn from_body(tool: String, body: &str) -> ToolCall {
    let trimmed = body.trim();
    let arguments = match serde_json::from_str::<Value>(trimmed) {
        Ok(Value::Object(fields)) => fields,
        _ => parameters(body),
    };
    call(tool, Value::Object(arguments))
}

/// `<parameter name="key">value</parameter>`, `<parameter=key>value</parameter>`. Values stay strings; the executor
/// coerces them to the schema.
fn parameters(body: &str) -> Map<String, Value> {
    const CLOSE: &str = "</parameter>";
    let mut found = Map::new();
    let mut rest = body;
    while let Some((tag, after)) = next_parameter(rest) {
        // The last one may have been cut off before its end.
        let (value, next) = after.split_once(CLOSE).unwrap_or((after, ""));
        if let Some(key) = attribute(tag.trim(), "name") {
            found.insert(key, Value::from(without_outer_breaks(value)));
        }
        rest = next;
    }
    found
}

fn next_parameter(text: &str) -> Option<(&str, &str)> {
    let (_, after) = text.split_once("<parameter")?;
    after.split_once('>')
}

/// A value is often put on separate lines; those two line breaks are not part of it.
fn without_outer_breaks(value: &str) -> &str {
    let value = value.strip_prefix('\n').unwrap_or(value);
    value.strip_suffix('\n').unwrap_or(value)
}

/// A call without an id; the loop gives it one.
pub(super) fn call(name: String, arguments: Value) -> ToolCall {
    ToolCall { id: String::new(), name, arguments }
}

/// The JSON object that the text starts with and its length. None when there is none.
pub(super) fn leading_object(text: &str) -> Option<(Value, usize)> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Map<String, Value>>();
    let fields = values.next()?.ok()?;
    Some((Value::Object(fields), values.byte_offset()))
}
