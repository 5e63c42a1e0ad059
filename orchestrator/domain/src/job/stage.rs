//! The stages of a job's life, each with the facts that exist only in it.

use chrono::{DateTime, Utc};
use protocol::{JobReason, JobResult, JobState, PartialResult};

/// Where a job is in its life.
#[derive(Debug, Clone, PartialEq)]
pub enum Stage {
    /// Waits for its first or next attempt.
    Queued(Queued),
    /// An attempt runs.
    Running(Running),
    /// Completed; waits for review.
    Submitted { result: JobResult },
    /// In a final state.
    Finished(Finished),
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Queued {
    /// Not started until it is released.
    pub held: bool,
    /// Not started before this time: backoff between attempts.
    pub not_before: Option<DateTime<Utc>>,
    /// Why the last attempt ended, if there was one.
    pub reason: Option<JobReason>,
    /// Why it waits.
    pub message: Option<String>,
}

/// The attempt of a running job.
#[derive(Debug, Clone, PartialEq)]
pub struct Running {
    /// SHA-256 of the attempt's token; `None` once its worker has reported, so that no worker may call.
    pub token_hash: Option<String>,
    /// When the worker's lease expires. Written with each heartbeat, for other orchestrators.
    pub lease_expires_at: Option<DateTime<Utc>>,
    /// Model calls made before this attempt.
    pub calls_before_attempt: u64,
    /// First call of the attempt's worker.
    pub worker_seen_at: Option<DateTime<Utc>>,
    pub activity: Activity,
    /// The partial result that a stopped worker reported.
    pub reported: Option<PartialResult>,
}

/// The activity of a running attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Activity {
    /// It makes progress.
    Working,
    /// It has made no progress for too long.
    Stuck {
        /// Explanation for the user.
        message: String,
    },
    /// It is to be cancelled; the state changes once its container is gone.
    Stopping {
        cancel: CancelRequest,
        /// The message of a job that was stuck, and is shown as such until it is cancelled.
        stuck: Option<String>,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CancelRequest {
    pub at: DateTime<Utc>,
    /// The reason that the user gave.
    pub message: Option<String>,
    /// It is cancelled because its parent ended.
    pub by_parent: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Without review.
    Completed,
    /// A reviewer accepted the result.
    Accepted,
    /// It failed, or a reviewer rejected the result.
    Failed,
    Cancelled,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Finished {
    pub end: End,
    pub at: DateTime<Utc>,
    /// Why it failed or was cancelled.
    pub reason: Option<JobReason>,
    /// Explanation for the user.
    pub message: Option<String>,
    /// Its result, or its partial result.
    pub result: Option<JobResult>,
    /// A request to cancel it that came before its end.
    pub cancel: Option<CancelRequest>,
}

impl Stage {
    /// The state that the API shows.
    pub const fn state(&self) -> JobState {
        match self {
            Self::Queued(_) => JobState::Pending,
            Self::Running(Running { activity, .. }) => activity.state(),
            Self::Submitted { .. } => JobState::Submitted,
            Self::Finished(Finished { end, .. }) => match end {
                End::Completed => JobState::Completed,
                End::Accepted => JobState::Accepted,
                End::Failed => JobState::Failed,
                End::Cancelled => JobState::Cancelled,
            },
        }
    }

    /// Why it is in this state, where that needs a reason.
    pub const fn reason(&self) -> Option<JobReason> {
        match self {
            Self::Queued(queued) => queued.reason,
            Self::Running(Running { activity, .. }) => match activity.state() {
                JobState::Stuck => Some(JobReason::Stuck),
                _ => None,
            },
            Self::Submitted { .. } => None,
            Self::Finished(finished) => finished.reason,
        }
    }

    /// Explanation of the state for the user.
    pub fn message(&self) -> Option<&str> {
        match self {
            Self::Queued(queued) => queued.message.as_deref(),
            Self::Running(Running { activity, .. }) => match activity {
                Activity::Working | Activity::Stopping { stuck: None, .. } => None,
                Activity::Stuck { message } | Activity::Stopping { stuck: Some(message), .. } => Some(message),
            },
            Self::Submitted { .. } => None,
            Self::Finished(finished) => finished.message.as_deref(),
        }
    }

    pub const fn cancel_request(&self) -> Option<&CancelRequest> {
        match self {
            Self::Running(Running { activity: Activity::Stopping { cancel, .. }, .. }) => Some(cancel),
            Self::Finished(Finished { cancel, .. }) => cancel.as_ref(),
            _ => None,
        }
    }
}

impl Activity {
    const fn state(&self) -> JobState {
        match self {
            Self::Working | Self::Stopping { stuck: None, .. } => JobState::InProgress,
            Self::Stuck { .. } | Self::Stopping { stuck: Some(_), .. } => JobState::Stuck,
        }
    }
}
