//! A script: rules in YAML that answer in a model's place, for demos, tests and benchmarks without a key.
//!
//! Owns the grammar, its parsing and its refusals. Never keeps state and never waits: `engine` counts uses,
//! `serve` waits and speaks the providers' wire formats. The grammar is documented in `docs/scripted-models.md`.

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
use serde::Deserialize;
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

#[derive(Debug, Clone)]
pub struct Rule {
    /// The conditions under which it answers.
    pub when: When,
    /// How often it answers at most; none for any number of times.
    pub times: Option<u32>,
    pub action: Action,
}

/// Conditions, all of which must hold.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct When {
    /// On the newest message that is not a system message.
    pub last_message: Option<Matcher>,
    /// On a result that came back since the model last spoke.
    pub tool_result: Option<Matcher>,
    /// On the tool of such a result.
    pub tool_name: Option<Matcher>,
    /// On the first user message.
    pub prompt: Option<Matcher>,
    pub job_title: Option<Matcher>,
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
    pub from: u32,
    pub to: u32,
}

/// The response of a rule.
#[derive(Debug, Clone)]
pub enum Action {
    Reply(Box<ReplyTemplate>),
    Error {
        status: u16,
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
pub struct ReplyTemplate {
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
    pub chunk_pause: Duration,
    /// The connection drops after this many characters.
    pub cut_after_chars: Option<usize>,
}

/// A tool call of a script.
#[derive(Debug, Clone)]
pub struct ScriptedCall {
    /// Its id; none makes one from the turn and the position.
    pub id: Option<String>,
    pub name: String,
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
    Text(Template),
    /// A value that holds no strings.
    Plain(Value),
    List(Vec<TemplateValue>),
    /// An object, in the script's order of keys.
    Map(Vec<(String, TemplateValue)>),
}
