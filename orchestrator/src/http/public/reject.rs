//! `POST /api/jobs/{id}/reject`: a person does not take a submitted result.

use axum::{Json, extract::State};
use protocol::{Job, JobId, Problem, RejectRequest};

use super::{PublicApi, accept::review, caller::visible, deeds::Doer};
use crate::http::{
    extract::{ApiJson, ApiPath},
    problem::ApiError,
};

const MAX_REASON_BYTES: usize = 1_000;

/// Rejects a job's result; the job has failed then, and can be restarted.
#[utoipa::path(
    post, path = "/api/jobs/{id}/reject", tag = "jobs", params(("id" = String, Path, description = "The job.")),
    request_body = RejectRequest,
    responses(
        (status = 200, body = Job, description = "Rejected."),
        (status = 400, body = Problem, content_type = "application/problem+json", description = "Malformed."),
        (status = 404, body = Problem, content_type = "application/problem+json", description = "Missing, or another user's."),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "It is not submitted."),
        (status = 413, body = Problem, content_type = "application/problem+json", description = "Too large."),
        (status = 415, body = Problem, content_type = "application/problem+json", description = "Not JSON."),
        (status = 422, body = Problem, content_type = "application/problem+json", description = "Invalid."),
    )
)]
pub(super) async fn reject(
    State(api): State<PublicApi>,
    Doer { who, deed }: Doer,
    ApiPath(id): ApiPath<JobId>,
    ApiJson(RejectRequest { reason }): ApiJson<RejectRequest>,
) -> Result<Json<Job>, ApiError> {
    if reason.trim().is_empty() || reason.len() > MAX_REASON_BYTES || reason.contains('\0') {
        return Err(ApiError::field("reason", format!("must be 1 to {MAX_REASON_BYTES} bytes without NUL")));
    }
    visible(&api, &who, id).await?;
    let now = api.clock.now();
    review(&api, id, deed, |job| job.reject(now, reason)).await
}
