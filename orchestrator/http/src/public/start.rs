//! `POST /api/jobs/{id}/start`: puts a held job into the queue.

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use protocol::{ErrorCode, Job, JobId};

use super::{PublicApi, audit_entry::AuditedCaller, caller::authorize_job};
use domain::job::JobRecord;
use store::Transition;

use crate::{extract::ApiPath, problem::ApiError};

/// Starts a held job.
///
/// Puts a job that was created with `hold: true` into the queue.
#[utoipa::path(
    post, path = "/api/jobs/{id}/start", operation_id = "start_job", tag = "jobs", params(("id" = String, Path, description = "Job id.")),
    responses(
        (status = 202, body = Job, description = "The job is queued."),
        (status = 409, description = "The job is not held, or no longer pending."),
        (status = 422, description = "A cost limit applies and the model has no price (`unpriced_model`)."),
    )
)]
pub(super) async fn start(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    ApiPath(id): ApiPath<JobId>,
) -> Result<Response, ApiError> {
    let job = authorize_job(&api, &who, id).await?;
    api.submitter.check_price(&job.brief.model, &job.brief.limits)?;
    match api.store.transition(id, api.clock.now(), Some(&entry), JobRecord::release).await? {
        Transition::Applied(job) => {
            api.waker.wake();
            tracing::info!(job.id = %id, user = who.user, "held job started");
            Ok((StatusCode::ACCEPTED, Json(job.to_api())).into_response())
        }
        Transition::Refused(refused) => Err(ApiError::new(
            ErrorCode::NotHeld,
            format!(
                "the job is {} and not held; only a pending job created with `hold: true` can be started",
                refused.state
            ),
        )),
        Transition::NotFound => Err(ApiError::not_found()),
    }
}
