//! Cleaning: separates a model's text into visible text, thinking, and calls written as text. Pure.
//!
//! Owns one pass over the text, from left to right, linear in its length. Never touches code: fenced blocks and inline
//! code stay as they are, except a JSON block that is a call of an offered tool.

mod call;
mod code;
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
}

/// Cleans a reply's text. `is_offered` says which names are tools that may be called; calls of others are not
/// recovered.
pub(crate) fn clean(text: &str, is_offered: &dyn Fn(&str) -> bool) -> Cleaned {
    if let Some(calls) = call::whole_reply(text, is_offered) {
        return Cleaned { calls, ..Cleaned::default() };
    }
    let mut cleaned = scan::Scan::new(text, is_offered).run();
    cleaned.text = cleaned.text.trim().to_owned();
    cleaned.thinking = cleaned.thinking.trim().to_owned();
    cleaned
}

#[cfg(test)]
mod tests;
