//! A conversation: the transcript and everything that outlives one run of the loop.
//!
//! Owns the transcript being sound: ids unique, every call answered. Never asks a model, never calls a tool.

use std::collections::{HashSet, VecDeque};

use protocol::{CallId, Message, PartialResult, TokenUsage, ToolCall};

use crate::{
    CallOutcome, CallResult,
    guard::{FailureGuard, WhyText},
};

/// How many of the last tool calls a partial result tells of.
const MAX_LAST_ACTIONS: usize = 20;

/// The orchestrator takes call ids up to here.
const MAX_CALL_ID_BYTES: usize = 200;

/// What a call reads as whose attempt ended before its result was known.
const RESULT_UNKNOWN: &str =
    "error (failed): the attempt ended before this call's result was known; check what it did before doing it again";

/// How far a conversation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Nothing was done yet: the first prompt is still to be told, and planned for.
    Fresh,
    /// Under way.
    Working,
}

/// What is known of the transcript's size from the last reply's usage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Measured {
    /// Tokens up to and including that reply.
    pub(crate) tokens: u64,
    /// Messages that those tokens cover.
    pub(crate) messages: usize,
}

/// A transcript with its counters and guards. Lives as long as the job's attempt; [`crate::Agent::run`] may be called
/// on it again.
#[derive(Debug, Clone)]
pub struct Conversation {
    pub(crate) messages: Vec<Message>,
    pub(crate) stage: Stage,
    pub(crate) iterations: u32,
    pub(crate) tool_calls: u32,
    pub(crate) usage: TokenUsage,
    pub(crate) measured: Option<Measured>,
    pub(crate) last_text: String,
    pub(crate) failures: FailureGuard,
    /// Why the next call is text only, if it is.
    pub(crate) text_only: Option<WhyText>,
    pub(crate) intent_nudges: u32,
    pub(crate) empty_replies: u32,
    pub(crate) truncated_in_a_row: u32,
    last_actions: VecDeque<String>,
    call_ids: HashSet<String>,
}

impl Conversation {
    /// A new one: instructions and the first prompt.
    pub fn new(system: impl Into<String>, prompt: impl Into<String>) -> Self {
        let messages = vec![Message::System { content: system.into() }, Message::User { content: prompt.into() }];
        Self::of(messages, Stage::Fresh)
    }

    /// One that an earlier attempt began. Calls without a result are answered with "not known".
    pub fn resume(transcript: Vec<Message>) -> Self {
        let begun = transcript.iter().any(|message| matches!(message, Message::Assistant { .. }));
        let stage = if begun { Stage::Working } else { Stage::Fresh };
        Self::of(answer_open_calls(transcript), stage)
    }

    fn of(messages: Vec<Message>, stage: Stage) -> Self {
        let call_ids = messages.iter().flat_map(calls_of).map(|call| call.id.clone()).collect();
        let last_text = messages.iter().rev().find_map(said).unwrap_or_default().to_owned();
        Self {
            messages,
            stage,
            iterations: 0,
            tool_calls: 0,
            usage: TokenUsage::default(),
            measured: None,
            last_text,
            failures: FailureGuard::default(),
            text_only: None,
            intent_nudges: 0,
            empty_replies: 0,
            truncated_in_a_row: 0,
            last_actions: VecDeque::new(),
            call_ids,
        }
    }

    /// The transcript.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Model calls made.
    pub const fn iterations(&self) -> u32 {
        self.iterations
    }

    /// What there is of a result, should it end now.
    pub fn partial(&self) -> PartialResult {
        PartialResult {
            text: self.last_text.clone(),
            last_actions: self.last_actions.iter().cloned().collect(),
            iterations: self.iterations,
            tool_calls: self.tool_calls,
            usage: self.usage,
        }
    }

    /// Puts a person's prompt in. It is a new word, so what was held against the model is forgotten.
    pub(crate) fn push_prompt(&mut self, content: String) {
        self.failures = FailureGuard::default();
        self.text_only = None;
        self.empty_replies = 0;
        self.truncated_in_a_row = 0;
        self.messages.push(Message::User { content });
    }

    /// Puts a word of the loop's own in.
    pub(crate) fn push_note(&mut self, content: impl Into<String>) {
        self.messages.push(Message::User { content: content.into() });
    }

