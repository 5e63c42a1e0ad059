//! Plays a script: which rule answers a conversation, and with what. Owns the count of `times`, the only state there
//! is. Never waits and speaks no wire: the gateway and [`super::serve`] do.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use protocol::{Completion, FinishReason, Message, TokenUsage, ToolCall};
use regex::Captures;
use serde_json::Value;

use super::{
    arguments,
    script::{Action, Matcher, Reply, Rule, Script, ScriptedArguments, ScriptedCall, TemplateValue, Values, When},
};

/// A script that is being played. Clones share its count.
#[derive(Debug, Clone)]
pub(super) struct Player {
    script: Arc<Script>,
    used: Arc<[AtomicU32]>,
}

/// What is asked, in no provider's words.
#[derive(Debug, Clone, Copy)]
pub(super) struct Question<'a> {
    /// The conversation so far.
    pub messages: &'a [Message],
    /// Whether tools may be called.
    pub has_tools: bool,
    /// The job's title, if there is a job.
    pub job_title: Option<&'a str>,
}

/// What happens.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Play {
    /// An answer.
    Answer(Box<Played>),
    /// A failure as a provider has it.
    Error {
        /// The HTTP status.
        status: u16,
        /// The provider's words.
        message: String,
        /// What it says to wait.
        retry_after: Option<Duration>,
    },
    /// What is no answer.
    Garbage,
    /// Nothing, ever.
    Hang,
}

/// An answer, ready to be sent.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Played {
    /// The text.
    pub text: String,
    /// The reasoning.
    pub reasoning: Option<String>,
    /// The calls.
    pub calls: Vec<PlayedCall>,
    /// Why it ends.
    pub finish_reason: FinishReason,
    /// Tokens.
    pub usage: TokenUsage,
    /// Before the first byte.
    pub delay: Duration,
    /// Characters a chunk.
    pub chunk_chars: usize,
    /// Between chunks.
    pub chunk_pause: Duration,
    /// The connection drops once so many characters are out.
    pub cut_after_chars: Option<usize>,
}

/// A call as a model writes it: the arguments are text, JSON or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PlayedCall {
    /// Its id.
    pub id: String,
    /// The tool.
    pub name: String,
    /// What it is called with, as written.
    pub arguments: String,
    /// Opaque signatures.
    pub thought_signatures: Vec<String>,
}

impl Player {
    /// Starts a script with nothing used.
    pub(super) fn new(script: Script) -> Self {
        let used = script.rules.iter().map(|_| AtomicU32::new(0)).collect();
        Self { script: Arc::new(script), used }
    }

    /// The name it reports as its model.
    pub(super) fn model(&self) -> &str {
        &self.script.model
    }

    /// The first rule that matches and is not used up, as an answer.
    pub(super) fn play(&self, question: Question<'_>) -> Play {
        let scene = Scene::of(question);
        for (rule, used) in self.script.rules.iter().zip(self.used.iter()) {
            let Ok(values) = scene.matched(&rule.when) else { continue };
            if take_one(rule, used) {
                return act(&rule.action, &scene, &values);
            }
        }
        let text = format!("The script has no rule for this message (model call {}).", scene.turn);
        let usage = scene.estimate(text.len());
        Play::Answer(Box::new(Played::plain(text, usage)))
    }
}

impl Played {
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

    /// Characters of everything that is written.
    pub(super) fn written_chars(&self) -> usize {
        let texts = [self.reasoning.as_deref().unwrap_or_default(), &self.text];
        let arguments = self.calls.iter().map(|call| call.arguments.as_str());
        texts.into_iter().chain(arguments).map(|text| text.chars().count()).sum()
    }

    /// How long its chunks take to come.
    pub(super) fn streaming_time(&self) -> Duration {
        let chars = self.cut_after_chars.unwrap_or(usize::MAX).min(self.written_chars());
        let chunks = chars.div_ceil(self.chunk_chars.max(1));
        self.chunk_pause.saturating_mul(u32::try_from(chunks).unwrap_or(u32::MAX))
    }

    /// As the gateway gives it to its caller.
    pub(super) fn completion(&self) -> Completion {
        Completion {
            content: self.text.clone(),
            tool_calls: self
                .calls
                .iter()
                .map(|call| ToolCall {
                    id: call.id.clone(),
                    name: call.name.clone(),
                    arguments: arguments::read(&call.arguments),
                    thought_signatures: call.thought_signatures.clone(),
                })
                .collect(),
            reasoning: self.reasoning.clone(),
            finish_reason: self.finish_reason,
            usage: self.usage,
            notice: None,
        }
    }
}

