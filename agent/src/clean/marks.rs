//! The marks that model families put around calls, beside tags: what opens a call, what stands between its name and its
//! arguments, and what ends it. Pure.
//!
//! Marks are compared in one spelling: in lower case, with ASCII bars and underscores, where models also
//! write `｜` and `▁`.

/// A call follows. The first one is that of Kimi and, in its own spelling, of `DeepSeek`.
pub(super) const OPENING: [&str; 7] = [
    "<|tool_call_begin|>",
    "<|python_tag|>",
    "<|start_action|>",
    "<start_function_call>",
    "[tool_calls]",
    "[tool_call]",
    "[tool_request]",
];

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

/// The text after one of these marks.
pub(super) fn strip_any<'t>(text: &'t str, marks: &[&str]) -> Option<&'t str> {
    marks.iter().find_map(|mark| strip(text, mark))
}
