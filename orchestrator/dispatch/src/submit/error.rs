//! Why a job was not created.
//!
//! Each variant is one that a caller reports differently. Never maps to HTTP: the API does.

use domain::{job::ChildRefused, request::Rejected};
use engine::ReadinessReason;
use hooks::HookRefused;
use llm::UnpricedModel;
use protocol::{JobState, UserStorage};
use secrets::DetectorError;
use store::{MAX_HELD_PER_USER, MAX_PENDING, MAX_PENDING_PER_USER, QueueFull, StoreError};
use tokio::task::JoinError;
use workspace::FileError;

/// A job was not created; nothing is stored.
#[derive(Debug, thiserror::Error)]
pub enum SubmitError {
    /// The request is invalid, or asks for a feature that is not available.
    #[error(transparent)]
    Rejected(#[from] Rejected),
    /// A hook refuses the prompt.
    #[error(transparent)]
    Hook(#[from] HookRefused),
    /// The job to restart has neither failed nor been cancelled.
    #[error("the job is {0}; only failed and cancelled jobs restart")]
    NotRestartable(JobState),
    /// Of the prompt of the job to restart only the beginning is kept.
    #[error("of the job's prompt only the beginning is kept; give the prompt, or create a new job")]
    PromptNotKept,
    /// The idempotency key was used for another request.
    #[error("this Idempotency-Key was used for another request; use a new key")]
    KeyReused,
    /// The job that was created with the idempotency key was deleted.
    #[error("the job that this Idempotency-Key created was deleted; use a new key to create another one")]
    JobDeleted,
    /// As many jobs are pending as are allowed.
    #[error("{}", queue_full(*.0))]
    QueueFull(QueueFull),
    /// The parent may not create another child.
    #[error(transparent)]
    ChildRefused(ChildRefused),
    /// The run that the job is for has ended, or has another job.
    #[error("the run no longer waits for a job")]
    RunGone,
    /// No job can run.
    #[error("{detail}")]
    SandboxUnavailable {
        reason: ReadinessReason,
        /// The finding, and how to fix it.
        detail: String,
    },
    /// The files to copy from the earlier job exceed the quota by far.
    #[error("the files that the earlier job left are far over limits.disk_mb; create a new job instead")]
    EarlierFilesTooLarge(#[source] FileError),
    /// No disk space for the job's files, or no share of it for this user at present.
    #[error(transparent)]
    NoDiskSpace(FileError),
    /// The workspace could not be created.
    #[error("cannot create the workspace")]
    Workspace(#[source] FileError),
    /// A cost limit applies, and the model has no price.
    #[error(transparent)]
    Unpriced(#[from] UnpricedModel),
    /// The owner's secrets cannot be looked for.
    #[error(transparent)]
    Unsearched(#[from] DetectorError),
    /// The owner may store no more.
    #[error("{0}")]
    UserStorageFull(Box<UserStorage>),
    #[error(transparent)]
    Store(StoreError),
    /// The submission panicked.
    #[error("the submission did not complete")]
    Aborted(#[from] JoinError),
}

impl From<StoreError> for SubmitError {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::UserStorageFull(storage) => Self::UserStorageFull(storage),
            error => Self::Store(error),
        }
    }
}

impl From<FileError> for SubmitError {
    fn from(error: FileError) -> Self {
        match error {
            FileError::TooLarge(_) => Self::EarlierFilesTooLarge(error),
            FileError::NoSpace(_) | FileError::StagingFull(_) => Self::NoDiskSpace(error),
            error => Self::Workspace(error),
        }
    }
}

fn queue_full(full: QueueFull) -> String {
    match full {
        QueueFull::User => {
            format!("too many pending jobs: at most {MAX_PENDING_PER_USER} per user")
        }
        QueueFull::Held => format!("too many held jobs: at most {MAX_HELD_PER_USER} per user; start or cancel some"),
        QueueFull::Instance => format!("too many pending jobs: at most {MAX_PENDING}; try again later"),
    }
}
