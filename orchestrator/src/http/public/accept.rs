//! `POST /api/jobs/{id}/accept`: accepts a submitted result.

use axum::{Json, extract::State};
use protocol::{ErrorCode, Job, JobId};

use super::{PublicApi, audit_entry::AuditedCaller, caller::authorize_job};
use crate::{
    domain::job::{JobRecord, Refused, Step},
    http::{extract::ApiPath, problem::ApiError},
    store::{AuditEntry, Transition},
};

/// Accepts a job's result.
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

/// Applies a review decision to a submitted job.
pub(super) async fn review(
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
