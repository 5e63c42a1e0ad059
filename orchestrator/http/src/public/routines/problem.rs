//! What the endpoints share: the caller as the editor knows it, the entity tag, and the problems of refused changes.

use auth::Identity;
use axum::http::HeaderValue;
use dispatch::{RoutineCaller, RoutineError};
use protocol::{ErrorCode, RunReason};
use secrets::SecretError;
use store::AuditEntry;

use crate::problem::ApiError;

/// The caller of a request.
pub(in crate::public) fn caller(who: &Identity, entry: AuditEntry) -> RoutineCaller {
    RoutineCaller { user: who.user.clone(), sees_all: who.role.sees_all(), entry }
}

/// The `ETag` of a revision.
pub(super) fn etag(rev: u64) -> Result<HeaderValue, ApiError> {
    HeaderValue::from_str(&format!("\"{rev}\"")).map_err(ApiError::internal)
}

impl From<RoutineError> for ApiError {
    fn from(error: RoutineError) -> Self {
        let detail = error.to_string();
        match error {
            RoutineError::Invalid(fields) => Self::invalid(fields),
            RoutineError::NameTaken => Self::new(ErrorCode::NameTaken, detail),
            RoutineError::PathTaken => Self::new(ErrorCode::WebhookPathTaken, detail),
            RoutineError::TooMany { .. } | RoutineError::Contended => Self::new(ErrorCode::Conflict, detail),
            RoutineError::NotFound => Self::not_found(),
            RoutineError::NotOwner => Self::not_owner(),
            RoutineError::Changed { .. } => Self::new(ErrorCode::PreconditionFailed, detail),
            RoutineError::Disabled => Self::new(ErrorCode::RoutineDisabled, detail),
            RoutineError::AutomationDisabled => Self::new(ErrorCode::AutomationDisabled, detail),
            RoutineError::Skipped { run, reason } => {
                let code =
                    if reason == RunReason::Overlap { ErrorCode::RoutineBusy } else { ErrorCode::RoutineSkipped };
                Self::new(code, format!("{detail}; GET /api/runs/{run} shows it")).with_reason(reason.as_str())
            }
            RoutineError::Secret(SecretError::Store(error)) | RoutineError::Store(error) => error.into(),
            RoutineError::Secret(error) => Self::internal(error),
        }
    }
}
