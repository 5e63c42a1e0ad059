//! `POST /api/jobs/{id}/accept` and `/reject`: the review of a submitted result.

use axum::{Json, extract::State};
use protocol::{ErrorCode, Job, JobId, RejectRequest, limits::MAX_REASON_BYTES};

use super::{PublicApi, audit_entry::AuditedCaller, caller::authorize_job};
use domain::job::{JobRecord, Refused, Step};
use store::{AuditEntry, Transition};

use crate::{
    extract::{ApiJson, ApiPath},
    problem::ApiError,
};

/// Accepts a job's result.
///
/// Only for a job that was created with `review: true` and has submitted its result.
#[utoipa::path(
    post, path = "/api/jobs/{id}/accept", operation_id = "accept_job", tag = "jobs", params(("id" = String, Path, description = "Job id.")),
    responses(
        (status = 200, body = Job, description = "The job is accepted."),
        (status = 409, description = "The job is not submitted."),
    )
)]
pub(super) async fn accept(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    ApiPath(id): ApiPath<JobId>,
) -> Result<Json<Job>, ApiError> {
    authorize_job(&api, &who, id).await?;
    let now = api.clock.now();
    review(&api, id, entry, move |job| job.accept(now)).await
}

/// Rejects a job's result.
///
/// Only for a job that has submitted its result. The job is marked failed and can be restarted.
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
    ApiJson { value: RejectRequest { reason }, .. }: ApiJson<RejectRequest>,
) -> Result<Json<Job>, ApiError> {
    if reason.trim().is_empty() || reason.len() > MAX_REASON_BYTES || reason.contains('\0') {
        return Err(ApiError::field("reason", format!("must be 1 to {MAX_REASON_BYTES} bytes without NUL")));
    }
    authorize_job(&api, &who, id).await?;
    let now = api.clock.now();
    review(&api, id, entry, move |job| job.reject(now, reason)).await
}

/// Applies a review decision to a submitted job.
async fn review(
    api: &PublicApi,
    id: JobId,
    entry: AuditEntry,
    decide: impl FnOnce(JobRecord) -> Result<Step, Refused> + Send + 'static,
) -> Result<Json<Job>, ApiError> {
    match api.store.transition(id, api.clock.now(), Some(&entry), decide).await? {
        Transition::Applied(job) => {
            tracing::info!(job.id = %id, state = %job.state(), "result reviewed");
            Ok(Json(job.to_api()))
        }
        Transition::Refused(refused) => Err(ApiError::new(
            ErrorCode::NotSubmitted,
            format!("the job is {}; only a submitted job can be accepted or rejected", refused.state),
        )),
        Transition::NotFound => Err(ApiError::not_found()),
    }
}
