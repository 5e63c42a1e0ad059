//! `POST /api/jobs/{id}/reject`: rejects a submitted result.

use axum::{Json, extract::State};
use protocol::{Job, JobId, RejectRequest};

use super::{PublicApi, accept::review, audit_entry::AuditedCaller, caller::authorize_job};
use crate::http::{
    extract::{ApiJson, ApiPath},
    problem::ApiError,
};

const MAX_REASON_BYTES: usize = 1_000;

/// Rejects a job's result. The job is marked failed and can be restarted.
#[utoipa::path(
    post, path = "/api/jobs/{id}/reject", operation_id = "reject_job", tag = "jobs", params(("id" = String, Path, description = "Job id.")),
    request_body = RejectRequest,
    responses(
        (status = 200, body = Job, description = "The job is rejected and marked failed."),
        (status = 409, description = "The job is not submitted."),
    )
)]
pub(super) async fn reject(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    ApiPath(id): ApiPath<JobId>,
    ApiJson(RejectRequest { reason }): ApiJson<RejectRequest>,
) -> Result<Json<Job>, ApiError> {
    if reason.trim().is_empty() || reason.len() > MAX_REASON_BYTES || reason.contains('\0') {
        return Err(ApiError::field("reason", format!("must be 1 to {MAX_REASON_BYTES} bytes without NUL")));
    }
    authorize_job(&api, &who, id).await?;
    let now = api.clock.now();
    review(&api, id, entry, move |job| job.reject(now, reason)).await
}
