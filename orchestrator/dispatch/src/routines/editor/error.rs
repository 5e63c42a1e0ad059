//! Why a routine was not changed or fired.
//!
//! Each variant is one that a caller reports differently. Never maps to HTTP: the API does.

use protocol::{FieldError, RunId, RunReason};
use secrets::SecretError;
use store::StoreError;

/// A routine was not changed or fired.
#[derive(Debug, thiserror::Error)]
pub enum RoutineError {
    #[error("{}", .0.first().map_or("invalid routine".to_owned(), |first| format!("{}: {}", first.field, first.message)))]
    Invalid(Vec<FieldError>),
    /// The user has a routine with this name.
    #[error("a routine with this name already exists; choose another name, or change that routine")]
    NameTaken,
    /// Another routine has this path.
    #[error("trigger.path: another routine has this webhook path; choose another one")]
    PathTaken,
    /// The user has the maximum number of routines.
    #[error("the limit of {max} routines is reached; delete some")]
    TooMany { max: u32 },
    #[error("routine not found")]
    NotFound,
    /// It is another user's.
    #[error("routine not found")]
    NotOwner,
    /// It has another revision than the caller expects.
    #[error("the routine has revision {rev} now; read it again and repeat the change")]
    Changed {
        /// The present revision.
        rev: u64,
    },
    /// It changes faster than this change can be made.
    #[error("the routine is being changed by others; try again")]
    Contended,
    #[error("the routine is disabled; enable it first")]
    Disabled,
    /// Automation is switched off.
    #[error("automation is switched off by the operator")]
    AutomationDisabled,
    /// A guardrail stopped the firing; `run` is the entry that counts it.
    #[error("the firing was skipped: {reason}")]
    Skipped { run: RunId, reason: RunReason },
    /// The idempotency key was used with another request.
    #[error("the idempotency key was used with another request")]
    KeyReused,
    /// A secret could not be sealed.
    #[error(transparent)]
    Secret(#[from] SecretError),
    #[error(transparent)]
    Store(#[from] StoreError),
}
