//! The guards of the loop: what a reply is, given what the model may do, and when it is nudged, warned or held to text.
//! Pure.
//!
//! Owns the counters behind these decisions. Never acts on a decision.

use std::collections::HashMap;

use protocol::FinishReason;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{FailureReason, run::intent::announces_action};

/// Failures of the same call until the model is warned.
const WARN_AFTER: u32 = 3;

/// Failures of the same call until the next model call is text only.
const TEXT_ONLY_AFTER: u32 = 5;

/// Maximum number of tools whose last failure is remembered; a model can invent any number of names.
const MAX_TOOLS: usize = 64;

/// Nudges for an announced action.
const MAX_INTENT_NUDGES: u32 = 2;

/// Notices about calls within a text until it does not count as an answer.
const MAX_UNREAD_NUDGES: u32 = 2;

/// Truncated replies with calls in a row until the next model call is text only.
const MAX_TRUNCATED: u32 = 3;

const NUDGE_INTENT: &str =
    "You said what you are going to do but called no tool. Call the tool now, or give your final answer.";
const NUDGE_UNREAD: &str = "You wrote a tool call as text, so it was not run. Call one of the tools that you are offered, by the means that you have for it, or give your final answer. In an answer, put such a text into a code block.";
const NUDGE_EMPTY: &str = "Your reply was empty. Go on with the task, or give your final answer.";
const TEXT_ONLY_EMPTY: &str = "Your reply was empty again. Give your final answer as text now.";
const NUDGE_TRUNCATED: &str = "Your reply was cut off at the completion limit, so its tool calls were not run. Make smaller calls, one at a time.";
const TEXT_ONLY_TRUNCATED: &str = "Your replies were cut off again and again and their tool calls were not run. Summarise your progress briefly as text.";
const WARN_REPEATS: &str = "The same call has now failed 3 times with the same arguments. It will fail again: change the arguments or the approach.";
const TEXT_ONLY_REPEATS: &str = "The same call has failed 5 times with the same arguments. Call no tool; answer as text with what you found and what failed.";

/// Why a model call offers no tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum TextOnlyReason {
    /// It is the last call that the iteration cap allows.
    IterationCap,
    /// No tools are offered at all.
    NoTools,
    /// The limit of rounds of tool calls is reached.
    RoundLimit,
    /// The same call failed too often.
    DuplicateCalls,
    /// Replies with calls were truncated too often.
    TruncatedReplies,
    /// Replies were empty.
    EmptyReplies,
}

/// The properties of a reply that the guards check.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReplyFacts<'r> {
    /// The cleaned text.
    pub(crate) text: &'r str,
    /// Whether the reply asks for tool calls.
    pub(crate) has_calls: bool,
    /// The calls in its text that are not run.
    pub(crate) unread_calls: UnreadCalls,
    /// Why the reply ended.
    pub(crate) finish: FinishReason,
    /// Why the call offered no tools, if it did not.
    pub(crate) text_only: Option<TextOnlyReason>,
    /// Whether there are tools at all.
    pub(crate) has_tools: bool,
}

/// The calls in a text that are not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UnreadCalls {
    /// None, or the text is about them.
    None,
    /// Calls that cannot be run, where calls are read from texts.
    Within,
    /// The text ends with one.
    AtEnd,
}

/// The decision about a reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Run its calls.
    RunCalls,
    /// Its text is the final answer.
    Finish,
    /// End the work by the iteration limit.
    IterationLimit,
    /// End the work as failed.
    Fail(FailureReason),
    /// Send the model this notice and continue.
    Notice(&'static str),
    /// The text has a call that is not run, at its end or again and again, and does not count as an answer.
    UnreadCall {
        /// Whether the last reply was none, too.
        is_repeated: bool,
    },
}

/// The counters behind the decisions. They start over with each prompt of a person.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Guards {
    failures: FailureGuard,
    /// Why the next call offers no tools, if it does not.
    pub(super) text_only: Option<TextOnlyReason>,
    intent_nudges: u32,
    #[serde(default)]
    unread_nudges: u32,
    empty_replies: u32,
    truncated_replies: u32,
    /// Whether the last reply was no answer, because of a call in its text that is not run.
    #[serde(default)]
    was_no_answer: bool,
}

