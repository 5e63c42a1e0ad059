//! The marks that model families put around calls, beside tags: what opens a call, what stands between its name and its
//! arguments, and what ends it. Pure.
//!
//! Marks are compared in one spelling: in lower case, with ASCII bars and underscores, where models also
//! write `｜` and `▁`.

use super::tag::{self, TagKind};

/// A call follows. The first one is that of Kimi and, in its own spelling, of `DeepSeek`.
pub(super) const OPENING: [&str; 9] = [
    "<|tool_call_begin|>",
    "<|tool_call_start|>",
    "<|python_start|>",
    "<|python_tag|>",
    "<|start_action|>",
    "<start_function_call>",
    "[tool_calls]",
    "[tool_call]",
    "[tool_request]",
];

/// Tags that open a call if JSON follows: Qwen2.5-Coder's.
const BEFORE_JSON: [&str; 3] = ["<tools>", "<function>", "<function-call>"];

/// A call, or a section of calls, ends here or begins. They say nothing more and are no text.
pub(super) const CLOSING: [&str; 15] = [
    "<|tool_call_end|>",
    "<|tool_calls_section_begin|>",
    "<|tool_calls_section_end|>",
    "<|tool_calls_begin|>",
    "<|tool_calls_end|>",
    "<|end_of_sentence|>",
    "<|end_action|>",
    "<end_function_call>",
    "[/tool_call]",
    "[end_tool_request]",
    "<|call|>",
    "<|end|>",
    "<|return|>",
    "<|eom_id|>",
    "<|eot_id|>",
];

/// Between the name of a call and its arguments.
pub(super) const SEPARATING: [&str; 12] = [
    "<|tool_call_argument_begin|>",
    "<|tool_sep|>",
    FENCE_JSON,
    FENCE,
    "[args]",
    "<|constrain|>",
    "<|channel|>",
    "<|message|>",
    "commentary",
    "analysis",
    "json",
    "code",
];

/// The id of a call follows.
pub(super) const CALL_ID: &str = "[call_id]";

pub(super) const FENCE: &str = "```";
pub(super) const FENCE_JSON: &str = "```json";

/// The text after `mark`, if it starts with it.
pub(super) fn strip<'t>(text: &'t str, mark: &str) -> Option<&'t str> {
    let mut rest = text.chars();
    for expected in mark.chars() {
        let written = match rest.next()? {
            '\u{ff5c}' => '|',
            '\u{2581}' => '_',
            other => other.to_ascii_lowercase(),
        };
        if written != expected {
            return None;
        }
    }
    Some(rest.as_str())
}

/// What says nothing behind a call, beside special tokens.
const ENDS: [&str; 6] = ["</s>", "<eos>", "<end_of_turn>", "</response>", "</tools>", "</function-call>"];

/// The next turn begins: what follows a call was made up by the model.
const TURNS: [&str; 6] = [
    "<tool_response>",
    "<|tool_response>",
    "<|observation|>",
    "<|im_start|>",
    "<|start_header_id|>",
    "<start_of_turn>",
];

/// The text after a mark that opens a call if JSON follows.
pub(super) fn strip_before_json(text: &str) -> Option<&str> {
    strip_any(text, &BEFORE_JSON).filter(|after| after.trim_start().starts_with(['{', '[']))
}

/// The text after a mark that says nothing behind a call, such as `<|im_end|>`; empty if the model's turn ends with it.
pub(super) fn strip_behind_call(text: &str) -> Option<&str> {
    if strip_any(text, &TURNS).is_some() {
        return Some("");
    }
    let special = || {
        let name = strip(text, "<|")?;
        let rest = name.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || "_\u{2581}".contains(c));
        strip(rest, "|>").filter(|_| rest.len() < name.len())
    };
    strip_any(text, &ENDS).or_else(special)
}

/// Whether nothing follows a call but what models leave there: ends of marks, and a brace too many.
pub(super) fn is_end(text: &str) -> bool {
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches(|c: char| c.is_whitespace() || "};".contains(c));
        if rest.is_empty() {
            return true;
        }
        let tag = || tag::tag_at(rest, 0).filter(|tag| tag.kind == TagKind::CallClose).map(|tag| &rest[tag.end..]);
        let after = strip_any(rest, &CLOSING).or_else(|| strip_behind_call(rest)).or_else(tag);
        let Some(after) = after else { return false };
        rest = after;
    }
}

/// The text after one of these marks.
pub(super) fn strip_any<'t>(text: &'t str, marks: &[&str]) -> Option<&'t str> {
    marks.iter().find_map(|mark| strip(text, mark))
}
