//! `GET /api/jobs/{id}`: the job.

use axum::{Json, extract::State};
use protocol::{Job, JobId, Problem};

use super::{
    PublicApi,
    caller::{Caller, visible},
};
use crate::http::{extract::ApiPath, problem::ApiError};

/// Shows a job.
#[utoipa::path(
    get, path = "/api/jobs/{id}", tag = "jobs", params(("id" = String, Path, description = "The job.")),
    responses(
        (status = 200, body = Job, description = "The job."),
        (status = 404, body = Problem, content_type = "application/problem+json", description = "Missing, or another user's."),
    )
)]
pub(super) async fn get(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiPath(id): ApiPath<JobId>,
) -> Result<Json<Job>, ApiError> {
    Ok(Json(visible(&api, &who, id).await?.to_api()))
}
