//! Who makes a call and pays for it, and how the call is named.

use protocol::{CallId, JobId, RunId, ThreadId};

use super::{CallLimiter, max_calls};
use store::{CallKey, CallQuota, ModelCallKey, ThreadCallKey, TurnKey};

/// Who makes a call and who pays for it.
#[derive(Debug, Clone)]
pub struct Account {
    /// Owner of the rows that the call belongs to.
    pub owner: AccountOwner,
    /// User whose daily budget it draws on.
    pub user: String,
    /// The model that is asked for.
    pub model: String,
    /// Scripts can match on it.
    pub title: String,
    /// Answers that the owner may get in all.
    pub max_iterations: u32,
    /// Whether the owner, or one above it, has a budget.
    pub has_budget: bool,
    /// Whether a cost limit is among its budgets.
    pub has_cost_limit: bool,
    pub limiter: CallLimiter,
}

/// The owner of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AccountOwner {
    Job {
        job: JobId,
        attempt: u32,
    },
    /// A turn of a chat thread.
    Thread(TurnKey),
    /// An attempt of a run of a routine.
    Run {
        run: RunId,
        attempt: u32,
    },
}

impl AccountOwner {
    /// What failures and slots of the providers are counted by: a thread and a run count as a job.
    pub const fn counted_as(&self) -> JobId {
        match self {
            Self::Job { job, .. } => *job,
            Self::Thread(turn) => JobId::from_uuid(*turn.thread.as_uuid()),
            Self::Run { run, .. } => JobId::from_uuid(*run.as_uuid()),
        }
    }
}

/// The name of a call and the digest of its request.
#[derive(Debug, Clone)]
pub struct CallName {
    /// Unique within its owner.
    pub id: CallId,
    /// Digest of the request's bytes: the same id with another request is refused.
    pub request_digest: String,
}

impl Account {
    pub(super) fn key(&self, id: &CallId) -> ModelCallKey {
        let call_id = id.clone();
        match self.owner {
            AccountOwner::Job { job, attempt } => ModelCallKey::Job(CallKey { job, attempt, call_id }),
            AccountOwner::Thread(turn) => ModelCallKey::Thread(ThreadCallKey { turn, call_id }),
            AccountOwner::Run { run, attempt } => {
                // A run is recorded as a separate thread, and its attempts as the turns.
                let turn = TurnKey { thread: ThreadId::from_uuid(*run.as_uuid()), turn: attempt };
                ModelCallKey::Thread(ThreadCallKey { turn, call_id })
            }
        }
    }

    pub(super) fn quota(&self) -> CallQuota {
        let iterations = u64::from(self.max_iterations);
        CallQuota { max_answers: iterations, max_calls: max_calls(iterations) }
    }
}
