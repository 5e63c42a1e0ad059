//! What is recorded about the work of a job: its tool calls, its model calls, its connections to other hosts, its prompts
//! and the output of its containers.

use axum::{
    Json,
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use protocol::{ContainerName, EgressPhase, JobEgress, JobId, JobPrompt, LlmCallRecord, Page, ToolActionRecord};
use store::MAX_EGRESS_COUNTERS;

use crate::{
    problem::ApiError,
    public::{
        PublicApi,
        request::{ApiPath, ApiQuery, Caller, PageParams, authorize_job, cursor},
    },
};

/// Lists a job's tool calls, oldest first.
///
/// This is the audit of what the agent did, with the arguments (without credentials) and the result of each call.
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
    api.tool_calls(&who, id, &params).await
}

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
    api.model_calls(&who, id, &params).await
}

/// Returns which hosts a job may reach, and what it asked for.
///
/// The list that applies, and the decisions about connections by destination, with the bytes that they carried. Each first decision is also an event of kind `egress`.
#[utoipa::path(
    get, path = "/api/jobs/{id}/egress", operation_id = "get_job_egress", tag = "jobs",
    params(("id" = String, Path, description = "Job id.")),
    responses((status = 200, body = JobEgress, description = "The list and the decisions."))
)]
pub(super) async fn egress(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiPath(id): ApiPath<JobId>,
) -> Result<Json<JobEgress>, ApiError> {
    let job = authorize_job(&api, &who, id).await?;
    let _permit = api.read_permit(&who).await?;
    let mut counters = api.store.egress_counters(id).await?;
    // What was carried in the last seconds is stored with the report of the worker.
    let is_reported = job.result().is_some_and(|result| result.text.is_some());
    let is_complete = is_reported && counters.len() <= MAX_EGRESS_COUNTERS;
    counters.truncate(MAX_EGRESS_COUNTERS);
    let allowed = job.brief.egress_view().allow;
    Ok(Json(JobEgress { phase: EgressPhase::Agent, allowed, counters, is_complete }))
}

/// Lists the prompts that people sent to a job, newest first.
///
/// With when the agent read each.
#[utoipa::path(
    get, path = "/api/jobs/{id}/prompts", operation_id = "list_prompts", tag = "jobs",
    params(("id" = String, Path, description = "Job id."), PageParams),
    responses((status = 200, body = Page<JobPrompt>, description = "A page."))
)]
pub(super) async fn prompts(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiPath(id): ApiPath<JobId>,
    ApiQuery(params): ApiQuery<PageParams>,
) -> Result<Json<Page<JobPrompt>>, ApiError> {
    authorize_job(&api, &who, id).await?;
    let before = params.after::<i64>()?;
    let limit = params.limit()?;
    let _permit = api.read_permit(&who).await?;
    let (items, next) = api.store.prompts(id, before, limit).await?;
    Ok(Json(Page { items, next_cursor: next.map(|seq| cursor::write(&seq.to_string())) }))
}

/// Shows the output of the job's containers, by attempt.
///
/// Output is saved when a container is removed, so a running container has none yet.
#[utoipa::path(
    get, path = "/api/jobs/{id}/logs", operation_id = "get_job_logs", tag = "jobs", params(("id" = String, Path, description = "Job id.")),
    responses(
        (status = 200, body = String, content_type = "text/plain", description = "For each attempt, a header line and its output."),
    )
)]
pub(super) async fn logs(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiPath(id): ApiPath<JobId>,
) -> Result<Response, ApiError> {
    let job = authorize_job(&api, &who, id).await?;
    let mut text = String::new();
    for attempt in 1..=job.attempt {
        let path = api.logs.join(ContainerName::job(id, attempt).log_file());
        let printed = match tokio::fs::read(&path).await {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            read => read.map_err(ApiError::internal)?,
        };
        text.push_str("==> attempt ");
        text.push_str(&attempt.to_string());
        text.push('\n');
        text.push_str(&String::from_utf8_lossy(&printed));
        if !text.ends_with('\n') {
            text.push('\n');
        }
    }
    Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response())
}
