//! What follows the mark or tag that opens a call: JSON, a name with arguments, or a name with tagged values. Pure.

use protocol::ToolCall;
use serde_json::{Map, Value};

use super::{
    call::{self, Arguments},
    literal,
    marks::{self, CALL_ID, CLOSING, FENCE, SEPARATING},
    tag::{self, TagKind},
};

/// What was read. Names are as written; whether they are offered is not known yet.
#[derive(Debug)]
pub(super) enum Payload<'t> {
    /// It is complete.
    Read {
        /// Its calls.
        calls: Vec<ToolCall>,
        /// Whether there was something else among them.
        has_others: bool,
        /// The text after it.
        rest: &'t str,
    },
    /// A call that cannot be read.
    Malformed,
    /// A call that the end of the text cuts off.
    CutOff,
    /// No call.
    Absent,
}

/// Reads what follows a mark.
pub(super) fn read(text: &str) -> Payload<'_> {
    let body = text.trim_start();
    if body.starts_with(['{', '[']) { json(body) } else { named(body, body.len() == text.len()) }
}

/// Reads the arguments that follow the tag of a call of `tool`.
pub(super) fn arguments<'t>(tool: &str, text: &'t str) -> Payload<'t> {
    let body = text.trim_start();
    if body.starts_with('{') { object(tool, body, false) } else { pairs(tool, body) }
}

fn json(body: &str) -> Payload<'_> {
    let (values, rest, error) = call::values(body);
    if let Some(error) = error {
        let failed = if error.is_eof() { Payload::CutOff } else { Payload::Malformed };
        return python(body).unwrap_or(failed);
    }
    let total = values.len();
    let calls: Vec<ToolCall> =
        values.into_iter().filter_map(|value| call::written(value, Arguments::Optional)).collect();
    Payload::Read { has_others: calls.len() < total, calls, rest }
}

fn python(body: &str) -> Option<Payload<'_>> {
    literal::python_calls(body).map(|(calls, rest)| Payload::Read { calls, has_others: false, rest })
}

fn named(body: &str, is_adjacent: bool) -> Payload<'_> {
    // Gemma writes `call:` before the name, DeepSeek's V3 the kind and a separator.
    let inner = body.strip_prefix("call:");
    let (name, after) = call::leading_name(inner.unwrap_or(body));
    let plain = separators(after);
    let (name, after, between) = match call::leading_name(plain.rest) {
        (second, after) if name == "function" && plain.has_any && !second.is_empty() => {
            (second, after, separators(after))
        }
        _ => (name, after, plain),
    };
    let arguments = between.rest;
    if name.is_empty() {
        return Payload::Absent;
    }
    if after.starts_with('(') {
        return python(body).unwrap_or(Payload::Malformed);
    }
    // A mark in prose is followed by words as well; after these signs it is certainly a call.
    let is_certain = inner.is_some()
        || between.has_any
        || after.starts_with(['{', '\n'])
        || (is_adjacent && arguments.is_empty())
        || arguments.starts_with("<arg_");
    let payload = match arguments.strip_prefix('{') {
        Some(_) if inner.is_some() => own_notation(name, arguments),
        Some(_) => object(name, arguments, between.opens_fence),
        None => pairs(name, arguments),
    };
    match payload {
        Payload::Malformed | Payload::CutOff if !is_certain => Payload::Absent,
        payload => payload,
    }
}

/// What stands between a name and its arguments.
struct Separators<'t> {
    /// Whether there is more than white space.
    has_any: bool,
    opens_fence: bool,
    /// The text after it.
    rest: &'t str,
}

fn separators(text: &str) -> Separators<'_> {
    let mut read = Separators { has_any: false, opens_fence: false, rest: text.trim_start() };
    loop {
        let after = match marks::strip(read.rest, CALL_ID) {
            Some(id) => Some(id.trim_start_matches(|c: char| c.is_ascii_alphanumeric())),
            None => marks::strip_any(read.rest, &SEPARATING),
        };
        let Some(after) = after else { return read };
        read.has_any = true;
        read.opens_fence |= read.rest.starts_with(FENCE);
        read.rest = after.trim_start();
    }
}

fn closed_fence(text: &str) -> &str {
    text.trim_start().strip_prefix(FENCE).unwrap_or(text)
}

