//! Writes a conversation so that a provider takes it: names, ids, order and definitions as its dialect has them. Pure; what
//! needs no change is not copied.

mod schema;

use std::borrow::Cow;

use config::{CallIds, Dialect, Field, MessageOrder, OpaqueBack, SchemaSubset, SystemMessages};
use protocol::{CompletionRequest, Message, ToolChoice, ToolDefinition};

use super::RequestOptions;

/// Longest name of a tool that every provider takes.
const MAX_NAME_BYTES: usize = 64;
/// Between texts that become one message.
const GAP: &str = "\n\n";

/// The parts of a request that a dialect changes.
pub(super) struct Adapted<'a> {
    pub(super) messages: Vec<Cow<'a, Message>>,
    pub(super) tools: Vec<Cow<'a, ToolDefinition>>,
    pub(super) tool_choice: ToolChoice,
    pub(super) temperature: Option<f64>,
}

pub(super) fn adapt<'a>(request: &'a CompletionRequest, options: &RequestOptions<'_>) -> Adapted<'a> {
    let dialect = options.dialect;
    let mut messages: Vec<Cow<'a, Message>> = request.messages.iter().map(Cow::Borrowed).collect();
    let call_ids = dialect.call_ids.unwrap_or_default();
    for message in &mut messages {
        keep_own(message, options);
        make_valid(message, call_ids);
    }
    if dialect.one_call_per_message.unwrap_or_default() {
        messages = one_call_each(messages);
    }
    place_system(&mut messages, dialect.system.unwrap_or_default());
    join_texts(&mut messages, dialect.order.unwrap_or_default());
    // Where calls cannot be forbidden, nothing is offered.
    let is_forbidden = request.tool_choice == ToolChoice::None && dialect.tool_choice == Some(Field::Omit);
    Adapted {
        messages,
        tools: if is_forbidden { Vec::new() } else { tools(&request.tools, dialect) },
        tool_choice: request.tool_choice,
        temperature: request.temperature.filter(|_| dialect.temperature != Some(Field::Omit)),
    }
}

fn tools<'a>(tools: &'a [ToolDefinition], dialect: &Dialect) -> Vec<Cow<'a, ToolDefinition>> {
    let is_left_out =
        |tool: &&ToolDefinition| dialect.left_out_tools.as_ref().is_some_and(|names| names.contains(&tool.name));
    let subset = dialect.schema.unwrap_or_default();
    let folded = |tool: &'a ToolDefinition| match subset {
        SchemaSubset::Full => Cow::Borrowed(tool),
        _ => Cow::Owned(ToolDefinition { parameters: schema::fold(&tool.parameters, subset), ..tool.clone() }),
    };
    tools.iter().filter(|tool| !is_left_out(tool)).map(folded).collect()
}

/// Leaves out what other providers and models made.
fn keep_own(message: &mut Cow<'_, Message>, options: &RequestOptions<'_>) {
    let Message::Assistant { native: Some(native), .. } = message.as_ref() else { return };
    let is_own = native.maker == options.maker && options.dialect.opaque_back != Some(OpaqueBack::Never);
    if !is_own && let Message::Assistant { native, .. } = message.to_mut() {
        *native = None;
    }
}

/// Gives calls and results names and ids that are taken. What a model wrote may be neither.
fn make_valid(message: &mut Cow<'_, Message>, call_ids: CallIds) {
    let needs_change = |id: &str, name: &str| valid_id(id, call_ids) != id || valid_name(name) != name;
    match message.as_ref() {
        Message::Assistant { tool_calls, .. } if tool_calls.iter().any(|call| needs_change(&call.id, &call.name)) => {}
        Message::Tool { tool_call_id, name, .. } if needs_change(tool_call_id, name) => {}
        _ => return,
    }
    match message.to_mut() {
        Message::Assistant { tool_calls, .. } => {
            for call in tool_calls {
                call.id = valid_id(&call.id, call_ids).into_owned();
                call.name = valid_name(&call.name).into_owned();
            }
        }
        Message::Tool { tool_call_id, name, .. } => {
            *tool_call_id = valid_id(tool_call_id, call_ids).into_owned();
            *name = valid_name(name).into_owned();
        }
        Message::System { .. } | Message::User { .. } => {}
    }
}

const fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
}

/// A name as all providers take it.
fn valid_name(name: &str) -> Cow<'_, str> {
    if (1..=MAX_NAME_BYTES).contains(&name.len()) && name.bytes().all(is_word) {
        return Cow::Borrowed(name);
    }
    let valid: String = name
        .chars()
        .map(|char| if char.is_ascii() && is_word(char as u8) { char } else { '_' })
        .take(MAX_NAME_BYTES)
        .collect();
    Cow::Owned(if valid.is_empty() { "unnamed".to_owned() } else { valid })
}

