//! Assembles the tool calls of chat completions from the pieces that servers send.
//!
//! The format says that pieces of one call share an `index`, and that id and name come with the first. In practice
//! servers count from 1, always send 0 or no index, give each piece a new id or none, and repeat the name. Two
//! properties are reliable: a new call has a name, and nothing follows arguments that are complete.

use protocol::ToolCall;
use serde::de::IgnoredAny;
use serde_json::Value;

use super::json::{self, Nesting};
use crate::arguments;

/// A piece of a call, as received.
#[derive(Debug, Default)]
struct Piece<'a> {
    index: Option<u64>,
    id: &'a str,
    name: &'a str,
    arguments: String,
    extra: Option<&'a Value>,
}

/// A call that is being assembled.
#[derive(Debug, Default)]
struct PartialCall {
    index: Option<u64>,
    id: String,
    name: String,
    arguments: String,
    /// The newest piece of them, while each has begun with the one before it.
    last_piece: Option<String>,
    /// Whether the arguments are an object; known once they are closed.
    is_object: Option<bool>,
    nesting: Nesting,
    extra: Option<Value>,
    /// The id of a later piece that repeats this call's name without arguments. If arguments follow, they are another
    /// call's.
    repeated_head: Option<String>,
}

/// The calls of one answer, in the order in which they began.
#[derive(Debug, Default)]
pub(super) struct ToolCallAssembler {
    calls: Vec<PartialCall>,
}

impl<'a> Piece<'a> {
    fn of(value: &'a Value) -> Self {
        // Legacy function calls and some servers have name and arguments without `function` around them.
        let function = if value["function"].is_object() { &value["function"] } else { value };
        let arguments = match &function["arguments"] {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            other => other.to_string(),
        };
        Self {
            index: value["index"].as_u64(),
            id: value["id"].as_str().unwrap_or_default(),
            name: function["name"].as_str().unwrap_or_default(),
            arguments,
            extra: Some(&value["extra_content"]).filter(|extra| extra.is_object()),
        }
    }
}

impl PartialCall {
    fn is_whole(&self) -> bool {
        self.is_object == Some(true)
    }

    /// Whether a piece with a name begins another call, although it was addressed to this one.
    fn is_followed_by(&self, piece: &Piece<'_>) -> bool {
        let same_id = !piece.id.is_empty() && piece.id == self.id;
        if !piece.id.is_empty() && !self.id.is_empty() && !same_id {
            return !self.is_continued_by(piece);
        }
        if self.is_named_by(piece) {
            return false;
        }
        if !self.name.is_empty() && piece.name != self.name {
            return self.arguments.is_empty() || self.is_whole();
        }
        if !self.is_whole() {
            let is_marked = piece.index.is_some() || same_id;
            return !is_marked && self.arguments.is_empty() && piece.arguments.is_empty();
        }
        if same_id && (self.arguments == piece.arguments || self.is_placeholder()) {
            return false;
        }
        !piece.arguments.trim().is_empty() && (!self.is_placeholder() || is_object(&piece.arguments))
    }

    /// Whether a piece is more of this call's name: nothing but a name at the place of a call that has an id and no arguments.
    fn is_named_by(&self, piece: &Piece<'_>) -> bool {
        let is_addressed = piece.index.is_some() && piece.index == self.index;
        let is_begun = !self.id.is_empty() && !self.name.is_empty() && self.arguments.is_empty();
        is_addressed && is_begun && piece.id.is_empty() && piece.name != self.name && piece.arguments.is_empty()
    }

    /// Whether a piece with a new id is more of this call: some servers make up an id for each piece and repeat the
    /// name.
    fn is_continued_by(&self, piece: &Piece<'_>) -> bool {
        let begins_whole = self.arguments.is_empty() && is_object(&piece.arguments);
        let is_addressed = piece.index.is_some() && piece.index == self.index && piece.name == self.name;
        is_addressed && !self.is_whole() && !piece.arguments.is_empty() && !begins_whole
    }

    /// The call that a repeated head announced, when its first arguments arrive.
    fn announced_call(&mut self, piece: &Piece<'_>) -> Option<Self> {
        if !piece.name.is_empty() || piece.arguments.trim().is_empty() {
            return None;
        }
        let id = self.repeated_head.take()?;
        Some(Self { index: self.index, id, name: self.name.clone(), ..Self::default() })
    }

    /// Proxies of Anthropic begin a call with its empty input.
    fn is_placeholder(&self) -> bool {
        self.arguments == "{}"
    }

