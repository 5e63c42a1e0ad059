//! The guards of the loop: calls that fail again and again, and the reasons for asking for text only. Pure.

use std::collections::HashMap;

use serde_json::Value;

/// The same failing call this often: the model is warned.
const WARN_AFTER: u32 = 3;

/// This often: the next call is text only.
const TEXT_ONLY_AFTER: u32 = 5;

/// Tools whose last failure is remembered; a model can make up any number of names.
const MAX_TOOLS: usize = 64;

/// Why a model call offers no tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WhyText {
    /// It is the last one.
    Cap,
    /// There are none on offer at all.
    NoTools,
    /// The same call failed too often.
    Duplicates,
    /// Replies with calls were cut off too often.
    Truncated,
    /// The model said nothing.
    Empty,
}

/// What the guard says to a call's result, the mildest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Warning {
    /// Nothing.
    None,
    /// The model is to try something else.
    Repeats,
    /// Tools are off for the next call.
    TextOnly,
}

/// Counts the same failing call, by tool. Any success, or other arguments for that tool, starts over: running the tests
/// again after a change is work, not a loop.
#[derive(Debug, Clone, Default)]
pub(crate) struct FailureGuard {
    failing: HashMap<String, (String, u32)>,
}

impl FailureGuard {
    /// Takes note of a call's result.
    pub(crate) fn observe(&mut self, tool: &str, arguments: &Value, success: bool) -> Warning {
        if success {
            self.failing.clear();
            return Warning::None;
        }
        if self.failing.len() >= MAX_TOOLS && !self.failing.contains_key(tool) {
            self.failing.clear();
        }
        let canonical = canonical(arguments);
        let entry = self.failing.entry(tool.to_owned()).or_default();
        if entry.0 == canonical {
            entry.1 += 1;
        } else {
            *entry = (canonical, 1);
        }
        match entry.1 {
            WARN_AFTER => Warning::Repeats,
            TEXT_ONLY_AFTER.. => Warning::TextOnly,
            _ => Warning::None,
        }
    }
}

/// The same text for the same arguments: keys in order, and JSON in a string read as what it is.
fn canonical(arguments: &Value) -> String {
    let read = arguments.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
    let mut value = read.unwrap_or_else(|| arguments.clone());
    value.sort_all_objects();
    value.to_string()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_same_failing_call_is_warned_at_three_and_text_only_from_five() {
        let mut guard = FailureGuard::default();
        let said: Vec<Warning> = (0..6).map(|_| guard.observe("shell", &json!({"a": 1, "b": 2}), false)).collect();
        let expected =
            [Warning::None, Warning::None, Warning::Repeats, Warning::None, Warning::TextOnly, Warning::TextOnly];
        assert_eq!(said, expected);
    }

    #[rstest]
    #[case::success_of_the_same("shell", json!({"a": 1}), true)]
    #[case::success_of_another("echo", json!({}), true)]
    #[case::other_arguments("shell", json!({"a": 2}), false)]
    fn starts_over(#[case] tool: &str, #[case] arguments: Value, #[case] success: bool) {
        let mut guard = FailureGuard::default();
        guard.observe("shell", &json!({"a": 1}), false);
        guard.observe("shell", &json!({"a": 1}), false);
        guard.observe(tool, &arguments, success);
        assert_eq!(guard.observe("shell", &json!({"a": 1}), false), Warning::None);
    }

    #[rstest]
    #[case::key_order(json!({"a": 1, "b": {"c": 1, "d": 2}}), json!({"b": {"d": 2, "c": 1}, "a": 1}))]
    #[case::stringified(json!({"a": 1}), json!("{ \"a\": 1 }"))]
    fn spelling_is_no_difference(#[case] one: Value, #[case] other: Value) {
        let mut guard = FailureGuard::default();
        guard.observe("shell", &one, false);
        guard.observe("shell", &other, false);
        assert_eq!(guard.observe("shell", &one, false), Warning::Repeats);
    }

    #[test]
    fn a_failing_call_of_another_tool_in_between_does_not_hide_it() {
        let mut guard = FailureGuard::default();
        for _ in 0..2 {
            guard.observe("shell", &json!({}), false);
            guard.observe("grep", &json!({}), false);
        }
        assert_eq!(guard.observe("shell", &json!({}), false), Warning::Repeats);
    }
}
