//! How a loop ends: an outcome, never an error.

use std::time::Duration;

use protocol::{JobReason, LimitName};

use crate::ApprovalRequest;

/// The end of one run of the loop.
#[derive(Debug, Clone, PartialEq)]
pub enum LoopOutcome {
    /// The model finished the work.
    Completed {
        /// The final answer.
        text: String,
        /// Whether the model's output limit cut the answer, also when it was continued.
        cut: bool,
    },
    /// The loop was stopped, or its attempt has ended.
    Stopped,
    /// A limit was reached.
    Limit {
        /// The limit.
        which: LimitKind,
        /// Its value, or the message of the refused model call.
        message: String,
        /// The model's answer after the limit was reached; empty if it was not asked again.
        text: String,
    },
    /// A call waits for a person. The work continues once [`crate::Run::answer_approval`] has the answer.
    NeedsApproval {
        /// What the person is asked.
        request: ApprovalRequest,
    },
    /// The work cannot continue.
    Failed {
        /// The cause.
        reason: FailureReason,
        /// A human-readable message.
        message: String,
    },
}

/// Limits that end a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitKind {
    /// Model calls.
    Iterations,
    /// Tool calls.
    ToolCalls,
    /// Tokens, input and output.
    Tokens,
    /// US dollars.
    Cost,
}

/// Why a loop cannot continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureReason {
    /// The model did not answer.
    LlmError,
    /// A filter refuses the text of the conversation, or the answer to it.
    Refused,
    /// No provider takes the request: its form, or its length.
    InvalidRequest,
    /// No provider answered for longer than the loop waits.
    ProviderOutage,
    /// A provider refuses the key, or the account is empty.
    ProviderAccount,
    /// A provider asks to wait, which this work does not.
    RateLimited {
        /// How long to wait, where that is known.
        retry_after: Option<Duration>,
    },
    /// The same call failed again and again.
    DuplicateCalls,
    /// The model answered with empty replies, or with tool calls as text that are not run.
    EmptyReply,
    /// The limit of processes keeps tools from working.
    PidsLimit,
    /// The work cannot be recorded, or a part of it has a defect.
    Internal,
}

impl LimitKind {
    /// The limit's name in events.
    pub const fn name(self) -> LimitName {
        match self {
            Self::Iterations => LimitName::MaxIterations,
            Self::ToolCalls => LimitName::MaxToolCalls,
            Self::Tokens => LimitName::MaxTokens,
            Self::Cost => LimitName::MaxCostUsd,
        }
    }

    /// The reason of a job or turn that this limit ends.
    pub const fn job_reason(self) -> JobReason {
        match self {
            Self::Iterations => JobReason::IterationLimit,
            Self::ToolCalls => JobReason::ToolCallLimit,
            Self::Tokens => JobReason::TokenBudget,
            Self::Cost => JobReason::CostBudget,
        }
    }
}

impl FailureReason {
    /// The reason of a job or turn that fails for it.
    pub const fn job_reason(self) -> JobReason {
        match self {
            Self::LlmError
            | Self::Refused
            | Self::InvalidRequest
            | Self::ProviderOutage
            | Self::ProviderAccount
            | Self::RateLimited { .. } => JobReason::LlmError,
            Self::DuplicateCalls => JobReason::DuplicateCalls,
            Self::EmptyReply => JobReason::EmptyReply,
            Self::PidsLimit => JobReason::PidsLimit,
            Self::Internal => JobReason::Internal,
        }
    }
}
