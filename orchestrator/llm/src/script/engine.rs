//! Evaluates a script: which rule answers a conversation, and with what. Owns the count of `times`, the only state of a
//! script. Never waits and knows no wire format: `serve` does.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use protocol::{FinishReason, Message, TokenUsage};
use serde_json::Value;

use super::{
    Action, ReplyTemplate, Rule, Script, ScriptedArguments, ScriptedCall, TemplateValue, Values,
    match_context::MatchContext,
};

/// A script with its counts of uses. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct ScriptEngine {
    script: Arc<Script>,
    used: Arc<[AtomicU32]>,
}

/// A question, independent of the wire format.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Question<'a> {
    pub messages: &'a [Message],
    /// Whether tools may be called.
    pub has_tools: bool,
    /// The job's title, if there is a job.
    pub job_title: Option<&'a str>,
}

/// How the script responds.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ScriptedResponse {
    Answer(Box<ScriptedReply>),
    Error {
        status: u16,
        message: String,
        /// The value of `Retry-After`.
        retry_after: Option<Duration>,
    },
    /// A body that is not an answer.
    InvalidResponse,
    /// No answer, ever.
    Hang,
}

/// An answer to be sent.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ScriptedReply {
    pub text: String,
    pub reasoning: Option<String>,
    pub calls: Vec<ScriptedToolCall>,
    /// The reason of its end.
    pub finish_reason: FinishReason,
    pub usage: TokenUsage,
    /// The wait before the first byte.
    pub delay: Duration,
    /// Characters per chunk.
    pub chunk_chars: usize,
    pub chunk_pause: Duration,
    /// The connection drops after this many characters.
    pub cut_after_chars: Option<usize>,
}

/// A tool call as a model writes it: the arguments are text, JSON or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ScriptedToolCall {
    pub id: String,
    pub name: String,
    pub arguments: String,
    /// Opaque signatures; sent on the wires that have a place for them.
    pub thought_signatures: Vec<String>,
}

impl ScriptEngine {
    /// An engine whose rules have not been used.
    pub(crate) fn new(script: Script) -> Self {
        let used = script.rules.iter().map(|_| AtomicU32::new(0)).collect();
        Self { script: Arc::new(script), used }
    }

    /// The model name that it reports.
    pub(crate) fn model(&self) -> &str {
        &self.script.model
    }

    /// The response of the first rule that matches and is not used up.
    pub(crate) fn respond(&self, question: Question<'_>) -> ScriptedResponse {
        let context = MatchContext::of(question);
        for (rule, used) in self.script.rules.iter().zip(self.used.iter()) {
            let Ok(values) = context.matched(&rule.when) else { continue };
            if take_one(rule, used) {
                return execute(&rule.action, &context, &values);
            }
        }
        let text = format!("The script has no rule for this message (model call {}).", context.turn);
        let usage = context.estimate(text.len());
        ScriptedResponse::Answer(Box::new(ScriptedReply::plain(text, usage)))
    }
}

impl ScriptedReply {
    fn plain(text: String, usage: TokenUsage) -> Self {
        Self {
            text,
            reasoning: None,
            calls: Vec::new(),
            finish_reason: FinishReason::Stop,
            usage,
            delay: Duration::ZERO,
            chunk_chars: 24,
            chunk_pause: Duration::ZERO,
            cut_after_chars: None,
        }
    }
}

/// Counts one use unless the rule is used up. Two concurrent conversations never share the last use.
fn take_one(rule: &Rule, used: &AtomicU32) -> bool {
    rule.times.is_none_or(|times| {
        used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| (used < times).then_some(used + 1)).is_ok()
    })
}

fn execute(action: &Action, context: &MatchContext<'_>, values: &Values<'_>) -> ScriptedResponse {
    match action {
        Action::Reply(reply) => ScriptedResponse::Answer(Box::new(answer(reply, context, values))),
        Action::Error { status, message, retry_after } => {
            ScriptedResponse::Error { status: *status, message: message.render(values), retry_after: *retry_after }
        }
        Action::InvalidResponse => ScriptedResponse::InvalidResponse,
        Action::Hang => ScriptedResponse::Hang,
    }
}

fn answer(reply: &ReplyTemplate, context: &MatchContext<'_>, values: &Values<'_>) -> ScriptedReply {
    let text = reply.text.render(values);
    let reasoning = reply.reasoning.as_ref().map(|reasoning| reasoning.render(values));
    let calls: Vec<_> =
        reply.tool_calls.iter().enumerate().map(|(index, call)| scripted_call(call, index, values)).collect();
    let written = text.len()
        + reasoning.as_ref().map_or(0, String::len)
        + calls.iter().map(|call| call.name.len() + call.arguments.len()).sum::<usize>();
    let from_content = if calls.is_empty() { FinishReason::Stop } else { FinishReason::ToolCalls };
    ScriptedReply {
        text,
        reasoning,
        calls,
        finish_reason: reply.finish_reason.unwrap_or(from_content),
        usage: reply.usage.unwrap_or_else(|| context.estimate(written)),
        delay: reply.delay,
        chunk_chars: reply.chunk_chars,
        chunk_pause: reply.chunk_pause,
        cut_after_chars: reply.cut_after_chars,
    }
}

