//! Cleaning: what of a model's text is for people, what is its thinking, and which calls it wrote as text. Pure.
//!
//! Owns one pass over the text, from left to right, linear in its length. Never touches code: fenced blocks and inline
//! code come through as they are, but for a JSON block that is a call of a tool in reach.

mod call;
mod code;
mod scan;
mod tag;

use protocol::ToolCall;

/// What a reply's text holds.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Cleaned {
    /// For people.
    pub(crate) text: String,
    /// What stood in thinking tags.
    pub(crate) thinking: String,
    /// Calls written as text, in order; their ids are empty.
    pub(crate) calls: Vec<ToolCall>,
}

/// Cleans a reply's text. `in_reach` says which names are tools that may be called; calls of others are not recovered.
pub(crate) fn clean(text: &str, in_reach: &dyn Fn(&str) -> bool) -> Cleaned {
    if let Some(calls) = call::whole_reply(text, in_reach) {
        return Cleaned { calls, ..Cleaned::default() };
    }
    let mut cleaned = scan::Scan::new(text, in_reach).run();
    cleaned.text = cleaned.text.trim().to_owned();
    cleaned.thinking = cleaned.thinking.trim().to_owned();
    cleaned
}

#[cfg(test)]
mod tests;
