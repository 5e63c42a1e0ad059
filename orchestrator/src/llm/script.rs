//! A script: rules in YAML that answer in a model's place, for demos, tests and benchmarks without a key.
//!
//! Owns the grammar, its parsing and its refusals. Never keeps state and never waits: `engine` counts uses,
//! `serve` waits and speaks the providers' wire formats.
//!
//! # Grammar
//!
//! ```yaml
//! model: demo-1                   # optional: the name it reports; default "scripted"
//! rules:                          # tried in order, the first that matches answers; at most 1 000
//!   - name: write the program     # optional, for error messages
//!     when:                       # optional; every condition must hold; none = always (the default rule, put it last)
//!       prompt: primes            #   the conversation's first user message contains this
//!       turn: 1                   #   this is the n-th model call of the conversation (assistant messages + 1)
//!       has_tools: true           #   tools are on offer (and may be called)
//!     reply:
//!       text: I write a program for {{prompt}}.
//!       tool_calls:
//!         - name: write_file
//!           arguments: { path: primes.py, content: "print([2, 3, 5])\n" }
//!   - name: run it
//!     when: { tool_name: write_file, turn: { from: 2, to: 5 } }
//!     reply:
//!       tool_calls: [{ name: shell, arguments: { command: python3 primes.py } }]
//!   - name: report
//!     when: { tool_name: shell, tool_result: { regex: '(?m)^\[(\d+),.*\[exit 0\]' } }
//!     reply: { text: "It works, the first prime is {{match.1}}.", usage: { input_tokens: 900, output_tokens: 12 } }
//!   - { when: { last_message: slow }, reply: { text: Done at last., delay_ms: 1500 } }
//!   - { when: { last_message: busy }, times: 2, rate_limit: { retry_after_seconds: 1 } }
//!   - { when: { last_message: broken }, times: 1, error: { status: 500, message: oh no } }
//!   - { when: { last_message: nonsense }, garbage: true }
//!   - { when: { last_message: half }, reply: { text: This ends in the middle., cut_after_chars: 10 } }
//!   - { when: { last_message: never }, hang: true }
//!   - reply: { text: "You said: {{last_message}}" }
//! ```
//!
//! **`when`** (texts: a string is a substring, case-sensitive; `{regex: …}` is a regular expression, unanchored):
//! - `last_message`: the newest message that is not a system message, of any role (a tool result counts)
//! - `tool_result`: one of the results that came back since the model last spoke
//! - `tool_name`: the tool of such a result; together with `tool_result`, of the same one
//! - `prompt`: the first user message · `system`: all system messages · `job_title`: the job's title
//! - `turn`: `3` or `{from: 2, to: 5}`, both ends included and optional · `has_tools`: `true` or `false`
//!
//! A condition on something that is not there (a result on turn 1, a title of no job) does not hold.
//!
//! **Exactly one action** a rule:
//! - `reply`: at least one of `text`, `reasoning`, `tool_calls`; then, all optional: `finish_reason` (`stop`, `length`,
//!   `tool_calls`, `content_filter`; default from the content), `usage` (`input_tokens`, `output_tokens`,
//!   `cache_read_tokens`, `cache_write_tokens`; default about four bytes a token), `delay_ms` (before the first byte),
//!   `chunk_chars` (default 24) and `chunk_ms` (pause between chunks, default 0) of a streamed answer,
//!   `cut_after_chars` (the connection drops after this many characters of text and arguments)
//! - `error`: `status` (400–599), `message`, `retry_after_seconds`, as the provider would put it
//! - `rate_limit`: `{retry_after_seconds: 2}` or `{}`: an error with status 429
//! - `garbage: true`: bytes that are no answer, under status 200
//! - `hang: true`: no answer, ever; the caller's timeout ends it
//!
//! **`times: N`**: the rule answers at most N times per loaded script (all conversations together); then it is passed
//! over. This is a script's only state. To do something once per job, say `turn`.
//!
//! **`tool_calls`**: several in one reply are parallel calls. `name`; `arguments`, a mapping (its strings are
//! templates, at any depth) or one string that is sent as it is, so also what is no JSON; `id` (default made from the
//! turn and the position); `thought_signatures`, opaque strings that come back with the call.
//!
//! **Templates** (in `text`, `reasoning`, arguments and an error's `message`): `{{last_message}}`, `{{tool_result}}`,
//! `{{tool_name}}`, `{{prompt}}`, `{{job_title}}`, `{{turn}}`, and of the rule's regex `{{match.0}}` (all of it),
//! `{{match.1}}`, `{{match.word}}`. With several regexes in one `when` the first in this order counts: `last_message`,
//! `tool_result`, `tool_name`, `prompt`, `job_title`, `system`. What is not there is empty. An unknown name is
//! refused when the script is loaded; `\{{` is a plain `{{`. Braces that hold no name, as in `{{ 'a': 1 }}`, are plain.
//!
//! If no rule matches, the answer is a text that explains this.

