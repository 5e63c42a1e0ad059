//! Tool calls as JSON, and the names of calls. Pure.

use protocol::ToolCall;
use serde_json::{Map, Value};

use super::{Offered, literal, marks};

const NAME_KEYS: [&str; 6] = ["name", "tool", "tool_name", "function", "function_name", "action"];
const ARGUMENT_KEYS: [&str; 6] = ["arguments", "parameters", "args", "input", "tool_input", "action_input"];

/// Other keys that a call may have.
const OTHER_KEYS: [&str; 5] = ["id", "tool_call_id", "call_id", "type", "status"];

/// Keys whose values are calls.
const CALL_KEYS: [&str; 3] = ["tool_calls", "function_call", "tool_call"];

/// Keys that stand beside one of these in a message.
const MESSAGE_KEYS: [&str; 4] = ["role", "content", "reasoning_content", "refusal"];

/// The namespaces in which models know their tools: Harmony and Kimi, and Gemini's Python.
const NAMESPACES: [&str; 2] = ["functions.", "default_api."];

/// Whether a call must say its arguments: a bare `{"name": …}` is a call within a tool tag, elsewhere just JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arguments {
    /// Left out means none.
    Optional,
    /// Left out means that it is no call.
    Required,
}

impl Offered<'_> {
    /// Whether this is a tool that may be called.
    pub(super) fn has(&self, name: &str) -> bool {
        self.has_tool.is_some_and(|has_tool| has_tool(name))
    }

    /// The call with the name of the tool that it means, if that is offered.
    pub(super) fn find(&self, mut call: ToolCall) -> Option<ToolCall> {
        if self.has(&call.name) {
            return Some(call);
        }
        let name = NAMESPACES.iter().find_map(|namespace| call.name.strip_prefix(namespace)).unwrap_or(&call.name);
        // Kimi counts its calls: `functions.shell:0`.
        let is_index = |index: &str| index.bytes().all(|byte| byte.is_ascii_digit());
        let name = name.rsplit_once(':').filter(|(_, index)| is_index(index)).map_or(name, |(name, _)| name).to_owned();
        self.has(&name).then(|| {
            call.name = name;
            call
        })
    }
}

/// The calls that this JSON is, if it is nothing else: one, a list, or several in sequence. None when anything in it is
/// not a call of a tool that is offered. And how much of the text was
/// read, up to the line of an error.
pub(super) fn json_calls(text: &str, offered: &Offered<'_>) -> (Option<Vec<ToolCall>>, usize) {
    let body = text.trim_start();
    if !body.starts_with(['{', '[']) {
        return (None, 0);
    }
    let (values, rest, error) = values(body);
    let read = text.len() - rest.len();
    if let Some(error) = error {
        let lines = rest.split_inclusive('\n').take(error.line() - 1);
        return (None, read + lines.map(str::len).sum::<usize>());
    }
    let written: Option<Vec<ToolCall>> = values.into_iter().map(|value| written(value, Arguments::Required)).collect();
    (written.and_then(|calls| all_offered(calls, rest, offered)), read)
}

/// The tool of a call as JSON that is malformed or cut off, if nothing else follows it.
pub(super) fn broken_call(text: &str, offered: &Offered<'_>) -> Option<String> {
    let after_name = key(text.trim_start_matches(['[', ' ']).strip_prefix('{')?, &NAME_KEYS)?;
    let (name, rest) = quoted(after_name)?;
    key(rest.trim_start().strip_prefix(',')?, &ARGUMENT_KEYS)?;
    let call = offered.find(call(name.to_owned(), Value::Null))?;
    let error = serde_json::Deserializer::from_str(text).into_iter::<Value>().next()?.err()?;
    let ends_with_value = || {
        let (before, after) = text.rsplit_once('}')?;
        let value = before.trim_end_matches(|c: char| c.is_whitespace() || c == '}');
        (value.ends_with(['"', '\'', '{', ']']) && marks::is_end(after)).then_some(())
    };
    (error.is_eof() || ends_with_value().is_some()).then_some(call.name)
}

