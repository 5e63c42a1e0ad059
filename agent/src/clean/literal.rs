//! Values in the notations of Gemma and Python: bare keys, other quotes, `key=value`. Pure, never fails with a panic.

use protocol::ToolCall;
use serde_json::{Map, Value};

use super::call;

/// Values within values; beyond it nothing is read.
const MAX_DEPTH: usize = 32;

/// What Gemma puts around a text, before and since Gemma 4. There are no escapes within.
const DELIMITERS: [&str; 2] = ["<|\"|>", "<escape>"];

/// The object that the text starts with, and the text after it.
pub(super) fn object(text: &str) -> Option<(Value, &str)> {
    let (fields, rest) = fields(text.strip_prefix('{')?, '}', MAX_DEPTH)?;
    Some((Value::Object(fields), rest))
}

/// `name(key=value)`, a list of such calls, or one within `print(…)`; and the text after them. Names are as written.
pub(super) fn python_calls(text: &str) -> Option<(Vec<ToolCall>, &str)> {
    let text = text.trim_start();
    let closing = [("[", "]"), ("print(", ")"), ("", "")];
    let (inner, close) = closing.iter().find_map(|(open, close)| Some((text.strip_prefix(open)?, close)))?;
    let mut calls = Vec::new();
    let mut rest = inner;
    loop {
        let (name, after) = call::leading_name(rest.trim_start());
        let arguments = after.strip_prefix('(').filter(|_| !name.is_empty())?;
        let (fields, after) = fields(arguments, ')', MAX_DEPTH)?;
        calls.push(call::call(name.to_owned(), Value::Object(fields)));
        let after = after.trim_start();
        match after.strip_prefix([',', ';']) {
            Some(next) => rest = next,
            None => return Some((calls, after.strip_prefix(close)?)),
        }
    }
}

fn fields(text: &str, close: char, depth: usize) -> Option<(Map<String, Value>, &str)> {
    let mut found = Map::new();
    let mut rest = text.trim_start();
    while !rest.starts_with(close) {
        let (key, after) = quoted(rest).or_else(|| word(rest).map(|(key, after)| (key.to_owned(), after)))?;
        let (value, after) = value(after.trim_start().strip_prefix([':', '='])?, depth)?;
        found.insert(key, value);
        rest = next_item(after, close)?;
    }
    Some((found, rest.strip_prefix(close)?))
}

fn items(text: &str, depth: usize) -> Option<(Vec<Value>, &str)> {
    let mut found = Vec::new();
    let mut rest = text.trim_start();
    while !rest.starts_with(']') {
        let (value, after) = value(rest, depth)?;
        found.push(value);
        rest = next_item(after, ']')?;
    }
    Some((found, rest.strip_prefix(']')?))
}

/// The text from the next item on, or from the closing sign on.
fn next_item(text: &str, close: char) -> Option<&str> {
    let text = text.trim_start();
    match text.strip_prefix(',') {
        Some(next) => Some(next.trim_start()),
        None => text.starts_with(close).then_some(text),
    }
}

fn value(text: &str, depth: usize) -> Option<(Value, &str)> {
    let depth = depth.checked_sub(1)?;
    let text = text.trim_start();
    if let Some((quoted, rest)) = quoted(text) {
        return Some((Value::from(quoted), rest));
    }
    if let Some(inner) = text.strip_prefix('{') {
        return fields(inner, '}', depth).map(|(fields, rest)| (Value::Object(fields), rest));
    }
    if let Some(inner) = text.strip_prefix('[') {
        return items(inner, depth).map(|(items, rest)| (Value::Array(items), rest));
    }
    let (word, rest) = word(text)?;
    let value = match word {
        "True" => Value::from(true),
        "False" => Value::from(false),
        "None" => Value::Null,
        word => serde_json::from_str(word).unwrap_or_else(|_| Value::from(word)),
    };
    Some((value, rest))
}

/// A number, a key or a text without quotes. It has no `<`, so that a search for its end never goes beyond a mark.
fn word(text: &str) -> Option<(&str, &str)> {
    let end = text.find([',', ':', '=', '{', '}', '[', ']', '(', ')', '<', '"', '\'', '\n']).unwrap_or(text.len());
    let (word, rest) = text.split_at(end);
    let word = word.trim_end();
    (!word.is_empty()).then_some((word, rest))
}

fn quoted(text: &str) -> Option<(String, &str)> {
    for delimiter in DELIMITERS {
        if let Some(inner) = text.strip_prefix(delimiter) {
            let (quoted, rest) = inner.split_once(delimiter)?;
            return Some((quoted.to_owned(), rest));
        }
    }
    let quote = text.chars().next().filter(|first| matches!(first, '"' | '\''))?;
    let mut signs = text[1..].chars();
    let mut quoted = String::new();
    loop {
        match signs.next()? {
            '\\' => match signs.next()? {
                'n' => quoted.push('\n'),
                't' => quoted.push('\t'),
                'r' => quoted.push('\r'),
                same @ ('\\' | '"' | '\'') => quoted.push(same),
                other => quoted.extend(['\\', other]),
            },
            end if end == quote => return Some((quoted, signs.as_str())),
            other => quoted.push(other),
        }
    }
}
