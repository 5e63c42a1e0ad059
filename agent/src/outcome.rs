//! How a loop ends: an outcome, never an error.

use protocol::LimitName;

use crate::ApprovalRequest;

/// The end of one run of the loop.
#[derive(Debug, Clone, PartialEq)]
pub enum LoopOutcome {
    /// The model finished the work.
    Completed {
        /// The final answer.
        text: String,
    },
    /// The loop was stopped, or its attempt has ended.
    Stopped,
    /// A limit was reached.
    Limit {
        /// The limit.
        which: LimitKind,
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
    /// The same call failed again and again.
    DuplicateCalls,
    /// The model answered with empty replies.
    EmptyReply,
    /// A defect of the loop or its caller.
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
}
