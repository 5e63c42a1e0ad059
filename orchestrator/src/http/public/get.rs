//! `GET /api/jobs/{id}`: shows a job.

use axum::extract::State;
use protocol::{Job, JobId};

use super::{PublicApi, caller::UncheckedCaller, json_text::JsonText};
use crate::http::{extract::ApiPath, problem::ApiError};

/// Gets a job.
///
/// With its state, limits, usage, container and, once it has finished, its result.
#[utoipa::path(
    get, path = "/api/jobs/{id}", operation_id = "get_job", tag = "jobs", params(("id" = String, Path, description = "Job id.")),
    responses(
        (status = 200, body = Job, description = "The job."),
    )
)]
pub(super) async fn get(
    State(api): State<PublicApi>,
    caller: UncheckedCaller,
    ApiPath(id): ApiPath<JobId>,
) -> Result<JsonText, ApiError> {
    let job = api.store.job_json(&caller.unchecked().jti, id).await?;
    let (who, job) = caller.checked(job)?;
    let job = job.ok_or_else(ApiError::not_found)?;
    if who.may_see(&job.user_id) { Ok(JsonText(job.json)) } else { Err(ApiError::not_owner()) }
}