mod check;
pub(super) mod engine;
mod match_context;
mod raw;
mod template;

pub use check::ScriptError;
pub use template::{Template, Values};

use std::{fs, path::Path, time::Duration};

use protocol::{FinishReason, TokenUsage};
use regex::Regex;
use serde_json::Value;

use super::error::GatewayError;

/// Answers when no provider is configured.
const DEMO: &str = include_str!("../../../docker/demo.yaml");

/// A valid script.
#[derive(Debug, Clone)]
pub struct Script {
    /// The model name that it reports.
    pub model: String,
    /// The rules, in the order in which they are tried.
    pub rules: Vec<Rule>,
}

impl Script {
    /// The script in this file, or the built-in demo.
    pub(super) fn load(path: Option<&Path>) -> Result<Self, GatewayError> {
        let Some(path) = path else {
            return Self::parse(DEMO).map_err(|source| GatewayError::Script { path: "(built in)".into(), source });
        };
        let text =
            fs::read_to_string(path).map_err(|source| GatewayError::ScriptFile { path: path.to_owned(), source })?;
        Self::parse(&text).map_err(|source| GatewayError::Script { path: path.to_owned(), source })
    }

    /// Reads a script; an error names the rule and the field.
    pub fn parse(yaml: &str) -> Result<Self, ScriptError> {
        check::parse(yaml)
    }
}

/// One rule.
#[derive(Debug, Clone)]
pub struct Rule {
    /// The conditions under which it answers.
    pub when: When,
    /// How often it answers at most; none for any number of times.
    pub times: Option<u32>,
    /// The response.
    pub action: Action,
}

/// Conditions, all of which must hold.
#[derive(Debug, Clone, Default)]
pub struct When {
    /// On the newest message that is not a system message.
    pub last_message: Option<Matcher>,
    /// On a result that came back since the model last spoke.
    pub tool_result: Option<Matcher>,
    /// On the tool of such a result.
    pub tool_name: Option<Matcher>,
    /// On the first user message.
    pub prompt: Option<Matcher>,
    /// On the job's title.
    pub job_title: Option<Matcher>,
    /// On the system messages.
    pub system: Option<Matcher>,
    /// On the number of the model call.
    pub turn: Option<TurnRange>,
    /// On whether tools are on offer.
    pub has_tools: Option<bool>,
}

/// A condition on a text.
#[derive(Debug, Clone)]
pub enum Matcher {
    /// The text contains this one.
    Contains(String),
    /// The expression matches somewhere in the text.
    Regex(Regex),
}

/// A range of model calls, both ends included, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TurnRange {
    /// The first.
    pub from: u32,
    /// The last.
    pub to: u32,
}

/// The response of a rule.
#[derive(Debug, Clone)]
pub enum Action {
    /// An answer.
    Reply(Box<Reply>),
    /// An HTTP error.
    Error {
        /// The HTTP status.
        status: u16,
        /// The error's message.
        message: Template,
        /// The value of `Retry-After`.
        retry_after: Option<Duration>,
    },
    /// A body that is not an answer.
    InvalidResponse,
    /// No answer, ever.
    Hang,
}

/// An answer.
#[derive(Debug, Clone)]
pub struct Reply {
    /// The text; may be empty.
    pub text: Template,
    /// The reasoning, if any.
    pub reasoning: Option<Template>,
    /// The tool calls, in order.
    pub tool_calls: Vec<ScriptedCall>,
    /// The reason of its end; none derives it from the content.
    pub finish_reason: Option<FinishReason>,
    /// The reported usage; none estimates it.
    pub usage: Option<TokenUsage>,
    /// The wait before the first byte.
    pub delay: Duration,
    /// Characters per chunk of a streamed answer.
    pub chunk_chars: usize,
    /// The pause between chunks.
    pub chunk_pause: Duration,
    /// The connection drops after this many characters.
    pub cut_after_chars: Option<usize>,
}

/// A tool call of a script.
#[derive(Debug, Clone)]
pub struct ScriptedCall {
    /// Its id; none makes one from the turn and the position.
    pub id: Option<String>,
    /// The tool.
    pub name: String,
    /// The arguments.
    pub arguments: ScriptedArguments,
    /// Opaque strings that come back with the call.
    pub thought_signatures: Vec<String>,
}

/// Arguments of a scripted call.
#[derive(Debug, Clone)]
pub enum ScriptedArguments {
    /// A JSON value with templates in its strings.
    Json(TemplateValue),
    /// A text that is sent as it is, JSON or not.
    Verbatim(Template),
}

/// A JSON value whose strings are templates.
#[derive(Debug, Clone)]
pub enum TemplateValue {
    /// A string.
    Text(Template),
    /// A value that holds no strings.
    Plain(Value),
    /// An array.
    List(Vec<TemplateValue>),
    /// An object, in the script's order of keys.
    Map(Vec<(String, TemplateValue)>),
}
