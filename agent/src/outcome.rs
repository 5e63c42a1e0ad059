//! How a loop ends. An outcome, never an error.

use protocol::JobReason;

/// The end of one run of the loop.
#[derive(Debug, Clone, PartialEq)]
pub enum LoopOutcome {
    /// The model was done.
    Completed {
        /// Its last word.
        text: String,
    },
    /// It was told to stop, or may not go on.
    Stopped,
    /// A limit was reached.
    Limit {
        /// Which.
        which: LimitKind,
        /// What the model said last, if it did.
        text: String,
    },
    /// It cannot go on.
    Failed {
        /// Why: one of the job reasons a loop can cause (`llm_error`, `duplicate_calls`, `empty_reply`, `internal`).
        reason: JobReason,
        /// For people.
        message: String,
    },
}

/// Limits the loop itself keeps or is told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitKind {
    /// Model calls.
    Iterations,
    /// Tool calls.
    ToolCalls,
    /// Tokens.
    Tokens,
    /// US dollars.
    Cost,
}

impl LimitKind {
    /// The reason of a job that ends by it.
    pub const fn reason(self) -> JobReason {
        match self {
            Self::Iterations => JobReason::IterationLimit,
            Self::ToolCalls => JobReason::ToolCallLimit,
            Self::Tokens => JobReason::TokenBudget,
            Self::Cost => JobReason::CostBudget,
        }
    }
}
