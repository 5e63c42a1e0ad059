//! A conversation as the rules of a script see it: what their conditions are held against.

use agent::{safety::unwrap_untrusted, split_context};
use domain::job::without_title;
use protocol::{Message, TokenUsage};
use regex::Captures;

use super::{Matcher, Values, When, engine::Question};
use crate::arguments;

/// A conversation as the rules see it.
#[derive(Default)]
pub(super) struct MatchContext<'a> {
    last_message: Option<&'a str>,
    /// Tools and results since the model's last message.
    results: Vec<(&'a str, &'a str)>,
    prompt: Option<&'a str>,
    system: String,
    job_title: Option<&'a str>,
    pub(super) turn: u32,
    has_tools: bool,
    bytes: usize,
}

impl<'a> MatchContext<'a> {
    pub(super) fn of(question: Question<'a>) -> Self {
        let mut context =
            Self { job_title: question.job_title, turn: 1, has_tools: question.has_tools, ..Self::default() };
        for message in question.messages {
            context.observe(message);
        }
        context
    }

    fn observe(&mut self, message: &'a Message) {
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
                // A script is written for what a person said.
                let mut content = split_context(content).0;
                if let (None, Some(title)) = (self.prompt, self.job_title) {
                    content = without_title(content, title);
                }
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
                // A script is written for what the tool returned.
                let content = unwrap_untrusted(content);
                self.results.push((name, content));
                self.last_message = Some(content);
            }
        }
    }

    /// The values of the placeholders, if every condition holds.
    pub(super) fn matched<'b>(&'b self, when: &When) -> Result<Values<'b>, NoMatch> {
        let turn = when.turn.is_none_or(|range| (range.from..=range.to).contains(&self.turn));
        let has_tools = when.has_tools.is_none_or(|wanted| wanted == self.has_tools);
        if !turn || !has_tools {
            return Err(NoMatch);
        }
        let last_message = captured(when.last_message.as_ref(), self.last_message)?;
        let (result, on_result) = self.matched_result(when)?;
        let prompt = captured(when.prompt.as_ref(), self.prompt)?;
        let job_title = captured(when.job_title.as_ref(), self.job_title)?;
        let system = captured(when.system.as_ref(), (!self.system.is_empty()).then_some(self.system.as_str()))?;
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

    /// The newest result that meets the rule's conditions on results, with what its regex captured.
    fn matched_result<'b>(&'b self, when: &When) -> Result<((&'b str, &'b str), Option<Captures<'b>>), NoMatch> {
        if when.tool_result.is_none() && when.tool_name.is_none() {
            return Ok((self.results.last().copied().unwrap_or_default(), None));
        }
        let fulfils = |result: &(&'b str, &'b str)| {
            let by_name = captured(when.tool_name.as_ref(), Some(result.0))?;
            let by_text = captured(when.tool_result.as_ref(), Some(result.1))?;
            Ok((*result, by_text.or(by_name)))
        };
        self.results.iter().rev().map(fulfils).find(Result::is_ok).unwrap_or(Err(NoMatch))
    }

    pub(super) fn estimate(&self, written_bytes: usize) -> TokenUsage {
        TokenUsage {
            input_tokens: arguments::tokens_of_bytes(self.bytes),
            output_tokens: arguments::tokens_of_bytes(written_bytes),
            ..TokenUsage::default()
        }
    }
}

/// A condition that does not hold.
pub(super) struct NoMatch;

/// The captures of a condition's regex, if it is one.
fn captured<'t>(matcher: Option<&Matcher>, text: Option<&'t str>) -> Result<Option<Captures<'t>>, NoMatch> {
    match (matcher, text) {
        (None, _) => Ok(None),
        (Some(_), None) => Err(NoMatch),
        (Some(Matcher::Contains(part)), Some(text)) => text.contains(part.as_str()).then_some(None).ok_or(NoMatch),
        (Some(Matcher::Regex(regex)), Some(text)) => regex.captures(text).map(Some).ok_or(NoMatch),
    }
}