    fn extend(&mut self, piece: &Piece<'_>) {
        if self.id.is_empty() {
            piece.id.clone_into(&mut self.id);
        }
        if self.name.is_empty() {
            piece.name.clone_into(&mut self.name);
        } else if !piece.name.is_empty() && self.is_named_by(piece) {
            self.name.push_str(piece.name);
        }
        if self.index.is_none() {
            self.index = piece.index;
        }
        if let Some(extra) = piece.extra {
            self.extra = Some(extra.clone());
        }
        if self.is_whole() && !self.is_placeholder() {
            if !piece.name.is_empty() && piece.arguments.trim().is_empty() {
                self.repeated_head = Some(piece.id.to_owned());
            }
            return;
        }
        if self.is_placeholder() && !piece.arguments.trim().is_empty() {
            self.arguments.clear();
            self.is_object = None;
        }
        self.arguments.push_str(&piece.arguments);
        if !piece.arguments.is_empty() {
            let is_first = self.arguments.len() == piece.arguments.len();
            let goes_on = self.last_piece.as_ref().is_some_and(|last| piece.arguments.starts_with(last.as_str()));
            self.last_piece = (is_first || goes_on).then(|| piece.arguments.clone());
        }
        self.nesting.read(piece.arguments.as_bytes());
        if self.is_object.is_none() && !self.nesting.is_open() && piece.arguments.contains('}') {
            self.is_object = Some(is_object(&self.arguments));
        }
    }
}

fn is_object(text: &str) -> bool {
    let text = text.trim();
    text.starts_with('{') && text.ends_with('}') && serde_json::from_str::<IgnoredAny>(text).is_ok()
}

impl ToolCallAssembler {
    /// Takes the pieces of one chunk. Those without a mark are different calls.
    pub(super) fn take(&mut self, pieces: &[Value]) {
        let mut touched = Vec::new();
        for value in pieces {
            let piece = Piece::of(value);
            let found = self.find(&piece).filter(|at| {
                let begins_another = touched.contains(at) || self.calls[*at].is_followed_by(&piece);
                piece.name.is_empty() || !begins_another
            });
            let announced = found.and_then(|at| self.calls[at].announced_call(&piece));
            let at = found.filter(|_| announced.is_none()).unwrap_or_else(|| {
                let begun = PartialCall { index: piece.index, ..PartialCall::default() };
                self.calls.push(announced.unwrap_or(begun));
                self.calls.len() - 1
            });
            self.calls[at].extend(&piece);
            touched.push(at);
        }
    }

    /// The call that a piece is addressed to, newest first.
    fn find(&self, piece: &Piece<'_>) -> Option<usize> {
        let position = |is_it: &dyn Fn(&PartialCall) -> bool| self.calls.iter().rposition(is_it);
        let has_id = |call: &PartialCall| !piece.id.is_empty() && call.id == piece.id;
        let last = self.calls.len().checked_sub(1);
        match piece.index {
            Some(index) => position(&|call| call.index == Some(index) && has_id(call))
                .or_else(|| position(&|call| call.index == Some(index)))
                .or_else(|| last.filter(|at| piece.name.is_empty() && self.calls[*at].index.is_none())),
            None => position(&has_id).or_else(|| {
                // Some servers make up an id for each piece; a new call has a name.
                last.filter(|_| piece.id.is_empty() || piece.name.is_empty())
            }),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// The calls, by index where each has its own, and what the provider added to each.
    pub(super) fn into_calls(mut self) -> (Vec<ToolCall>, Vec<Option<Value>>) {
        self.calls.retain(|call| !(call.name.is_empty() && call.arguments.is_empty()));
        let mut indexes: Vec<_> = self.calls.iter().filter_map(|call| call.index).collect();
        indexes.sort_unstable();
        indexes.dedup();
        if indexes.len() == self.calls.len() {
            self.calls.sort_by_key(|call| call.index);
        }
        self.calls.into_iter().map(PartialCall::into_call).unzip()
    }
}

impl PartialCall {
    fn into_call(self) -> (ToolCall, Option<Value>) {
        // Some servers send all that there is so far in each piece (NousResearch/hermes-agent#35718).
        let whole = self.last_piece.filter(|last| !is_object(&self.arguments) && is_object(last));
        let arguments = arguments::read(whole.as_ref().unwrap_or(&self.arguments));
        (ToolCall { id: self.id, name: self.name, arguments }, self.extra)
    }
}

/// The text of a piece's arguments, for the usage estimate.
pub(super) fn arguments_of(piece: &Value) -> Option<&str> {
    let function = if piece["function"].is_object() { &piece["function"] } else { piece };
    json::text(&function["arguments"])
}

#[cfg(test)]
mod tests;
