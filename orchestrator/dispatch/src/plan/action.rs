//! Actions of the dispatcher, and the subjects that serialize them.

use domain::{
    budget::ExhaustedBudget,
    job::{AttemptFailure, JobVersion},
};
use protocol::JobId;

/// The subject of an action; at most one action at a time works on a subject.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Subject {
    /// A job and its current container.
    Job(JobId),
    /// By name: a container that belongs to no open attempt, or a run directory without a container.
    Container(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Start the next attempt of a queued job.
    Start { job: JobId },
    /// Take over an existing attempt: adopt its container and serve its socket, or create the container again if it was
    /// never started.
    TakeOver { job: JobId },
    /// Record that the attempt ended without a report, unless its job has changed since the plan.
    FailAttempt {
        job: JobId,
        /// The version of its record that was planned by.
        version: JobVersion,
        failure: AttemptFailure,
    },
    /// Mark the job stuck: its worker is silent or makes no progress.
    MarkStuck {
        job: JobId,
        /// A human-readable message.
        message: String,
    },
    /// Ask a stuck job's worker to continue.
    Nudge { job: JobId },
    /// Start a stuck job's next attempt, which continues from the recorded transcript.
    StartAgain { job: JobId },
    /// Fail a queued job: its user's budget for the day is used up.
    FailOverBudget { job: JobId, exceeded: ExhaustedBudget },
    /// Fail a queued job: the sandbox is disabled.
    FailSandboxDisabled { job: JobId },
    /// Cancel a job whose parent has ended or is to be cancelled.
    CancelWithParent { job: JobId },
    /// Stop the container and mark the job cancelled.
    Cancel { job: JobId },
    /// Fail a job that has run for longer than `limits.timeout_seconds`, and stop its container.
    Expire { job: JobId },
    /// Kill the container of a job whose workspace exceeds its quota, and fail the job.
    FailOverQuota {
        job: JobId,
        /// Bytes in its workspace.
        bytes: u64,
    },
    /// Remove a container that belongs to no open attempt, with its run directory.
    RemoveContainer { container: String },
    /// Remove a run directory that has no container.
    RemoveRunDir { run_dir: String },
}

impl Action {
    pub fn subject(&self) -> Subject {
        match self {
            Self::Start { job }
            | Self::TakeOver { job }
            | Self::FailAttempt { job, .. }
            | Self::MarkStuck { job, .. }
            | Self::Nudge { job }
            | Self::StartAgain { job }
            | Self::FailOverBudget { job, .. }
            | Self::FailSandboxDisabled { job }
            | Self::CancelWithParent { job }
            | Self::Cancel { job }
            | Self::Expire { job }
            | Self::FailOverQuota { job, .. } => Subject::Job(*job),
            Self::RemoveContainer { container: name } | Self::RemoveRunDir { run_dir: name } => {
                Subject::Container(name.clone())
            }
        }
    }

    /// The name of its span.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Start { .. } => "job.start",
            Self::TakeOver { .. } => "job.take_over",
            Self::FailAttempt { .. } => "job.fail_attempt",
            Self::MarkStuck { .. } => "job.mark_stuck",
            Self::Nudge { .. } => "job.nudge",
            Self::StartAgain { .. } => "job.start_again",
            Self::FailOverBudget { .. } => "job.fail_over_budget",
            Self::FailSandboxDisabled { .. } => "job.fail_sandbox_disabled",
            Self::CancelWithParent { .. } => "job.cancel_with_parent",
            Self::Cancel { .. } => "job.cancel",
            Self::Expire { .. } => "job.expire",
            Self::FailOverQuota { .. } => "job.fail_over_quota",
            Self::RemoveContainer { .. } => "container.remove",
            Self::RemoveRunDir { .. } => "run_dir.remove",
        }
    }
}
