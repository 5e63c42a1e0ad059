//! Cleaning: separates a model's text into visible text, thinking, and calls written as text. Pure.
//!
//! Owns one pass over the text, from left to right, linear in its length. Never touches code: fenced blocks and inline
//! code stay as they are, except a JSON block that is a call of an offered tool. Never makes a call of another tool, of
//! one whose end is missing, or of a text that the model has read.

mod call;
mod code;
mod ends;
mod harmony;
mod literal;
mod marks;
mod payload;
mod scan;
mod tag;

use protocol::ToolCall;

/// The parts of a reply's text.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Cleaned {
    /// The text that users see.
    pub(crate) text: String,
    /// The text within thinking tags.
    pub(crate) thinking: String,
    /// Calls written as text, in order; their ids are empty.
    pub(crate) calls: Vec<ToolCall>,
    /// The call that the text ends with, code left aside, and that is not recovered. Its markup is not part of `text`.
    pub(crate) last_unread: Option<UnreadCall>,
    /// Whether calls are recovered and there are others that cannot be: of a tool that is not offered, malformed or cut
    /// off.
    pub(crate) has_unread_calls: bool,
}

/// A call that is written as text and not recovered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnreadCall {
    /// The name of its tool as the model wrote it, where it could be read.
    pub(crate) tool: Option<String>,
}

/// The tools whose calls are looked for.
#[derive(Clone, Copy)]
pub(crate) struct Offered<'t> {
    /// Whether calls that are written as text are recovered.
    pub(crate) recovers: bool,
    /// Which names are tools that may be called; none if there are no tools.
    pub(crate) has_tool: Option<&'t dyn Fn(&str) -> bool>,
    /// Whether the text of a call stands in something that the model has read. Such a call is quoted, not made.
    pub(crate) is_quoted: &'t dyn Fn(&str) -> bool,
}

impl Offered<'_> {
    /// No tools.
    pub(crate) const NONE: Offered<'static> = Offered { recovers: false, has_tool: None, is_quoted: &|_| false };
}

/// Cleans a reply's text.
pub(crate) fn clean(text: &str, offered: Offered<'_>) -> Cleaned {
    let mut cleaned = scan::Scan::new(text.trim_end(), offered).run();
    cleaned.text = cleaned.text.trim().to_owned();
    cleaned.thinking = cleaned.thinking.trim().to_owned();
    cleaned
}

#[cfg(test)]
mod tests;
