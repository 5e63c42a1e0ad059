//! `/api/runs`, and the runs of one routine: listed, shown and cancelled.

use axum::{Json, extract::State, http::StatusCode};
use chrono::{DateTime, Utc};
use protocol::{
    ErrorCode, LlmCallRecord, Page, RoutineId, RoutineRun, RunId, RunMessage, RunReason, RunStatus, ToolActionRecord,
    TriggerType,
};
use serde::Deserialize;
use store::{CancelledRun, RunFilter};
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    problem::ApiError,
    public::{
        PublicApi,
        request::{ApiPath, ApiQuery, AuditedCaller, Caller, PageParams, audited, cursor, filter, visible},
    },
};

pub(super) fn routes() -> OpenApiRouter<PublicApi> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(of_routine))
        .routes(routes!(get))
        .routes(routes!(messages))
        .routes(routes!(llm_calls))
        .routes(routes!(actions))
        .merge(audited("run.cancel", routes!(cancel)))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParams {
    /// Only runs of this routine.
    #[param(value_type = Option<String>)]
    routine_id: Option<RoutineId>,
    /// Statuses, separated by commas.
    status: Option<String>,
    /// Types of triggers, separated by commas.
    trigger: Option<String>,
    /// Only runs that failed, were skipped or were missed for this reason.
    #[param(inline)]
    reason: Option<RunReason>,
    /// Only runs that were recorded at or after this time.
    since: Option<DateTime<Utc>>,
    /// Only runs that were recorded before this time.
    until: Option<DateTime<Utc>>,
    /// Prefix or suffix of an id, at least 4 characters.
    id: Option<String>,
    /// Only runs of this user; admins only.
    user: Option<String>,
    /// Maximum number of items, 1 to 200; default 50.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<u32>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// Lists runs, newest first.
///
/// Also those of routines that were deleted, and firings that were skipped or missed, which stand among the runs. An admin sees
/// those of all users.
#[utoipa::path(
    get, path = "/api/runs", operation_id = "list_runs", tag = "routines", params(ListParams),
    responses(
        (status = 200, body = Page<RoutineRun>, description = "A page."),
    )
)]
async fn list(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiQuery(params): ApiQuery<ListParams>,
) -> Result<Json<Page<RoutineRun>>, ApiError> {
    let limit = cursor::limit(params.limit)?;
    let filter = RunFilter {
        user: filter::user(&who, params.user, "list what belongs to other users")?,
        routine: params.routine_id,
        statuses: filter::names("status", params.status.as_deref(), RunStatus::ALL, RunStatus::as_str)?,
        triggers: filter::names("trigger", params.trigger.as_deref(), TriggerType::ALL, TriggerType::as_str)?,
        reason: params.reason,
        id_part: params.id.as_deref().map(filter::id_part).transpose()?,
        since: params.since,
        until: params.until,
        before: params.cursor.as_deref().map(cursor::read::<RunId>).transpose()?,
        limit,
    };
    let _permit = api.read_permit(&who).await?;
    let (items, next) = api.store.runs(&filter).await?;
    Ok(Json(Page { items, next_cursor: next.map(|id| cursor::write(&id.to_string())) }))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct OfRoutineParams {
    /// Statuses, separated by commas.
    status: Option<String>,
    /// Only runs that failed, were skipped or were missed for this reason.
    #[param(inline)]
    reason: Option<RunReason>,
    /// Only runs that were recorded at or after this time.
    since: Option<DateTime<Utc>>,
    /// Only runs that were recorded before this time.
    until: Option<DateTime<Utc>>,
    /// Maximum number of items, 1 to 200; default 50.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<u32>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// Lists the runs of a routine, newest first.
///
/// Among them are firings that were skipped or missed: one entry for each reason and minute in which a guardrail stopped firings,
/// with `skipped_count`, and one for each gap of missed times.
#[utoipa::path(
    get, path = "/api/routines/{id}/runs", operation_id = "list_routine_runs", tag = "routines",
    params(("id" = String, Path, description = "Routine id."), OfRoutineParams),
    responses(
        (status = 200, body = Page<RoutineRun>, description = "A page."),
        (status = 404, description = "No such routine."),
    )
)]
async fn of_routine(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiPath(id): ApiPath<RoutineId>,
    ApiQuery(params): ApiQuery<OfRoutineParams>,
) -> Result<Json<Page<RoutineRun>>, ApiError> {
    let limit = cursor::limit(params.limit)?;
    visible(&who, api.store.routine(id).await?, |routine| &routine.user_id)?;
    let filter = RunFilter {
        routine: Some(id),
        statuses: filter::names("status", params.status.as_deref(), RunStatus::ALL, RunStatus::as_str)?,
        reason: params.reason,
        since: params.since,
        until: params.until,
        before: params.cursor.as_deref().map(cursor::read::<RunId>).transpose()?,
        limit,
        ..RunFilter::default()
    };
    let _permit = api.read_permit(&who).await?;
    let (items, next) = api.store.runs(&filter).await?;
    Ok(Json(Page { items, next_cursor: next.map(|id| cursor::write(&id.to_string())) }))
}

