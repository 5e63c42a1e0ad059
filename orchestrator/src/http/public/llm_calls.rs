//! `GET /api/jobs/{id}/llm-calls`: the audit of model calls.

use axum::{Json, extract::State};
use protocol::{JobId, LlmCallRecord, Page, Problem};

use super::{PublicApi, audit, audit::Params, caller::Caller};
use crate::http::{
    extract::{ApiPath, ApiQuery},
    problem::ApiError,
};

/// Lists a job's model calls, oldest first.
#[utoipa::path(
    get, path = "/api/jobs/{id}/llm-calls", tag = "jobs",
    params(("id" = String, Path, description = "The job."), Params),
    responses(
        (status = 200, body = Page<LlmCallRecord>, description = "One page."),
        (status = 404, body = Problem, content_type = "application/problem+json", description = "Missing, or another user's."),
        (status = 422, body = Problem, content_type = "application/problem+json", description = "A parameter is wrong."),
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
