//! `GET /api/jobs/{id}`: shows a job.

use axum::{Json, extract::State};
use protocol::{Job, JobId};

use super::{
    PublicApi,
    caller::{Caller, authorize_job},
};
use crate::http::{extract::ApiPath, problem::ApiError};

/// Shows a job.
#[utoipa::path(
    get, path = "/api/jobs/{id}", operation_id = "get_job", tag = "jobs", params(("id" = String, Path, description = "Job id.")),
    responses(
        (status = 200, body = Job, description = "The job."),
    )
)]
pub(super) async fn get(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiPath(id): ApiPath<JobId>,
) -> Result<Json<Job>, ApiError> {
    Ok(Json(authorize_job(&api, &who, id).await?.to_api()))
}