fn object<'t>(tool: &str, body: &'t str, is_fenced: bool) -> Payload<'t> {
    let mut values = serde_json::Deserializer::from_str(body).into_iter::<Map<String, Value>>();
    match values.next() {
        Some(Ok(fields)) => {
            let rest = &body[values.byte_offset()..];
            complete(tool, Value::Object(fields), if is_fenced { closed_fence(rest) } else { rest })
        }
        Some(Err(error)) if !error.is_eof() => Payload::Malformed,
        _ => Payload::CutOff,
    }
}

/// Gemma's notation.
fn own_notation<'t>(tool: &str, body: &'t str) -> Payload<'t> {
    literal::object(body).map_or(Payload::Malformed, |(arguments, rest)| complete(tool, arguments, rest))
}

/// `<parameter name="key">value</parameter>`, `<parameter=key>value</parameter>` or
/// `<arg_key>key</arg_key><arg_value>value</arg_value>`, up to the closing tag of the call. Values stay texts, which
/// the executor coerces to the schema, unless their tag says that they are JSON.
fn pairs<'t>(tool: &str, body: &'t str) -> Payload<'t> {
    let mut found = Map::new();
    let mut rest = body.trim_start();
    loop {
        if let Some(after) = marks::strip_any(rest, &CLOSING) {
            return complete(tool, Value::Object(found), after);
        }
        if rest.is_empty() {
            return Payload::CutOff;
        }
        let Some(tag) = tag::tag_at(rest, 0) else { return Payload::Malformed };
        let after = &rest[tag.end..];
        let (key, is_json, after) = match tag.kind {
            TagKind::CallClose => return complete(tool, Value::Object(found), after),
            TagKind::ParameterOpen { key, is_json } => (key, is_json, after),
            TagKind::KeyOpen => {
                let (key, after) = match up_to_close(after) {
                    Ok(read) => read,
                    Err(payload) => return payload,
                };
                let after = after.trim_start();
                match tag::tag_at(after, 0) {
                    Some(tag) if tag.kind == TagKind::ValueOpen => (key.trim().to_owned(), false, &after[tag.end..]),
                    _ if after.is_empty() => return Payload::CutOff,
                    _ => return Payload::Malformed,
                }
            }
            _ => return Payload::Malformed,
        };
        let (value, after) = match up_to_close(after) {
            Ok(read) => read,
            Err(payload) => return payload,
        };
        let value = without_outer_breaks(value);
        let json = is_json.then(|| serde_json::from_str(value).ok()).flatten();
        found.insert(key, json.unwrap_or_else(|| Value::from(value)));
        rest = after.trim_start();
    }
}

/// The text up to the tag that closes a key or a value, and the text after it.
fn up_to_close(text: &str) -> Result<(&str, &str), Payload<'_>> {
    let mut places = text.match_indices('<').map(|(at, _)| at);
    // can1357/oh-my-pi#8495: where a closing mark was lost, the value would extend into the next one.
    let is_lost = |at: usize| text[at..].starts_with(tag::XTML_OPEN) || opens_line(text, at);
    let start = places.find(|at| is_close(text, *at) || is_lost(*at)).ok_or(Payload::CutOff)?;
    let tag = tag::tag_at(text, start).filter(|tag| tag.kind == TagKind::ParameterClose);
    tag.map(|tag| (&text[..start], &text[tag.end..])).ok_or(Payload::Malformed)
}

/// Whether a line begins as Qwen3-Coder's values do.
fn opens_line(text: &str, at: usize) -> bool {
    text[..at].ends_with('\n') && text[at..].starts_with("<parameter=")
}

fn is_close(text: &str, at: usize) -> bool {
    tag::tag_at(text, at).is_some_and(|tag| tag.kind == TagKind::ParameterClose)
}

/// A value is often put on separate lines; those two line breaks are not part of it.
fn without_outer_breaks(value: &str) -> &str {
    let value = value.strip_prefix("\r\n").or_else(|| value.strip_prefix('\n')).unwrap_or(value);
    value.strip_suffix("\r\n").or_else(|| value.strip_suffix('\n')).unwrap_or(value)
}

fn complete<'t>(tool: &str, arguments: Value, rest: &'t str) -> Payload<'t> {
    Payload::Read { calls: vec![call::call(tool.to_owned(), arguments)], has_others: false, rest }
}