fn scripted_call(call: &ScriptedCall, index: usize, values: &Values<'_>) -> ScriptedToolCall {
    ScriptedToolCall {
        id: call.id.clone().unwrap_or_else(|| format!("call_{}_{}", values.turn, index + 1)),
        name: call.name.clone(),
        arguments: match &call.arguments {
            ScriptedArguments::Json(value) => fill(value, values).to_string(),
            ScriptedArguments::Verbatim(text) => text.render(values),
        },
        thought_signatures: call.thought_signatures.clone(),
    }
}

fn fill(value: &TemplateValue, values: &Values<'_>) -> Value {
    match value {
        TemplateValue::Text(text) => Value::String(text.render(values)),
        TemplateValue::Plain(plain) => plain.clone(),
        TemplateValue::List(items) => items.iter().map(|item| fill(item, values)).collect(),
        TemplateValue::Map(entries) => entries.iter().map(|(key, item)| (key.clone(), fill(item, values))).collect(),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn user(content: &str) -> Message {
        Message::User { content: content.to_owned() }
    }

    fn assistant(content: &str) -> Message {
        Message::Assistant { content: content.to_owned(), tool_calls: Vec::new(), native: None }
    }

    fn result(name: &str, content: &str) -> Message {
        Message::Tool { tool_call_id: "1".to_owned(), name: name.to_owned(), content: content.to_owned() }
    }

    fn engine(yaml: &str) -> ScriptEngine {
        ScriptEngine::new(Script::parse(yaml).unwrap())
    }

    fn text(engine: &ScriptEngine, messages: &[Message]) -> String {
        match engine.respond(Question { messages, has_tools: true, job_title: Some("Nightly report") }) {
            ScriptedResponse::Answer(answer) => answer.text,
            other => panic!("no answer: {other:?}"),
        }
    }

    #[rstest]
    #[case("{last_message: two}", true)]
    #[case("{last_message: one}", false)]
    #[case("{prompt: one}", true)]
    #[case("{prompt: two}", false)]
    #[case("{tool_result: eight}", true)]
    #[case("{tool_result: old}", false)]
    #[case("{tool_name: shell, tool_result: eight}", true)]
    #[case("{tool_name: grep, tool_result: eight}", false)]
    #[case("{tool_name: {regex: '^gr'}}", true)]
    #[case("{system: careful}", true)]
    #[case("{system: careless}", false)]
    #[case("{job_title: {regex: '(?i)nightly'}}", true)]
    #[case("{turn: 3}", true)]
    #[case("{turn: {to: 2}}", false)]
    #[case("{turn: {from: 3}}", true)]
    #[case("{has_tools: false}", false)]
    #[case("{has_tools: true, turn: 3, prompt: one}", true)]
    fn conditions(#[case] when: &str, #[case] holds: bool) {
        let conversation = [
            Message::System { content: "be careful".to_owned() },
            user("one"),
            assistant(""),
            result("shell", "old"),
            assistant(""),
            result("shell", "seven, eight"),
            result("grep", "nine"),
            user("two"),
        ];
        let engine = engine(&format!("rules: [{{when: {when}, reply: {{text: 'yes'}}}}, {{reply: {{text: 'no'}}}}]"));
        assert_eq!(text(&engine, &conversation), if holds { "yes" } else { "no" });
    }

    #[rstest]
    #[case("# Nightly report\n\nrun: ls")]
    #[case("run: ls")]
    fn a_prompt_is_matched_without_the_title_that_opens_it(#[case] prompt: &str) {
        let engine = engine("rules: [{when: {prompt: {regex: '^run: (.*)$'}}, reply: {text: '{{match.1}}'}}]");
        assert_eq!(text(&engine, &[user(prompt)]), "ls");
    }

    #[test]
    fn arguments_are_filled_and_ids_come_from_the_turn() {
        let engine = engine(
            r"
rules:
  - when: { last_message: { regex: 'add (?P<a>\d+) and (\d+)' } }
    reply:
      tool_calls:
        - { name: sum, arguments: { of: ['{{match.a}}', '{{match.2}}'], keep: 7, note: 'turn {{turn}}' } }
        - { name: sum, arguments: '{broken', id: mine, thought_signatures: [sig] }
",
        );
        let ScriptedResponse::Answer(answer) =
            engine.respond(Question { messages: &[user("add 3 and 44")], has_tools: true, job_title: None })
        else {
            panic!("no answer")
        };
        assert_eq!(answer.finish_reason, FinishReason::ToolCalls);
        assert_eq!(answer.calls[0].id, "call_1_1");
        let arguments: Value = serde_json::from_str(&answer.calls[0].arguments).unwrap();
        assert_eq!(arguments, json!({"of": ["3", "44"], "keep": 7, "note": "turn 1"}));
        assert_eq!((answer.calls[1].id.as_str(), answer.calls[1].arguments.as_str()), ("mine", "{broken"));
        assert_eq!(answer.calls[1].thought_signatures, ["sig"]);
        assert_eq!(answer.usage.input_tokens, 3);
    }

    #[test]
    fn a_rule_with_times_is_skipped_when_it_is_used_up() {
        let engine = engine("rules: [{times: 2, reply: {text: first}}, {reply: {text: then}}]");
        let again = engine.clone();
        let hello = [user("hello")];
        assert_eq!([text(&engine, &hello), text(&again, &hello), text(&engine, &hello)], ["first", "first", "then"]);
    }

    #[test]
    fn without_a_rule_it_says_so() {
        let engine = engine("rules: [{when: {prompt: x}, reply: {text: a}}]");
        assert_eq!(text(&engine, &[user("hello")]), "The script has no rule for this message (model call 1).");
    }
}
