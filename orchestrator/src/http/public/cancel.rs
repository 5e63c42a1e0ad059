//! `POST /api/jobs/{id}/cancel`: it is to stop.

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use protocol::{CancelRequest, ErrorCode, Job, JobId, JobState, Problem};

use super::{PublicApi, caller::visible, deeds::Doer};
use crate::{
    http::{
        extract::{ApiPath, OptionalJson},
        problem::ApiError,
    },
    store::Changed,
};

const MAX_REASON_BYTES: usize = 1_000;

/// Cancels a job.
#[utoipa::path(
    post, path = "/api/jobs/{id}/cancel", tag = "jobs", params(("id" = String, Path, description = "The job.")),
    request_body = Option<CancelRequest>,
    responses(
        (status = 200, body = Job, description = "It is cancelled, now or before."),
        (status = 202, body = Job, description = "It is being stopped."),
        (status = 400, body = Problem, content_type = "application/problem+json", description = "Malformed."),
        (status = 404, body = Problem, content_type = "application/problem+json", description = "Missing, or another user's."),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "It finished otherwise."),
        (status = 413, body = Problem, content_type = "application/problem+json", description = "Too large."),
        (status = 415, body = Problem, content_type = "application/problem+json", description = "Not JSON."),
        (status = 422, body = Problem, content_type = "application/problem+json", description = "Invalid."),
    )
)]
pub(super) async fn cancel(
    State(api): State<PublicApi>,
    Doer { who, deed }: Doer,
    ApiPath(id): ApiPath<JobId>,
    OptionalJson(request): OptionalJson<CancelRequest>,
) -> Result<Response, ApiError> {
    let reason = request.reason.filter(|reason| !reason.is_empty());
    if reason.as_ref().is_some_and(|reason| reason.len() > MAX_REASON_BYTES || reason.contains('\0')) {
        return Err(ApiError::field("reason", format!("must be at most {MAX_REASON_BYTES} bytes without NUL")));
    }
    let before = visible(&api, &who, id).await?;
    if before.state == JobState::Cancelled {
        return Ok(Json(before.to_api()).into_response());
    }
    let now = api.clock.now();
    match api.store.by(deed).end(id, now, |job| job.request_cancel(now, reason)).await? {
        Changed::Done(job) => {
            api.wake.wake();
            tracing::info!(job.id = %id, user = who.user, "cancel requested");
            // 202 also when it is cancelled at once: what was asked for is accepted; 200 says it had happened before.
            Ok((StatusCode::ACCEPTED, Json(job.to_api())).into_response())
        }
        // It may have become cancelled in between.
        Changed::Refused(refused) if refused.state == JobState::Cancelled => {
            Ok(Json(visible(&api, &who, id).await?.to_api()).into_response())
        }
        Changed::Refused(refused) => Err(ApiError::new(
            ErrorCode::JobFinished,
            format!("the job is {}; there is nothing to cancel", refused.state),
        )),
        Changed::Missing | Changed::PromptsWaiting => Err(ApiError::not_found()),
    }
}