impl Guards {
    /// Decides what to do with a reply.
    pub(crate) fn judge(&mut self, reply: &ReplyFacts<'_>) -> Verdict {
        let is_empty = reply.text.is_empty();
        let truncated = reply.has_calls && reply.finish == FinishReason::Length;
        if reply.text_only.is_some() || !truncated {
            self.truncated_replies = 0;
        }
        if reply.text_only.is_some() || !is_empty || reply.has_calls {
            self.empty_replies = 0;
        }
        let hides_answer = match reply.unread_calls {
            UnreadCalls::None => false,
            // The words behind the call may be about it, so it is pointed out first.
            UnreadCalls::Within => reply.text_only.is_none() && self.unread_nudges >= MAX_UNREAD_NUDGES,
            UnreadCalls::AtEnd => true,
        };
        // Other calls of the reply count, unless it may have none.
        let is_no_answer = hides_answer && (reply.text_only.is_some() || !reply.has_calls);
        // A text that was cut is continued, and its end is judged then.
        if !is_no_answer && (reply.has_calls || reply.finish != FinishReason::Length) {
            self.was_no_answer = false;
        }
        match reply.text_only {
            Some(TextOnlyReason::IterationCap) => Verdict::IterationLimit,
            _ if is_no_answer => Verdict::UnreadCall { is_repeated: self.note_no_answer() },
            Some(_) if !is_empty => Verdict::Finish,
            Some(TextOnlyReason::DuplicateCalls) => Verdict::Fail(FailureReason::DuplicateCalls),
            Some(_) => Verdict::Fail(FailureReason::EmptyReply),
            None if truncated => {
                self.truncated_replies += 1;
                let again = self.truncated_replies >= MAX_TRUNCATED;
                self.nudge(again.then_some(TextOnlyReason::TruncatedReplies), NUDGE_TRUNCATED, TEXT_ONLY_TRUNCATED)
            }
            None if reply.has_calls => Verdict::RunCalls,
            None if is_empty => {
                self.empty_replies += 1;
                // What used up the output limit once does so again, and is paid for.
                let again = self.empty_replies > 1 || reply.finish == FinishReason::Length;
                self.nudge(again.then_some(TextOnlyReason::EmptyReplies), NUDGE_EMPTY, TEXT_ONLY_EMPTY)
            }
            None if reply.unread_calls == UnreadCalls::Within && reply.has_tools => {
                self.unread_nudges += 1;
                Verdict::Notice(NUDGE_UNREAD)
            }
            None if self.may_nudge(reply) => {
                self.intent_nudges += 1;
                Verdict::Notice(NUDGE_INTENT)
            }
            None => Verdict::Finish,
        }
    }

    /// Notes a reply that is no answer, because of a call in its text. Returns whether the last one was none, too.
    pub(crate) const fn note_no_answer(&mut self) -> bool {
        std::mem::replace(&mut self.was_no_answer, true)
    }

    /// Counts a tool call's result.
    pub(crate) fn observe(&mut self, tool: &str, arguments: &Value, success: bool) -> RepeatWarning {
        self.failures.observe(tool, arguments, success)
    }

    /// Applies the highest warning of a reply's results. Returns the notice for the model, if there is one.
    pub(crate) const fn escalate(&mut self, warning: RepeatWarning) -> Option<&'static str> {
        match warning {
            RepeatWarning::None => None,
            RepeatWarning::Repeats => Some(WARN_REPEATS),
            RepeatWarning::TextOnly => {
                self.text_only = Some(TextOnlyReason::DuplicateCalls);
                Some(TEXT_ONLY_REPEATS)
            }
        }
    }

    fn may_nudge(&self, reply: &ReplyFacts<'_>) -> bool {
        // A text that was cut has no end yet.
        let has_ended = reply.finish != FinishReason::Length;
        // The provider says that there are calls, and none has come.
        let announces = reply.finish == FinishReason::ToolCalls || (has_ended && announces_action(reply.text));
        reply.has_tools && self.intent_nudges < MAX_INTENT_NUDGES && announces
    }

    const fn nudge(
        &mut self,
        text_only: Option<TextOnlyReason>,
        notice: &'static str,
        last_notice: &'static str,
    ) -> Verdict {
        if text_only.is_none() {
            return Verdict::Notice(notice);
        }
        self.text_only = text_only;
        Verdict::Notice(last_notice)
    }
}

/// The warning after a call's result, the mildest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum RepeatWarning {
    /// Nothing.
    None,
    /// The model is told to change its approach.
    Repeats,
    /// The next model call offers no tools.
    TextOnly,
}

/// Counts the same failing call, by tool. A success, or other arguments for that tool, starts over: running the tests
/// again after a change is work, not a loop.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct FailureGuard {
    failing: HashMap<String, (String, u32)>,
}

