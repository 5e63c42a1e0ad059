//! How an attempt of a run ended: what the end of its job says, and what it means when it does not start. Pure.

use chrono::TimeDelta;
use protocol::{JobReason, JobResult, JobState, RunReason};

use super::outcome::{Reply, reply};
use crate::{job::JobRecord, model_call::ErrorKind};

/// How an attempt of a run ended, and what it used.
#[derive(Debug, Clone, PartialEq)]
pub struct AttemptResult {
    pub end: AttemptEnd,
    pub text: Option<String>,
    /// Whether the output limit of the model cut the text.
    pub cut: bool,
    /// Tokens of its model calls.
    pub tokens: u64,
    /// Cost of its model calls; `None` when a call had no price.
    pub cost_usd: Option<f64>,
}

/// How an attempt of a run ended.
#[derive(Debug, Clone, PartialEq)]
pub enum AttemptEnd {
    /// Successfully, with nothing to report.
    Ok,
    /// Successfully, with something to report.
    Attention,
    /// It did not start.
    Skipped {
        /// Why it did not.
        reason: RunReason,
        /// A human-readable message.
        message: String,
    },
    Failed {
        /// Why it failed.
        reason: RunReason,
        /// A human-readable message.
        message: String,
        /// How long a provider asked to wait.
        retry_after: Option<TimeDelta>,
        origin: FailureOrigin,
    },
}

/// Where the cause of a failure is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureOrigin {
    /// In the routine: in its definition, or in what its run did.
    Routine,
    /// In what runs need: the sandbox, the provider, the server. It says nothing about the routine.
    Infrastructure,
}

impl AttemptResult {
    /// The result of an attempt that made no model call.
    pub const fn unused(end: AttemptEnd) -> Self {
        Self { end, text: None, cut: false, tokens: 0, cost_usd: Some(0.0) }
    }

    /// The result of the attempt of a job that has ended. `cancelled_by`: why its run was cancelled. `last_error`: why its
    /// last model call has no answer.
    pub fn of_job(job: &JobRecord, cancelled_by: Option<RunReason>, last_error: Option<ErrorKind>) -> Self {
        let JobResult { text, cut, .. } = job.result().unwrap_or_default();
        let end = match job.state() {
            JobState::Completed | JobState::Accepted => match reply(text.as_deref().unwrap_or_default()) {
                Reply::Nothing => AttemptEnd::Ok,
                Reply::Attention(_) => AttemptEnd::Attention,
                Reply::Empty => AttemptEnd::failed(RunReason::EmptyReply, "the job's result has no text".to_owned()),
            },
            JobState::Cancelled => {
                let reason = cancelled_by.unwrap_or(RunReason::JobCancelled);
                AttemptEnd::failed(reason, job.message().unwrap_or("the job was cancelled").to_owned())
            }
            _ => failed_job(job.reason(), job.message(), last_error),
        };
        let usage = &job.usage;
        Self { end, text, cut, tokens: usage.input_tokens + usage.output_tokens, cost_usd: usage.cost_usd }
    }
}

fn failed_job(reason: Option<JobReason>, message: Option<&str>, last_error: Option<ErrorKind>) -> AttemptEnd {
    let name = reason.map_or("failed", JobReason::as_str);
    let explained = message.map_or_else(|| name.to_owned(), |message| format!("{name}: {message}"));
    match reason {
        Some(
            JobReason::SandboxUnavailable
            | JobReason::ImageMissing
            | JobReason::EngineError
            | JobReason::PostureMismatch
            | JobReason::StartTimeout,
        ) => AttemptEnd::failed(RunReason::SandboxUnavailable, explained),
        Some(JobReason::OrchestratorRestart) => AttemptEnd::failed(RunReason::OrchestratorRestart, explained),
        Some(JobReason::WallClock) => AttemptEnd::failed(RunReason::Timeout, explained),
        Some(JobReason::LlmError) => match last_error {
            Some(kind) if kind.is_account_refused() => {
                let message = message.unwrap_or("the provider refused the key or the account").to_owned();
                AttemptEnd::failed(RunReason::ProviderAccount, message)
            }
            Some(kind) if kind.is_request_refused() => AttemptEnd::failed(RunReason::JobFailed, explained),
            // The provider did not answer, or what failed was never a call.
            _ => AttemptEnd::infrastructure(RunReason::JobFailed, explained),
        },
        _ => AttemptEnd::failed(RunReason::JobFailed, explained),
    }
}

impl AttemptEnd {
    /// A failure that no provider has asked to wait for. The reason says where its cause is.
    pub const fn failed(reason: RunReason, message: String) -> Self {
        let origin = match reason {
            RunReason::SandboxUnavailable | RunReason::RateLimited | RunReason::OrchestratorRestart => {
                FailureOrigin::Infrastructure
            }
            _ => FailureOrigin::Routine,
        };
        Self::Failed { reason, message, retry_after: None, origin }
    }

    /// A failure that is not the routine's own, though others with this reason are.
    pub const fn infrastructure(reason: RunReason, message: String) -> Self {
        Self::Failed { reason, message, retry_after: None, origin: FailureOrigin::Infrastructure }
    }

    /// The end of an attempt that a person or the server has ended. One that has not started is skipped, unless it was
    /// cancelled.
    pub fn cancelled(reason: RunReason, has_started: bool) -> Self {
        let message = match reason {
            RunReason::CancelledByOverlap => "a later firing replaced it",
            RunReason::RoutineChanged => "the routine was changed, disabled or deleted before the run started",
            RunReason::FireRate => "the routine started too many runs within a minute and was disabled",
            _ => "a user cancelled it",
        };
        let is_cancelled = matches!(reason, RunReason::CancelledByUser | RunReason::CancelledByOverlap);
        if has_started || is_cancelled {
            Self::failed(reason, message.to_owned())
        } else {
            Self::Skipped { reason, message: message.to_owned() }
        }
    }

    /// The end of a queued run whose routine has spent its budget since the run was admitted.
    pub fn out_of_budget(has_started: bool) -> Self {
        let message = "the budget of the routine was exhausted before the run started".to_owned();
        if has_started {
            Self::failed(RunReason::LimitReached, message)
        } else {
            Self::Skipped { reason: RunReason::Budget, message }
        }
    }
}

#[cfg(test)]
mod tests;
