//! A run: the counters and guards of one piece of work on a transcript.

pub(crate) mod act;
pub(crate) mod approvals;
pub(crate) mod ask;
pub(crate) mod cut;
pub(crate) mod guard;
pub(crate) mod intent;
pub(crate) mod outage;
pub(crate) mod outcome;
pub(crate) mod plan;
pub(crate) mod signals;
pub(crate) mod unread;

use std::collections::VecDeque;

use protocol::{CUT_NOTE, PartialResult, TokenUsage, ToolCall};
use serde::{Deserialize, Serialize};

use self::{approvals::ParkedCall, guard::Guards};
use crate::{ApprovalAnswer, ApprovalRequest, CallOutcome, CallResult, NothingToApprove, Transcript};

/// Maximum number of recent tool calls in a partial result.
const MAX_LAST_ACTIONS: usize = 20;

/// The counters and guards of one piece of work: a job's attempt, a lightweight run, a chat turn. [`crate::Agent::run`] may
/// be called on it again.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Run {
    pub(crate) stage: Stage,
    pub(crate) iterations: u32,
    pub(crate) tool_calls: u32,
    /// Replies whose calls were run.
    #[serde(default)]
    pub(crate) tool_rounds: u32,
    /// Whether a call of [`crate::Settings::final_tool`] has succeeded.
    #[serde(default)]
    pub called_final_tool: bool,
    pub(crate) usage: TokenUsage,
    pub(crate) last_text: String,
    /// Whether the last text is an answer that the model's output limit cut.
    #[serde(default)]
    pub is_cut: bool,
    pub(crate) guards: Guards,
    pub(crate) reported_size: ReportedSize,
    /// A call that waits for a person.
    pub(crate) parked: Option<ParkedCall>,
    /// A message that came with the last reply, to be added after the results of its calls.
    pub(crate) notice: Option<String>,
    last_actions: VecDeque<String>,
}

/// The stage of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Stage {
    /// The prompt is not recorded yet.
    #[default]
    New,
    /// The prompt was recorded, and the model has not replied.
    PromptRecorded,
    /// The work has begun.
    Working,
}

/// The size of the transcript according to the provider.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ReportedSize {
    /// No usage was reported since the transcript last changed other than by appending.
    #[default]
    Unknown,
    /// As above, and the reason was a compaction.
    Compacted,
    /// The last reported usage.
    Reported {
        /// Tokens of the request and its reply.
        tokens: u64,
        /// The transcript's size in bytes, reply included.
        bytes: usize,
    },
    /// The provider's numbers contradict a compaction (they accumulate, for example) and are ignored.
    Implausible,
}

impl Run {
    /// Starts work on the transcript's last prompt, which is still to be recorded.
    pub fn new() -> Self {
        Self::default()
    }

    /// Continues work that an earlier attempt recorded.
    pub fn resume(transcript: &Transcript) -> Self {
        let stage = if transcript.has_reply() { Stage::Working } else { Stage::PromptRecorded };
        let last_text = transcript.last_text().to_owned();
        Self { stage, is_cut: last_text.ends_with(CUT_NOTE), last_text, ..Self::default() }
    }

    /// Model calls that were answered, and the one in flight.
    pub const fn iterations(&self) -> u32 {
        self.iterations
    }

    /// What the run asks a person, if it waits for an answer.
    pub fn approval_request(&self) -> Option<&ApprovalRequest> {
        self.parked.as_ref().map(|parked| &parked.request)
    }

    /// The calls of the last reply that have not run: the one that waits for an answer, and those after it.
    pub fn waiting_calls(&self) -> impl Iterator<Item = &ToolCall> {
        self.parked.iter().flat_map(ParkedCall::calls)
    }

    /// Answers the request of the run. The next [`crate::Agent::run`] continues with it.
    pub fn answer_approval(&mut self, answer: ApprovalAnswer) -> Result<(), NothingToApprove> {
        self.parked.as_mut().ok_or(NothingToApprove)?.set_answer(answer)
    }

    /// The partial result, if the work ended now.
    pub fn partial(&self) -> PartialResult {
        PartialResult {
            text: self.last_text.clone(),
            last_actions: self.last_actions.iter().cloned().collect(),
            iterations: self.iterations,
            tool_calls: self.tool_calls,
            usage: self.usage,
        }
    }

    /// Replaces the last text.
    pub(crate) fn set_last_text(&mut self, text: String, is_cut: bool) {
        (self.last_text, self.is_cut) = (text, is_cut);
    }

    /// Counts a tool call that was made.
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
}

/// Adds the usage of a model call.
pub const fn add_usage(sum: &mut TokenUsage, used: &TokenUsage) {
    sum.input_tokens = sum.input_tokens.saturating_add(used.input_tokens);
    sum.output_tokens = sum.output_tokens.saturating_add(used.output_tokens);
    sum.cache_read_tokens = sum.cache_read_tokens.saturating_add(used.cache_read_tokens);
    sum.cache_write_tokens = sum.cache_write_tokens.saturating_add(used.cache_write_tokens);
}