/// Counts one use unless the rule has none left. Two conversations at once never share the last one.
fn take_one(rule: &Rule, used: &AtomicU32) -> bool {
    rule.times.is_none_or(|times| {
        used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| (used < times).then_some(used + 1)).is_ok()
    })
}

fn act(action: &Action, scene: &Scene<'_>, values: &Values<'_>) -> Play {
    match action {
        Action::Reply(reply) => Play::Answer(Box::new(answer(reply, scene, values))),
        Action::Error { status, message, retry_after } => {
            Play::Error { status: *status, message: message.render(values), retry_after: *retry_after }
        }
        Action::Garbage => Play::Garbage,
        Action::Hang => Play::Hang,
    }
}

fn answer(reply: &Reply, scene: &Scene<'_>, values: &Values<'_>) -> Played {
    let text = reply.text.render(values);
    let reasoning = reply.reasoning.as_ref().map(|reasoning| reasoning.render(values));
    let calls: Vec<_> =
        reply.tool_calls.iter().enumerate().map(|(index, call)| played_call(call, index, values)).collect();
    let written = text.len()
        + reasoning.as_ref().map_or(0, String::len)
        + calls.iter().map(|call| call.name.len() + call.arguments.len()).sum::<usize>();
    let from_content = if calls.is_empty() { FinishReason::Stop } else { FinishReason::ToolCalls };
    Played {
        text,
        reasoning,
        calls,
        finish_reason: reply.finish_reason.unwrap_or(from_content),
        usage: reply.usage.unwrap_or_else(|| scene.estimate(written)),
        delay: reply.delay,
        chunk_chars: reply.chunk_chars,
        chunk_pause: reply.chunk_pause,
        cut_after_chars: reply.cut_after_chars,
    }
}

fn played_call(call: &ScriptedCall, index: usize, values: &Values<'_>) -> PlayedCall {
    PlayedCall {
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

/// A conversation as the rules see it.
struct Scene<'a> {
    last_message: Option<&'a str>,
    /// Tool and result, since the model last spoke.
    results: Vec<(&'a str, &'a str)>,
    prompt: Option<&'a str>,
    system: String,
    job_title: Option<&'a str>,
    turn: u32,
    has_tools: bool,
    bytes: usize,
}

impl<'a> Scene<'a> {
    fn of(question: Question<'a>) -> Self {
        let mut scene = Self {
            last_message: None,
            results: Vec::new(),
            prompt: None,
            system: String::new(),
            job_title: question.job_title,
            turn: 1,
            has_tools: question.has_tools,
            bytes: 0,
        };
        for message in question.messages {
            scene.hear(message);
        }
        scene
    }

    fn hear(&mut self, message: &'a Message) {
        match message {
            Message::System { content } => {
                self.bytes += content.len();
                if !self.system.is_empty() {
                    self.system.push('\n');
                }
                self.system.push_str(content);
            }
            Message::User { content } => {
                self.bytes += content.len();
                self.prompt.get_or_insert(content);
                self.last_message = Some(content);
            }
            Message::Assistant { content, tool_calls, .. } => {
                self.bytes += content.len();
                self.bytes += tool_calls.iter().map(|call| call.arguments.to_string().len()).sum::<usize>();
                self.results.clear();
                self.turn = self.turn.saturating_add(1);
                self.last_message = Some(content);
            }
            Message::Tool { name, content, .. } => {
                self.bytes += content.len();
                self.results.push((name, content));
                self.last_message = Some(content);
            }
        }
    }

    /// What fills the holes when every condition holds.
    fn matched<'b>(&'b self, when: &When) -> Result<Values<'b>, Unmet> {
        let turn = when.turn.is_none_or(|range| (range.from..=range.to).contains(&self.turn));
        let has_tools = when.has_tools.is_none_or(|wanted| wanted == self.has_tools);
        if !turn || !has_tools {
            return Err(Unmet);
        }
        let last_message = found(when.last_message.as_ref(), self.last_message)?;
        let (result, on_result) = self.matched_result(when)?;
        let prompt = found(when.prompt.as_ref(), self.prompt)?;
        let job_title = found(when.job_title.as_ref(), self.job_title)?;
        let system = found(when.system.as_ref(), (!self.system.is_empty()).then_some(self.system.as_str()))?;
        Ok(Values {
            last_message: self.last_message.unwrap_or_default(),
            tool_name: result.0,
            tool_result: result.1,
            prompt: self.prompt.unwrap_or_default(),
            job_title: self.job_title.unwrap_or_default(),
            turn: self.turn,
            captures: last_message.or(on_result).or(prompt).or(job_title).or(system),
        })
    }

    /// The newest result that fulfils what the rule says of results, with what its regex found.
    fn matched_result<'b>(&'b self, when: &When) -> Result<((&'b str, &'b str), Option<Captures<'b>>), Unmet> {
        if when.tool_result.is_none() && when.tool_name.is_none() {
            return Ok((self.results.last().copied().unwrap_or_default(), None));
        }
        let fulfils = |result: &(&'b str, &'b str)| {
            let by_name = found(when.tool_name.as_ref(), Some(result.0))?;
            let by_text = found(when.tool_result.as_ref(), Some(result.1))?;
            Ok((*result, by_text.or(by_name)))
        };
        self.results.iter().rev().map(fulfils).find(Result::is_ok).unwrap_or(Err(Unmet))
    }

    fn estimate(&self, written_bytes: usize) -> TokenUsage {
        TokenUsage {
            input_tokens: arguments::tokens_of_bytes(self.bytes),
            output_tokens: arguments::tokens_of_bytes(written_bytes),
            ..TokenUsage::default()
        }
    }
}