/// The id, or one in its place that is the same in each request and differs from others'.
fn valid_id(id: &str, ids: CallIds) -> Cow<'_, str> {
    let max = match ids {
        CallIds::AsReceived => return Cow::Borrowed(id),
        CallIds::Max64 => 64,
        CallIds::Max40 => 40,
        CallIds::Nine if id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()) => {
            return Cow::Borrowed(id);
        }
        CallIds::Nine => return Cow::Owned(hash(id)[..9].to_owned()),
    };
    if (1..=max).contains(&id.len()) && id.bytes().all(is_word) {
        return Cow::Borrowed(id);
    }
    Cow::Owned(format!("call_{}", &hash(id)[..24]))
}

fn hash(id: &str) -> String {
    base::digest::sha256_hex(id.as_bytes())
}

/// Splits replies with several calls: each call is followed by its result.
fn one_call_each(messages: Vec<Cow<'_, Message>>) -> Vec<Cow<'_, Message>> {
    let mut split = Vec::with_capacity(messages.len());
    let mut rest = messages.into_iter().peekable();
    while let Some(message) = rest.next() {
        let Message::Assistant { content, tool_calls, .. } = message.as_ref() else {
            split.push(message);
            continue;
        };
        if tool_calls.len() < 2 {
            split.push(message);
            continue;
        }
        let mut results = Vec::new();
        while let Some(result) = rest.next_if(|next| matches!(next.as_ref(), Message::Tool { .. })) {
            results.push(result);
        }
        for (at, call) in tool_calls.iter().enumerate() {
            split.push(Cow::Owned(Message::Assistant {
                content: if at == 0 { content.clone() } else { String::new() },
                tool_calls: vec![call.clone()],
                native: None,
            }));
            let is_its = |result: &Cow<'_, Message>| matches!(result.as_ref(), Message::Tool { tool_call_id, .. } if *tool_call_id == call.id);
            if let Some(at) = results.iter().position(is_its) {
                split.push(results.remove(at));
            }
        }
        split.append(&mut results);
    }
    split
}

fn place_system(messages: &mut Vec<Cow<'_, Message>>, place: SystemMessages) {
    if place == SystemMessages::InPlace {
        return;
    }
    let is_system = |message: &Cow<'_, Message>| matches!(message.as_ref(), Message::System { .. });
    let is_one_first = messages.iter().skip(1).all(|message| !is_system(message));
    if place == SystemMessages::OneFirst && is_one_first {
        return;
    }
    let mut texts = Vec::new();
    messages.retain(|message| match message.as_ref() {
        Message::System { content } => {
            texts.push(content.clone());
            false
        }
        _ => true,
    });
    if texts.is_empty() {
        return;
    }
    let text = texts.join(GAP);
    if place == SystemMessages::OneFirst {
        messages.insert(0, Cow::Owned(Message::System { content: text }));
        return;
    }
    // Before what it was the instruction for.
    match messages.first_mut().map(Cow::to_mut) {
        Some(Message::User { content }) => *content = format!("{text}{GAP}{content}"),
        _ => messages.insert(0, Cow::Owned(Message::User { content: text })),
    }
}

/// Joins messages that may not follow each other.
fn join_texts(messages: &mut Vec<Cow<'_, Message>>, order: MessageOrder) {
    if order == MessageOrder::Free {
        return;
    }
    let mut joined: Vec<Cow<'_, Message>> = Vec::with_capacity(messages.len());
    for message in messages.drain(..) {
        let is_joined = match (joined.last_mut(), message.as_ref()) {
            (Some(last), Message::User { content: text }) => join(last, text),
            (Some(last), Message::Assistant { content, tool_calls, .. })
                if order == MessageOrder::Alternating && tool_calls.is_empty() =>
            {
                join_reply(last, content)
            }
            _ => false,
        };
        if !is_joined {
            joined.push(message);
        }
    }
    *messages = joined;
}

/// Adds a user's text to a message that it may not follow. False if it may.
fn join(last: &mut Cow<'_, Message>, text: &str) -> bool {
    match last.as_ref() {
        Message::User { .. } | Message::Tool { .. } => {}
        Message::System { .. } | Message::Assistant { .. } => return false,
    }
    if let Message::User { content } | Message::Tool { content, .. } = last.to_mut() {
        append(content, text);
    }
    true
}

/// Adds a reply without calls to another one. False if they are not adjacent.
fn join_reply(last: &mut Cow<'_, Message>, text: &str) -> bool {
    let is_reply = matches!(last.as_ref(), Message::Assistant { tool_calls, .. } if tool_calls.is_empty());
    if is_reply && let Message::Assistant { content, native, .. } = last.to_mut() {
        append(content, text);
        *native = None;
    }
    is_reply
}

fn append(content: &mut String, text: &str) {
    if !content.is_empty() && !text.is_empty() {
        content.push_str(GAP);
    }
    content.push_str(text);
}

#[cfg(test)]
mod tests;
