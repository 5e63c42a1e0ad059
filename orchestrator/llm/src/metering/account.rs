//! Who makes a call and pays for it, and how the call is named.

use protocol::{CallId, Effort, Execution};

use super::CallLimiter;
use store::CallKey;

/// Who makes a call and who pays for it.
#[derive(Debug, Clone)]
pub struct Account {
    /// What makes the calls.
    pub execution: Execution,
    /// User whose daily budget it draws on.
    pub user: String,
    /// The model that is asked for.
    pub model: String,
    /// How much it thinks; the operator's default if it is not said.
    pub effort: Option<Effort>,
    /// Scripts can match on it.
    pub title: String,
    /// Answers that the job, turn or run may get in all.
    pub max_iterations: u32,
    /// Whether the job, or one above it, has a budget.
    pub has_budget: bool,
    /// Whether a cost limit is among its budgets.
    pub has_cost_limit: bool,
    pub limiter: CallLimiter,
}

/// The name of a call and the digest of its request.
#[derive(Debug, Clone)]
pub struct CallName {
    /// Unique within its execution.
    pub id: CallId,
    /// Digest of the request's bytes: the same id with another request is refused.
    pub request_digest: String,
}

impl Account {
    pub(super) fn key(&self, id: &CallId) -> CallKey {
        CallKey { execution: self.execution, call_id: id.clone() }
    }
}