impl FailureGuard {
    fn observe(&mut self, tool: &str, arguments: &Value, success: bool) -> RepeatWarning {
        if success {
            self.failing.clear();
            return RepeatWarning::None;
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
            WARN_AFTER => RepeatWarning::Repeats,
            TEXT_ONLY_AFTER.. => RepeatWarning::TextOnly,
            _ => RepeatWarning::None,
        }
    }
}

/// A canonical spelling of the arguments: keys sorted, and JSON in a string parsed.
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

    const fn reply(text: &str, has_calls: bool, finish: FinishReason) -> ReplyFacts<'_> {
        ReplyFacts { text, has_calls, unread_calls: UnreadCalls::None, finish, text_only: None, has_tools: true }
    }

    const fn ends_with_call(text: &str) -> ReplyFacts<'_> {
        ReplyFacts { unread_calls: UnreadCalls::AtEnd, ..reply(text, false, FinishReason::Stop) }
    }

    const fn unread(text: &str, finish: FinishReason) -> ReplyFacts<'_> {
        ReplyFacts { unread_calls: UnreadCalls::Within, ..reply(text, false, finish) }
    }

    #[rstest]
    #[case::calls(reply("", true, FinishReason::ToolCalls), Verdict::RunCalls)]
    #[case::calls_with_text(reply("Let me read it.", true, FinishReason::ToolCalls), Verdict::RunCalls)]
    #[case::truncated_calls(reply("", true, FinishReason::Length), Verdict::Notice(NUDGE_TRUNCATED))]
    #[case::calls_that_did_not_come(
        reply("It is on its way!", false, FinishReason::ToolCalls),
        Verdict::Notice(NUDGE_INTENT)
    )]
    #[case::truncated_text(reply("a long an", false, FinishReason::Length), Verdict::Finish)]
    #[case::truncated_announcement(reply("Let me read it.", false, FinishReason::Length), Verdict::Finish)]
    #[case::empty(reply("", false, FinishReason::Stop), Verdict::Notice(NUDGE_EMPTY))]
    #[case::only_thoughts(reply("", false, FinishReason::Length), Verdict::Notice(TEXT_ONLY_EMPTY))]
    #[case::announced(reply("Let me read it.", false, FinishReason::Stop), Verdict::Notice(NUDGE_INTENT))]
    #[case::unread_call(unread("I read it.", FinishReason::Stop), Verdict::Notice(NUDGE_UNREAD))]
    #[case::a_call_at_the_end(ends_with_call("I read it."), Verdict::UnreadCall { is_repeated: false })]
    #[case::a_call_alone(ends_with_call(""), Verdict::UnreadCall { is_repeated: false })]
    #[case::a_call_at_the_end_of_a_last_reply(
        ReplyFacts { text_only: Some(TextOnlyReason::IterationCap), ..ends_with_call("Done.") }, Verdict::IterationLimit)]
    #[case::a_call_at_the_end_of_a_text_only_reply(
        ReplyFacts { text_only: Some(TextOnlyReason::RoundLimit), has_calls: true, ..ends_with_call("Done.") },
        Verdict::UnreadCall { is_repeated: false })]
    #[case::a_call_at_the_end_beside_calls(
        ReplyFacts { has_calls: true, ..ends_with_call("I read it.") }, Verdict::RunCalls)]
    #[case::unread_call_cut_off(unread("I read it.", FinishReason::Length), Verdict::Notice(NUDGE_UNREAD))]
    #[case::unread_beside_calls(
        ReplyFacts { unread_calls: UnreadCalls::Within, ..reply("", true, FinishReason::ToolCalls) }, Verdict::RunCalls)]
    #[case::unread_in_a_last_call(
        ReplyFacts { text_only: Some(TextOnlyReason::RoundLimit), ..unread("Done.", FinishReason::Stop) }, Verdict::Finish)]
    #[case::announced_without_tools(
        ReplyFacts { has_tools: false, ..reply("Let me read it.", false, FinishReason::Stop) }, Verdict::Finish)]
    #[case::answer(reply("All done.", false, FinishReason::Stop), Verdict::Finish)]
    fn a_reply_is_judged_by_its_content(#[case] reply: ReplyFacts<'_>, #[case] verdict: Verdict) {
        assert_eq!(Guards::default().judge(&reply), verdict);
    }

    #[rstest]
    #[case(TextOnlyReason::IterationCap, Verdict::IterationLimit, Verdict::IterationLimit)]
    #[case(TextOnlyReason::NoTools, Verdict::Finish, Verdict::Fail(FailureReason::EmptyReply))]
    #[case(TextOnlyReason::RoundLimit, Verdict::Finish, Verdict::Fail(FailureReason::EmptyReply))]
    #[case(TextOnlyReason::DuplicateCalls, Verdict::Finish, Verdict::Fail(FailureReason::DuplicateCalls))]
    #[case(TextOnlyReason::TruncatedReplies, Verdict::Finish, Verdict::Fail(FailureReason::EmptyReply))]
    #[case(TextOnlyReason::EmptyReplies, Verdict::Finish, Verdict::Fail(FailureReason::EmptyReply))]
    fn calls_in_a_text_only_reply_are_ignored(
        #[case] reason: TextOnlyReason,
        #[case] with_text: Verdict,
        #[case] without: Verdict,
    ) {
        for has_calls in [false, true] {
            let facts =
                |text| ReplyFacts { text_only: Some(reason), ..reply(text, has_calls, FinishReason::ToolCalls) };
            let judged = [facts("An answer."), facts("")].map(|facts| Guards::default().judge(&facts));
            assert_eq!(judged, [with_text, without]);
        }
    }

    #[test]
    fn calls_within_texts_are_nudged_for_and_then_do_not_count_as_an_answer() {
        let mut guards = Guards::default();
        let judged = [(); 4].map(|()| guards.judge(&unread("I wait.", FinishReason::Stop)));
        let [nudge, end] = [Verdict::Notice(NUDGE_UNREAD), Verdict::UnreadCall { is_repeated: false }];
        assert_eq!(judged, [nudge, nudge, end, Verdict::UnreadCall { is_repeated: true }]);
    }

    #[test]
    fn the_second_reply_in_a_row_that_ends_with_a_call_is_a_repetition() {
        let mut guards = Guards::default();
        let calling = reply("", true, FinishReason::ToolCalls);
        let replies = [ends_with_call("a"), calling, ends_with_call("b"), ends_with_call("c")];
        let judged = replies.map(|reply| guards.judge(&reply));
        let unread = |is_repeated| Verdict::UnreadCall { is_repeated };
        assert_eq!(judged, [unread(false), Verdict::RunCalls, unread(false), unread(true)]);
    }

    #[test]
    fn the_guards_survive_a_restart() {
        let mut guards = Guards::default();
        for _ in 0..4 {
            guards.observe("shell", &json!({"a": 1}), false);
        }
        guards.judge(&reply("", false, FinishReason::Stop));
        let stored = serde_json::to_string(&guards).unwrap();
        let mut restored: Guards = serde_json::from_str(&stored).unwrap();
        let warning = restored.observe("shell", &json!({"a": 1}), false);
        assert_eq!((warning, restored.escalate(warning)), (RepeatWarning::TextOnly, Some(TEXT_ONLY_REPEATS)));
        assert_eq!(restored.judge(&reply("", false, FinishReason::Stop)), Verdict::Notice(TEXT_ONLY_EMPTY));
    }

    #[test]
    fn the_same_failing_call_is_warned_at_three_and_text_only_from_five() {
        let mut guard = FailureGuard::default();
        let warnings: Vec<RepeatWarning> =
            (0..6).map(|_| guard.observe("shell", &json!({"a": 1, "b": 2}), false)).collect();
        let expected = [
            RepeatWarning::None,
            RepeatWarning::None,
            RepeatWarning::Repeats,
            RepeatWarning::None,
            RepeatWarning::TextOnly,
            RepeatWarning::TextOnly,
        ];
        assert_eq!(warnings, expected);
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
        assert_eq!(guard.observe("shell", &json!({"a": 1}), false), RepeatWarning::None);
    }

    #[rstest]
    #[case::key_order(json!({"a": 1, "b": {"c": 1, "d": 2}}), json!({"b": {"d": 2, "c": 1}, "a": 1}))]
    #[case::stringified(json!({"a": 1}), json!("{ \"a\": 1 }"))]
    fn spelling_is_no_difference(#[case] one: Value, #[case] other: Value) {
        let mut guard = FailureGuard::default();
        guard.observe("shell", &one, false);
        guard.observe("shell", &other, false);
        assert_eq!(guard.observe("shell", &one, false), RepeatWarning::Repeats);
    }

    #[test]
    fn a_failing_call_of_another_tool_in_between_does_not_hide_it() {
        let mut guard = FailureGuard::default();
        for _ in 0..2 {
            guard.observe("shell", &json!({}), false);
            guard.observe("grep", &json!({}), false);
        }
        assert_eq!(guard.observe("shell", &json!({}), false), RepeatWarning::Repeats);
    }
}
