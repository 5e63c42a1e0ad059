//! `GET /api/runs/{id}/actions`: records of tool calls.

use axum::{Json, extract::State};
use protocol::{Page, RunId, ToolActionRecord};
use store::CallPosition;

use crate::{
    extract::{ApiPath, ApiQuery},
    problem::ApiError,
    public::{
        PublicApi,
        caller::Caller,
        cursor::{self, PageParams},
    },
};

/// Lists the tool calls of a lightweight run, oldest first.
///
/// Those of a run with a job are the job's.
#[utoipa::path(
    get, path = "/api/runs/{id}/actions", operation_id = "list_run_tool_calls", tag = "routines",
    params(("id" = String, Path, description = "Run id."), PageParams),
    responses(
        (status = 200, body = Page<ToolActionRecord>, description = "A page."),
        (status = 404, description = "No such run."),
    )
)]
pub(in crate::public) async fn actions(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiPath(id): ApiPath<RunId>,
    ApiQuery(params): ApiQuery<PageParams>,
) -> Result<Json<Page<ToolActionRecord>>, ApiError> {
    let (limit, after) = (params.limit()?, params.after::<CallPosition>()?);
    let run = api.store.routine_run(id).await?.ok_or_else(ApiError::not_found)?;
    if !who.may_see(&run.user_id) {
        return Err(ApiError::not_owner());
    }
    let _permit = api.read_permit(&who).await?;
    // One more, to know whether there is a next page.
    let calls = api.store.run_actions(id, after.as_ref(), limit + 1).await?;
    Ok(Json(cursor::page(calls, limit, ToString::to_string)))
}
