//! `GET /api/jobs/{id}/actions`: the audit of tool calls.

use axum::{Json, extract::State};
use protocol::{JobId, Page, Problem, ToolActionRecord};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{
    PublicApi,
    caller::{Caller, visible},
    cursor,
};
use crate::http::{
    extract::{ApiPath, ApiQuery},
    problem::ApiError,
};

/// Which page.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Params {
    /// 1 to 200; 50 when left out.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<u32>,
    /// From the last page's `next_cursor`.
    cursor: Option<String>,
}

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
    visible(&api, &who, id).await?;
    let limit = cursor::limit(params.limit)?;
    let offset: u32 = params.cursor.as_deref().map(cursor::read).transpose()?.unwrap_or(0);
    let mut items = api.store.actions(id, offset, limit + 1).await?;
    let more = items.len() > limit as usize;
    items.truncate(limit as usize);
    let next_cursor = more.then(|| cursor::write(&offset.saturating_add(limit).to_string()));
    Ok(Json(Page { items, next_cursor }))
}