/// Shows a run.
///
/// `trigger_detail` has the digest of what fired the run, and with `persist_payload` also the payload, once the run has ended.
#[utoipa::path(
    get, path = "/api/runs/{id}", operation_id = "get_run", tag = "routines",
    params(("id" = String, Path, description = "Run id.")),
    responses(
        (status = 200, body = RoutineRun, description = "The run."),
        (status = 404, description = "No such run."),
    )
)]
async fn get(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiPath(id): ApiPath<RunId>,
) -> Result<Json<RoutineRun>, ApiError> {
    visible(&who, api.store.routine_run(id).await?, |run| &run.user_id).map(Json)
}

/// Lists the conversation of a lightweight run, oldest first.
///
/// What the model read first, its answers and reasoning, and the tool calls with their results, once the attempt has ended. What fired the
/// run is left out of the prompt unless its routine has `persist_payload`; what the model and its tools say of it is kept. At most
/// 512 KiB of each attempt, for the newest 100 runs of a routine. That of a run with a job is in the job's events.
#[utoipa::path(
    get, path = "/api/runs/{id}/messages", operation_id = "list_run_messages", tag = "routines",
    params(("id" = String, Path, description = "Run id."), PageParams),
    responses(
        (status = 200, body = Page<RunMessage>, description = "A page."),
        (status = 404, description = "No such run."),
    )
)]
async fn messages(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiPath(id): ApiPath<RunId>,
    ApiQuery(params): ApiQuery<PageParams>,
) -> Result<Json<Page<RunMessage>>, ApiError> {
    let (limit, after) = (params.limit()?, params.after::<u64>()?.unwrap_or_default());
    visible(&who, api.store.routine_run(id).await?, |run| &run.user_id)?;
    let _permit = api.read_permit(&who).await?;
    let rest = api.store.run_messages(id).await?.into_iter().filter(|message| message.seq > after);
    // One more, to know whether there is a next page.
    let page = rest.take(limit as usize + 1).map(|message| (message.seq, message)).collect();
    Ok(Json(cursor::page(page, limit, ToString::to_string)))
}

/// Lists the model calls of a lightweight run, oldest first.
///
/// Those of a run with a job are the job's.
#[utoipa::path(
    get, path = "/api/runs/{id}/llm-calls", operation_id = "list_run_model_calls", tag = "routines",
    params(("id" = String, Path, description = "Run id."), PageParams),
    responses(
        (status = 200, body = Page<LlmCallRecord>, description = "A page."),
        (status = 404, description = "No such run."),
    )
)]
async fn llm_calls(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiPath(id): ApiPath<RunId>,
    ApiQuery(params): ApiQuery<PageParams>,
) -> Result<Json<Page<LlmCallRecord>>, ApiError> {
    visible(&who, api.store.routine_run(id).await?, |run| &run.user_id)?;
    api.model_calls(&who, id, &params).await
}

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
async fn actions(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiPath(id): ApiPath<RunId>,
    ApiQuery(params): ApiQuery<PageParams>,
) -> Result<Json<Page<ToolActionRecord>>, ApiError> {
    visible(&who, api.store.routine_run(id).await?, |run| &run.user_id)?;
    api.tool_calls(&who, id, &params).await
}

/// Cancels a run.
///
/// Its job, if it has one, is cancelled too. The run is not counted as a failure of the routine.
#[utoipa::path(
    post, path = "/api/runs/{id}/cancel", operation_id = "cancel_run", tag = "routines",
    params(("id" = String, Path, description = "Run id.")),
    responses(
        (status = 202, body = RoutineRun, description = "The run has ended, or ends when its job has stopped."),
        (status = 404, description = "No such run."),
        (status = 409, description = "The run had ended."),
    )
)]
async fn cancel(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    ApiPath(id): ApiPath<RunId>,
) -> Result<(StatusCode, Json<RoutineRun>), ApiError> {
    let run = visible(&who, api.store.routine_run(id).await?, |run| &run.user_id)?;
    if run.status.is_finished() {
        return Err(finished());
    }
    match api.store.cancel_run(id, &entry).await? {
        CancelledRun::Done(run) => {
            api.waker.wake();
            api.routines.waker.wake_runs();
            Ok((StatusCode::ACCEPTED, Json(*run)))
        }
        CancelledRun::Finished => Err(finished()),
        CancelledRun::NotFound => Err(ApiError::not_found()),
    }
}

fn finished() -> ApiError {
    ApiError::new(ErrorCode::RunFinished, "the run has ended")
}
