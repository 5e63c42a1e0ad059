//! `GET /api/jobs/{id}/actions`: the audit of tool calls.

use axum::{Json, extract::State};
use protocol::{JobId, Page, Problem, ToolActionRecord};

use super::{PublicApi, audit, audit::Params, caller::Caller};
use crate::http::{
    extract::{ApiPath, ApiQuery},
    problem::ApiError,
};

/// Lists a job's tool calls, oldest first.
#[utoipa::path(
    get, path = "/api/jobs/{id}/actions", tag = "jobs",
    params(("id" = String, Path, description = "The job."), Params),
    responses(
        (status = 200, body = Page<ToolActionRecord>, description = "One page."),
        (status = 404, body = Problem, content_type = "application/problem+json", description = "Missing, or another user's."),
        (status = 422, body = Problem, content_type = "application/problem+json", description = "A parameter is wrong."),
    )
)]
pub(super) async fn actions(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiPath(id): ApiPath<JobId>,
    ApiQuery(params): ApiQuery<Params>,
) -> Result<Json<Page<ToolActionRecord>>, ApiError> {
    audit::page(&api, &who, id, params, |offset, limit| api.store.actions(id, offset, limit)).await
}
