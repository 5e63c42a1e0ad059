//! `GET /api/jobs/{id}/llm-calls`: records of model calls.

use axum::{Json, extract::State};
use protocol::{JobId, LlmCallRecord, Page};

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

/// Lists a job's model calls, oldest first.
///
/// With the model, the tokens, the cost and the duration of each call.
#[utoipa::path(
    get, path = "/api/jobs/{id}/llm-calls", operation_id = "list_model_calls", tag = "jobs",
    params(("id" = String, Path, description = "Job id."), PageParams),
    responses(
        (status = 200, body = Page<LlmCallRecord>, description = "A page."),
    )
)]
pub(super) async fn llm_calls(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiPath(id): ApiPath<JobId>,
    ApiQuery(params): ApiQuery<PageParams>,
) -> Result<Json<Page<LlmCallRecord>>, ApiError> {
    authorize_job(&api, &who, id).await?;
    let (limit, after) = (params.limit()?, params.after::<CallPosition>()?);
    let _permit = api.read_permit(&who).await?;
    // One more, to know whether there is a next page.
    let calls = api.store.model_calls(id, after.as_ref(), limit + 1).await?;
    Ok(Json(cursor::page(calls, limit, ToString::to_string)))
}
