//! `GET /api/jobs/{id}/actions`: records of tool calls.

use axum::{Json, extract::State};
use protocol::{JobId, Page, ToolActionRecord};

use super::{
    PublicApi,
    caller::{Caller, authorize_job},
    cursor::{self, PageParams},
};
use store::CallPosition;

use crate::{
    extract::{ApiPath, ApiQuery},
    problem::ApiError,
};

/// Lists a job's tool calls, oldest first.
///
/// This is the audit of what the agent did, with the arguments (sensitive ones redacted) and the result of each call.
#[utoipa::path(
    get, path = "/api/jobs/{id}/actions", operation_id = "list_tool_calls", tag = "jobs",
    params(("id" = String, Path, description = "Job id."), PageParams),
    responses(
        (status = 200, body = Page<ToolActionRecord>, description = "A page."),
    )
)]
pub(super) async fn actions(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiPath(id): ApiPath<JobId>,
    ApiQuery(params): ApiQuery<PageParams>,
) -> Result<Json<Page<ToolActionRecord>>, ApiError> {
    authorize_job(&api, &who, id).await?;
    let (limit, after) = (params.limit()?, params.after::<CallPosition>()?);
    let _permit = api.read_permit(&who).await?;
    // One more, to know whether there is a next page.
    let calls = api.store.actions(id, after.as_ref(), limit + 1).await?;
    Ok(Json(cursor::page(calls, limit, ToString::to_string)))
}
