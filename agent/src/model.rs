//! The seam to a model: one question, one answer or an error that says who acts next.

use std::{future::Future, time::Duration};

use protocol::{Completion, CompletionRequest, RateLimitOrigin};

/// Something that answers. Implementers: the orchestrator's gateway, the worker's client to it, scripts in tests.
pub trait Model: Send + Sync {
    /// Asks once. Retrying what is transient is the implementer's; waiting out a rate limit is the loop's.
    fn complete(&self, request: CompletionRequest) -> impl Future<Output = Result<Completion, ModelError>> + Send;

    /// The model's context in tokens; the loop compacts at 80 % of it.
    fn context_tokens(&self) -> u64;
}

/// Why there is no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ModelError {
    /// The loop waits and asks again: a rate limit, an outage, or a queue before the provider.
    #[error("rate limited: {message}")]
    RateLimited {
        /// Who refused: only a provider's refusals in a row end the work.
        origin: RateLimitOrigin,
        /// How long to wait, where that is known.
        retry_after: Option<Duration>,
        /// For people.
        message: String,
    },
    /// A budget is spent: the loop ends with a limit.
    #[error("budget spent: {message}")]
    Budget {
        /// Which one.
        which: BudgetKind,
        /// For people.
        message: String,
    },
    /// Nobody can help: the loop ends as failed with `llm_error`.
    #[error("{message}")]
    Failed {
        /// For people; no secrets.
        message: String,
    },
    /// This attempt may not go on (fenced, cancelled): the loop ends as stopped.
    #[error("stopped")]
    Stopped,
}

/// Budgets that end a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BudgetKind {
    /// Model calls.
    Iterations,
    /// Tokens, input and output.
    Tokens,
    /// US dollars.
    Cost,
}