    /// Puts the model's reply in, as cleaned. A reply of nothing leaves no trace.
    pub(crate) fn push_reply(&mut self, content: String, tool_calls: Vec<ToolCall>, reasoning: Option<String>) {
        if content.is_empty() && tool_calls.is_empty() {
            return;
        }
        if !content.is_empty() {
            self.last_text.clone_from(&content);
        }
        self.messages.push(Message::Assistant { content, tool_calls, reasoning });
    }

    /// Puts a call's result in.
    pub(crate) fn push_result(&mut self, call: &ToolCall, content: String) {
        let (tool_call_id, name) = (call.id.clone(), call.name.clone());
        self.messages.push(Message::Tool { tool_call_id, name, content });
    }

    /// Counts a call that was made.
    pub(crate) fn count_call(&mut self, name: &str, result: &CallResult) {
        self.tool_calls = self.tool_calls.saturating_add(1);
        let outcome = match &result.outcome {
            CallOutcome::Error(failure) => format!("error {}", failure.kind.as_str()),
            CallOutcome::Succeeded => "ok".to_owned(),
            CallOutcome::Failed => "error failed".to_owned(),
        };
        if self.last_actions.len() == MAX_LAST_ACTIONS {
            self.last_actions.pop_front();
        }
        self.last_actions.push_back(format!("{name}: {outcome}"));
    }

    /// Counts what a model call used.
    pub(crate) const fn count_usage(&mut self, used: TokenUsage) {
        let total = &mut self.usage;
        total.input_tokens = total.input_tokens.saturating_add(used.input_tokens);
        total.output_tokens = total.output_tokens.saturating_add(used.output_tokens);
        total.cache_read_tokens = total.cache_read_tokens.saturating_add(used.cache_read_tokens);
        total.cache_write_tokens = total.cache_write_tokens.saturating_add(used.cache_write_tokens);
    }

    /// Takes a turn's usage as the measure of the transcript so far, the reply included.
    pub(crate) const fn measure(&mut self, usage: TokenUsage) {
        if usage.input_tokens > 0 {
            let tokens = usage.input_tokens.saturating_add(usage.output_tokens);
            self.measured = Some(Measured { tokens, messages: self.messages.len() });
        }
    }

    /// Gives every call an id that no other call of the conversation has.
    pub(crate) fn name_calls(&mut self, calls: &mut [ToolCall]) {
        for call in calls {
            let unusable = call.id.is_empty() || call.id.len() > MAX_CALL_ID_BYTES || self.call_ids.contains(&call.id);
            if unusable {
                call.id = format!("call_{}", CallId::generate());
            }
            self.call_ids.insert(call.id.clone());
        }
    }

    /// Whether the model's last word ended the work.
    pub(crate) fn ended(&self) -> bool {
        matches!(self.messages.last(), Some(Message::Assistant { tool_calls, .. }) if tool_calls.is_empty())
    }

    /// Whether some wire needs the tools' definitions to read the transcript.
    pub(crate) fn has_tool_calls(&self) -> bool {
        self.messages.iter().any(|message| !calls_of(message).is_empty())
    }
}

/// The calls that a message asks for.
pub(crate) fn calls_of(message: &Message) -> &[ToolCall] {
    match message {
        Message::Assistant { tool_calls, .. } => tool_calls,
        Message::System { .. } | Message::User { .. } | Message::Tool { .. } => &[],
    }
}

fn said(message: &Message) -> Option<&str> {
    match message {
        Message::Assistant { content, .. } if !content.is_empty() => Some(content),
        _ => None,
    }
}

fn answer_open_calls(transcript: Vec<Message>) -> Vec<Message> {
    let answered: HashSet<String> = transcript
        .iter()
        .filter_map(|message| match message {
            Message::Tool { tool_call_id, .. } => Some(tool_call_id.clone()),
            _ => None,
        })
        .collect();
    let mut sound = Vec::with_capacity(transcript.len());
    let mut open: Vec<Message> = Vec::new();
    for message in transcript {
        // The answers stand after those that are there, before whatever comes next.
        if !matches!(message, Message::Tool { .. }) {
            sound.append(&mut open);
        }
        open.extend(calls_of(&message).iter().filter(|call| !answered.contains(&call.id)).map(|call| Message::Tool {
            tool_call_id: call.id.clone(),
            name: call.name.clone(),
            content: RESULT_UNKNOWN.to_owned(),
        }));
        sound.push(message);
    }
    sound.append(&mut open);
    sound
}
