//! Where what a mark or tag opens ends. Pure.
//!
//! Each search reads the text once, up to what it looks for.

use super::{
    marks::{self, CLOSING, OPENING},
    tag::{self, Tag, TagKind},
};

/// The end of the first mark or tag from `from` on that ends a call.
pub(super) fn of_call(text: &str, from: usize) -> Option<usize> {
    brackets(text, from).find_map(|place| close_at(text, place))
}

/// The end of the mark that ends the content from `from` on, if there is something and no nested call.
pub(super) fn of_content(text: &str, from: usize) -> Option<usize> {
    let place = brackets(text, from).find(|place| close_at(text, *place).is_some() || opens_at(text, *place))?;
    close_at(text, place).filter(|_| !text[from..place].trim().is_empty())
}

/// The end of the line from `from` on, if it is a command and no mark of a call follows.
pub(super) fn of_command(text: &str, from: usize) -> Option<usize> {
    let line = text[from..].lines().next().filter(|line| line.starts_with(char::is_alphanumeric))?;
    let is_last = !brackets(text, from).any(|place| close_at(text, place).is_some() || opens_at(text, place));
    is_last.then_some(from + line.len())
}

/// The end of a call whose JSON ends at `end`, with the mark or tag that follows and ends it.
pub(super) fn with_close(text: &str, end: usize) -> usize {
    let rest = &text[end..];
    let close = end + rest.len() - rest.trim_start().len();
    let is_open = text[..end].ends_with('}');
    is_open.then(|| close_at(text, close)).flatten().unwrap_or(end)
}

/// Where the first tag after this one begins and ends that closes its name, nested or not.
pub(super) fn of_tag(text: &str, open: &Tag) -> Option<(usize, usize)> {
    let mut places = text[open.end..].match_indices('<').map(|(length, _)| open.end + length);
    places.find_map(|start| {
        let tag = tag::tag_at(text, start).filter(|tag| tag.closes(open))?;
        Some((start, tag.end))
    })
}

/// The end of the mark or tag at `start`, if it is one that ends a call.
fn close_at(text: &str, start: usize) -> Option<usize> {
    let tag = tag::tag_at(text, start).filter(|tag| tag.kind == TagKind::CallClose);
    let mark = || marks::strip_any(&text[start..], &CLOSING).map(|rest| text.len() - rest.len());
    tag.map(|tag| tag.end).or_else(mark)
}

/// Whether the mark or tag at `start` is one of calls that ends none.
fn opens_at(text: &str, start: usize) -> bool {
    let is_mark = marks::strip_any(&text[start..], &OPENING).is_some();
    let is_thinking = |kind| matches!(kind, TagKind::ThinkingOpen | TagKind::ThinkingClose);
    is_mark || tag::tag_at(text, start).is_some_and(|tag| !is_thinking(tag.kind))
}

/// Where marks and tags may begin.
fn brackets(text: &str, from: usize) -> impl Iterator<Item = usize> {
    text[from..].match_indices(['<', '[']).map(move |(length, _)| from + length)
}
