//! `POST /api/jobs/{id}/cancel`: requests that a job stops.

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use protocol::{CancelRequest, ErrorCode, Job, JobId, JobState, limits::MAX_REASON_BYTES};

use super::{PublicApi, audit_entry::AuditedCaller, caller::authorize_job};
use store::Transition;

use crate::{
    extract::{ApiPath, OptionalJson},
    problem::ApiError,
};

/// Cancels a job.
///
/// A job without a container is cancelled at once. Otherwise `cancel_requested_at` is set, and the state changes once the
/// container is removed.
#[utoipa::path(
    post, path = "/api/jobs/{id}/cancel", operation_id = "cancel_job", tag = "jobs", params(("id" = String, Path, description = "Job id.")),
    request_body = Option<CancelRequest>,
    responses(
        (status = 200, body = Job, description = "The job was already cancelled."),
        (status = 202, body = Job, description = "Cancellation requested; `cancel_requested_at` is set while the job stops."),
        (status = 409, description = "The job has already finished."),
    )
)]
pub(super) async fn cancel(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    ApiPath(id): ApiPath<JobId>,
    OptionalJson(request): OptionalJson<CancelRequest>,
) -> Result<Response, ApiError> {
    let reason = request.reason.filter(|reason| !reason.is_empty());
    if reason.as_ref().is_some_and(|reason| reason.len() > MAX_REASON_BYTES || reason.contains('\0')) {
        return Err(ApiError::field("reason", format!("must be at most {MAX_REASON_BYTES} bytes without NUL")));
    }
    let before = authorize_job(&api, &who, id).await?;
    if before.state() == JobState::Cancelled {
        return Ok(Json(before.to_api()).into_response());
    }
    let now = api.clock.now();
    match api.store.transition(id, now, Some(&entry), move |job| job.request_cancel(now, reason)).await? {
        Transition::Applied(job) => {
            api.waker.wake();
            tracing::info!(job.id = %id, user = who.user, "cancel requested");
            // 202 also when it is cancelled at once; 200 means that it was cancelled before this request.
            Ok((StatusCode::ACCEPTED, Json(job.to_api())).into_response())
        }
        // Cancelled by another request since it was read.
        Transition::Refused(refused) if refused.state == JobState::Cancelled => {
            Ok(Json(authorize_job(&api, &who, id).await?.to_api()).into_response())
        }
        Transition::Refused(refused) if refused.state == JobState::Submitted => {
            let detail = "the job is submitted, so its work is done; accept or reject it";
            Err(ApiError::new(ErrorCode::JobFinished, detail))
        }
        Transition::Refused(refused) => {
            Err(ApiError::new(ErrorCode::JobFinished, format!("the job is already {}", refused.state)))
        }
        Transition::NotFound => Err(ApiError::not_found()),
    }
}
