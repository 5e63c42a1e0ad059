//! `GET /api/jobs/{id}/actions`: records of tool calls.

use axum::{Json, extract::State};
use protocol::{JobId, Page, ToolActionRecord};

use super::{PublicApi, audit, audit::Params, caller::Caller};
use crate::http::{
    extract::{ApiPath, ApiQuery},
    problem::ApiError,
};

/// Lists a job's tool calls, oldest first.
#[utoipa::path(
    get, path = "/api/jobs/{id}/actions", operation_id = "list_tool_calls", tag = "jobs",
    params(("id" = String, Path, description = "Job id."), Params),
    responses(
        (status = 200, body = Page<ToolActionRecord>, description = "A page."),
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
