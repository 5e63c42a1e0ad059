//! Why providers refuse a request, in their words. Each check names where they are recorded: a report at GitHub, or a package with its version.
//! Sends nothing.
//!
//! Our own are the words of three checks, for which no record was found: `only_chat`, `openai::nothing_stored`, `servers::results_follow_calls`.

pub(crate) mod anthropic;
pub(crate) mod hosts;
pub(crate) mod openai;
pub(crate) mod servers;

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::{
    double::{Asked, Refusal},
    wires::Item,
};

pub(crate) type Check = fn(&Asked<'_>) -> Option<Refusal>;

#[expect(clippy::unnecessary_wraps, reason = "what a check returns")]
fn refuse_with(status: u16, body: &Value) -> Option<Refusal> {
    Some(Refusal { status, body: body.to_string() })
}

fn refuse(status: u16, message: &str) -> Option<Refusal> {
    refuse_with(status, &json!({"error": {"message": message, "type": "invalid_request_error"}}))
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn chat_messages<'a>(asked: &Asked<'a>) -> impl Iterator<Item = (usize, &'a Value)> {
    list(&asked.body["messages"]).iter().enumerate()
}

/// The replies with calls, and their places.
fn calling<'a>(asked: &Asked<'a>) -> impl Iterator<Item = (usize, &'a Value)> {
    chat_messages(asked).filter(|(_, message)| !list(&message["tool_calls"]).is_empty())
}

fn parameters<'a>(asked: &Asked<'a>) -> impl Iterator<Item = (&'a str, &'a Value)> {
    list(&asked.body["tools"]).iter().map(|tool| {
        let function = if tool["function"].is_object() { &tool["function"] } else { tool };
        let schema =
            if function["parameters"].is_object() { &function["parameters"] } else { &function["input_schema"] };
        (function["name"].as_str().unwrap_or_default(), schema)
    })
}

fn names<'a>(asked: &Asked<'a>) -> impl Iterator<Item = (usize, &'a str)> {
    asked.items.iter().enumerate().flat_map(|(at, item)| match item {
        Item::Reply(_, calls) => calls.iter().map(|(_, name)| (at, name.as_str())).collect(),
        _ => Vec::new(),
    })
}

fn is_word(name: &str) -> bool {
    let is_char = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    (1..=64).contains(&name.len()) && name.bytes().all(is_char)
}

/// A server says in many ways that it has no such path.
pub(crate) fn only_chat(asked: &Asked<'_>) -> Option<Refusal> {
    if asked.path == "chat/completions" { None } else { refuse(404, "Not Found") }
}

/// langchain-ai/open_deep_research#164 and BerriAI/litellm#10083 (calls without results), MiniMax-AI/MiniMax-M2#76 (a result without its call),
/// bytedance/trae-agent#358 (the first in the format of responses), agno-agi/agno#5116 (an id twice).
pub(crate) fn paired(asked: &Asked<'_>) -> Option<Refusal> {
    let mut open: Vec<&str> = Vec::new();
    let mut known = BTreeSet::new();
    for item in asked.items {
        match item {
            Item::Reply(_, calls) => {
                // A reply may be several items of the responses format.
                open.extend(calls.iter().map(|(id, _)| id.as_str()));
                if let Some((id, _)) = calls.iter().find(|(id, _)| !known.insert(id)) {
                    return refuse(400, &format!("Invalid parameter: Duplicate value for 'tool_call_id' of '{id}'"));
                }
            }
            Item::Result { id, .. } if open.first() == Some(&id.as_str()) => drop(open.remove(0)),
            Item::Result { id, .. } => return refuse(400, &format!("tool result's tool id {id} not found")),
            Item::User(_) | Item::System(_) if !open.is_empty() => {
                return refuse(
                    400,
                    "An assistant message with 'tool_calls' must be followed by tool messages responding to each 'tool_call_id'.",
                );
            }
            Item::User(_) | Item::System(_) => {}
        }
    }
    if open.is_empty() { None } else { refuse(400, "No tool output found for function call") }
}