/// The text after one of these keys and its colon.
fn key<'t>(text: &'t str, keys: &[&str]) -> Option<&'t str> {
    let (key, rest) = quoted(text.trim_start())?;
    keys.contains(&key).then(|| rest.trim_start().strip_prefix(':').map(str::trim_start))?
}

/// A name in quotes, also Python's, and the text after it.
fn quoted(text: &str) -> Option<(&str, &str)> {
    let inner = text.strip_prefix(['"', '\''])?;
    let (name, rest) = leading_name(inner);
    Some((name, rest.strip_prefix(['"', '\''])?))
}

/// As `json_calls`, in the notation of Python.
pub(super) fn python_calls(text: &str, offered: &Offered<'_>) -> Option<(Vec<ToolCall>, usize)> {
    let (calls, rest) = literal::python_calls(text)?;
    Some((all_offered(calls, rest, offered)?, text.len() - rest.len()))
}

fn all_offered(calls: Vec<ToolCall>, rest: &str, offered: &Offered<'_>) -> Option<Vec<ToolCall>> {
    let all: Option<Vec<ToolCall>> = calls.into_iter().map(|call| offered.find(call)).collect();
    all.filter(|calls| !calls.is_empty() && marks::is_end(rest))
}

/// The JSON values that the text starts with, lists as their items; the text after them; and why the next one could not
/// be read, if there is one. Llama puts `;` between objects, others `,`.
pub(super) fn values(text: &str) -> (Vec<Value>, &str, Option<serde_json::Error>) {
    let (mut found, mut rest) = (Vec::new(), text);
    loop {
        let mut read = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        match read.next() {
            Some(Ok(value)) => found.extend(items(value)),
            Some(Err(error)) => return (found, rest, Some(error)),
            None => return (found, rest, None),
        }
        rest = &rest[read.byte_offset()..];
        let next = rest.trim_start().trim_start_matches([';', ',']).trim_start();
        if !next.starts_with('{') {
            return (found, rest, None);
        }
        rest = next;
    }
}

/// The items of a list, also of the calls of a message or of an object with nothing else; or the value itself.
fn items(value: Value) -> Vec<Value> {
    match value {
        Value::Array(items) => items,
        Value::Object(mut fields) => {
            let is_known = |name: &String| CALL_KEYS.iter().chain(&MESSAGE_KEYS).any(|known| known == name);
            let is_message = fields.keys().all(is_known);
            match CALL_KEYS.iter().filter(|_| is_message).find_map(|name| fields.remove(*name)) {
                Some(Value::Array(items)) => items,
                Some(call) => vec![call],
                None => vec![Value::Object(fields)],
            }
        }
        value => vec![value],
    }
}

/// The call that this value is. Its name is as written.
pub(super) fn written(value: Value, arguments: Arguments) -> Option<ToolCall> {
    let Value::Object(mut fields) = value else { return None };
    // One wire's own way: `{"type": "function", "function": {"name": …, "arguments": …}}`.
    if let Some(Value::Object(inner)) = fields.get("function") {
        fields = inner.clone();
    }
    let Value::String(name) = NAME_KEYS.iter().find_map(|key| fields.remove(*key))? else { return None };
    let given = ARGUMENT_KEYS.iter().find_map(|key| fields.remove(*key));
    let is_other = |key: &String| !OTHER_KEYS.contains(&key.as_str());
    if fields.keys().any(is_other) || given.as_ref().is_some_and(is_schema) {
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

/// Whether these are not arguments but what a tool takes.
fn is_schema(arguments: &Value) -> bool {
    arguments["type"] == "object" && arguments["properties"].is_object()
}

/// A call without an id; the loop gives it one.
pub(super) fn call(name: String, arguments: Value) -> ToolCall {
    ToolCall { id: String::new(), name, arguments }
}

/// The name that the text starts with, which may be empty, and the text after it.
pub(super) fn leading_name(text: &str) -> (&str, &str) {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_-.:".contains(c);
    text.split_at(text.find(|c| !is_name(c)).unwrap_or(text.len()))
}

/// The JSON object that the text starts with and its length. None when there is none.
pub(super) fn leading_object(text: &str) -> Option<(Value, usize)> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Map<String, Value>>();
    let fields = values.next()?.ok()?;
    Some((Value::Object(fields), values.byte_offset()))
}