/// A condition does not hold.
struct Unmet;

/// What a condition's regex found, if it is one.
fn found<'t>(matcher: Option<&Matcher>, text: Option<&'t str>) -> Result<Option<Captures<'t>>, Unmet> {
    match (matcher, text) {
        (None, _) => Ok(None),
        (Some(_), None) => Err(Unmet),
        (Some(Matcher::Contains(part)), Some(text)) => text.contains(part.as_str()).then_some(None).ok_or(Unmet),
        (Some(Matcher::Regex(regex)), Some(text)) => regex.captures(text).map(Some).ok_or(Unmet),
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
        Message::Assistant { content: content.to_owned(), tool_calls: Vec::new(), reasoning: None }
    }

    fn result(name: &str, content: &str) -> Message {
        Message::Tool { tool_call_id: "1".to_owned(), name: name.to_owned(), content: content.to_owned() }
    }

    fn player(yaml: &str) -> Player {
        Player::new(Script::parse(yaml).unwrap())
    }

    fn text(player: &Player, messages: &[Message]) -> String {
        match player.play(Question { messages, has_tools: true, job_title: Some("Nightly report") }) {
            Play::Answer(answer) => answer.text,
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
        let player = player(&format!("rules: [{{when: {when}, reply: {{text: 'yes'}}}}, {{reply: {{text: 'no'}}}}]"));
        assert_eq!(text(&player, &conversation), if holds { "yes" } else { "no" });
    }

    #[test]
    fn arguments_are_filled_and_ids_come_from_the_turn() {
        let player = player(
            r"
rules:
  - when: { last_message: { regex: 'add (?P<a>\d+) and (\d+)' } }
    reply:
      tool_calls:
        - { name: sum, arguments: { of: ['{{match.a}}', '{{match.2}}'], keep: 7, note: 'turn {{turn}}' } }
        - { name: sum, arguments: '{broken', id: mine, thought_signatures: [sig] }
",
        );
        let Play::Answer(answer) =
            player.play(Question { messages: &[user("add 3 and 44")], has_tools: true, job_title: None })
        else {
            panic!("no answer")
        };
        let completion = answer.completion();
        assert_eq!(completion.finish_reason, FinishReason::ToolCalls);
        assert_eq!(completion.tool_calls[0].id, "call_1_1");
        assert_eq!(completion.tool_calls[0].arguments, json!({"of": ["3", "44"], "keep": 7, "note": "turn 1"}));
        assert_eq!(completion.tool_calls[1].id, "mine");
        assert_eq!(completion.tool_calls[1].arguments, json!("{broken"));
        assert_eq!(completion.tool_calls[1].thought_signatures, ["sig"]);
        assert_eq!(completion.usage.input_tokens, 3);
    }

    #[test]
    fn a_rule_with_times_gives_way_when_it_is_used_up() {
        let player = player("rules: [{times: 2, reply: {text: first}}, {reply: {text: then}}]");
        let again = player.clone();
        let hello = [user("hello")];
        assert_eq!([text(&player, &hello), text(&again, &hello), text(&player, &hello)], ["first", "first", "then"]);
    }

    #[test]
    fn without_a_rule_it_says_so() {
        let player = player("rules: [{when: {prompt: x}, reply: {text: a}}]");
        assert_eq!(text(&player, &[user("hello")]), "The script has no rule for this message (model call 1).");
    }
}
