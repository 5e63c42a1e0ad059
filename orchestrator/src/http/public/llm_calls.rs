//! `GET /api/jobs/{id}/llm-calls`: records of model calls.

use axum::{Json, extract::State};
use protocol::{JobId, LlmCallRecord, Page};

use super::{PublicApi, audit, audit::Params, caller::Caller};
use crate::http::{
    extract::{ApiPath, ApiQuery},
    problem::ApiError,
};

/// Lists a job's model calls, oldest first.
#[utoipa::path(
    get, path = "/api/jobs/{id}/llm-calls", operation_id = "list_model_calls", tag = "jobs",
    params(("id" = String, Path, description = "Job id."), Params),
    responses(
        (status = 200, body = Page<LlmCallRecord>, description = "A page."),
    )
)]
pub(super) async fn llm_calls(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiPath(id): ApiPath<JobId>,
    ApiQuery(params): ApiQuery<Params>,
) -> Result<Json<Page<LlmCallRecord>>, ApiError> {
    audit::page(&api, &who, id, params, |offset, limit| api.store.model_calls(id, offset, limit)).await
}
