//! `/api/routines`: routines are created, changed, switched and triggered. Owns the problems of refused changes.

mod histogram;
mod inbound;
mod read;
mod rpc;
mod runs;

use auth::Identity;
use axum::{
    Json,
    extract::{DefaultBodyLimit, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use dispatch::{RoutineCaller, RoutineError};
use protocol::{
    CreateRoutine, ErrorCode, Routine, RoutineId, RoutinePatch, RoutinePreview, RoutineRun, RoutineSaved, RunReason,
    TriggerRoutine,
};
use secrets::SecretError;
use serde::Deserialize;
use store::AuditEntry;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    MAX_BODY_BYTES, PublicApi,
    request::{
        ApiJson, ApiPath, ApiQuery, AuditedCaller, ClientHeaders, IfMatch, OptionalJson, audited, etag, idempotent,
    },
};
use crate::problem::ApiError;

pub use inbound::Inbound;

/// Maximum body of a definition: JSON makes six bytes of a control character of a prompt of 256 KiB.
const MAX_DEFINITION_BYTES: usize = 2 * MAX_BODY_BYTES;

pub(super) fn routes() -> OpenApiRouter<PublicApi> {
    let changes = OpenApiRouter::new()
        .merge(audited("routine.create", routes!(create)))
        .merge(audited("routine.update", routes!(patch)))
        .layer(DefaultBodyLimit::max(MAX_DEFINITION_BYTES));
    OpenApiRouter::new()
        .routes(routes!(read::list))
        .merge(changes)
        .routes(routes!(read::summary))
        .routes(routes!(read::get))
        .merge(audited("routine.delete", routes!(delete)))
        .merge(audited("routine.enable", routes!(enable)))
        .merge(audited("routine.disable", routes!(disable)))
        .merge(audited("routine.toggle", routes!(toggle)))
        .merge(audited("routine.trigger", routes!(trigger)))
        .routes(routes!(read::upcoming))
        .routes(routes!(read::upcoming_of_all))
        .routes(routes!(histogram::histogram))
        .merge(runs::routes())
        .merge(inbound::routes())
        .merge(rpc::routes())
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct CreateParams {
    /// `true`: the definition is checked and nothing is stored.
    #[serde(default)]
    dry_run: bool,
}

/// Creates a routine.
///
/// The answer has warnings about what will not work in an unattended run. A secret of a webhook that was generated is shown in this
/// answer only. With `Idempotency-Key`, a repeated request creates nothing and answers with the routine of the first one as it
/// is now.
#[utoipa::path(
    post, path = "/api/routines", operation_id = "create_routine", tag = "routines",
    params(
        CreateParams,
        ("Idempotency-Key" = Option<String>, Header, description = "The same key and body within 24 h return the first routine."),
    ),
    request_body(content = CreateRoutine, example = json!({
        "name": "morning-news",
        "trigger": {"type": "cron", "schedule": "0 9 * * mon-fri", "timezone": "Europe/Oslo"},
        "action": {"type": "lightweight", "prompt": "Summarize what has happened since yesterday."},
    })),
    responses(
        (status = 201, body = RoutineSaved, description = "The routine.",
            headers(("ETag" = String, description = "The revision in quotes, for If-Match."))),
        (status = 200, body = RoutinePreview, description = "With `dry_run`: the warnings, the next three times, and how often it fires in eight days."),
        (status = 409, description = "The name or the webhook's path is taken, or the user has 10,000 routines."),
        (status = 422, description = "Invalid fields, or the idempotency key was used with another request."),
    )
)]
async fn create(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    ApiQuery(params): ApiQuery<CreateParams>,
    client: ClientHeaders,
    body: ApiJson<CreateRoutine>,
) -> Result<Response, ApiError> {
    let caller = caller(&who, entry);
    if params.dry_run {
        let preview: RoutinePreview = api.routines.preview(&caller, body.value).await?;
        return Ok(Json(preview).into_response());
    }
    let key = client.bind(&who.user, "POST /api/routines".to_owned(), body.bytes).await?;
    let (mut saved, is_replayed): (RoutineSaved, bool) = api.routines.create_once(&caller, body.value, key).await?;
    saved.routine = with_budget_use(&api, saved.routine).await?;
    let response = (StatusCode::CREATED, [(header::ETAG, etag(saved.routine.rev)?)], Json(saved)).into_response();
    Ok(if is_replayed { idempotent::mark_replayed(response) } else { response })
}

/// Changes a routine.
///
/// The body is a merge patch: a field with `null` is set to its default, and `trigger` and `action` are replaced as a whole. A
/// webhook's trigger without `secret` keeps its secret. Another trigger or action makes the routine unverified; times that have
/// passed are not run again.
#[utoipa::path(
    patch, path = "/api/routines/{id}", operation_id = "update_routine", tag = "routines",
    params(
        ("id" = String, Path, description = "Routine id."),
        ("If-Match" = Option<String>, Header, description = "The revision to change, from ETag; * for any."),
    ),
    request_body(content = Object, example = json!({"description": "Every weekday at nine."})),
    responses(
        (status = 200, body = RoutineSaved, description = "The routine.",
            headers(("ETag" = String, description = "The new revision in quotes."))),
        (status = 404, description = "No such routine."),
        (status = 409, description = "The name or the webhook's path is taken."),
        (status = 412, description = "The routine has another revision than If-Match says."),
        (status = 422, description = "Invalid fields."),
    )
)]
async fn patch(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    ApiPath(id): ApiPath<RoutineId>,
    IfMatch(expected): IfMatch,
    body: ApiJson<RoutinePatch>,
) -> Result<Response, ApiError> {
    let mut saved: RoutineSaved = api.routines.patch(&caller(&who, entry), id, body.value, expected).await?;
    saved.routine = with_budget_use(&api, saved.routine).await?;
    Ok(([(header::ETAG, etag(saved.routine.rev)?)], Json(saved)).into_response())
}

/// Deletes a routine.
///
/// A run in progress goes on, and the runs stay in `GET /api/runs`. The name and the webhook's path are free.
#[utoipa::path(
    delete, path = "/api/routines/{id}", operation_id = "delete_routine", tag = "routines",
    params(("id" = String, Path, description = "Routine id.")),
    responses(
        (status = 204, description = "The routine is deleted."),
        (status = 404, description = "No such routine."),
    )
)]
async fn delete(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    ApiPath(id): ApiPath<RoutineId>,
) -> Result<StatusCode, ApiError> {
    api.routines.delete(&caller(&who, entry), id).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Enables a routine.
///
/// Times that have passed meanwhile are not run.
#[utoipa::path(
    post, path = "/api/routines/{id}/enable", operation_id = "enable_routine", tag = "routines",
    params(("id" = String, Path, description = "Routine id.")),
    responses(
        (status = 200, body = Routine, description = "The routine."),
        (status = 404, description = "No such routine."),
        (status = 422, description = "Its schedule has no further time."),
    )
)]
async fn enable(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    ApiPath(id): ApiPath<RoutineId>,
) -> Result<Json<Routine>, ApiError> {
    let routine = api.routines.set_enabled(&caller(&who, entry), id, Some(true)).await?;
    Ok(Json(with_budget_use(&api, routine).await?))
}

/// Disables a routine.
///
/// A run in progress goes on; runs that wait end.
#[utoipa::path(
    post, path = "/api/routines/{id}/disable", operation_id = "disable_routine", tag = "routines",
    params(("id" = String, Path, description = "Routine id.")),
    responses(
        (status = 200, body = Routine, description = "The routine."),
        (status = 404, description = "No such routine."),
    )
)]
async fn disable(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    ApiPath(id): ApiPath<RoutineId>,
) -> Result<Json<Routine>, ApiError> {
    let routine = api.routines.set_enabled(&caller(&who, entry), id, Some(false)).await?;
    Ok(Json(with_budget_use(&api, routine).await?))
}

/// Enables or disables a routine.
///
/// A routine that is disabled is enabled, and one that is enabled is disabled.
#[utoipa::path(
    post, path = "/api/routines/{id}/toggle", operation_id = "toggle_routine", tag = "routines",
    params(("id" = String, Path, description = "Routine id.")),
    responses(
        (status = 200, body = Routine, description = "The routine."),
        (status = 404, description = "No such routine."),
        (status = 422, description = "Its schedule has no further time."),
    )
)]
async fn toggle(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    ApiPath(id): ApiPath<RoutineId>,
) -> Result<Json<Routine>, ApiError> {
    let routine = api.routines.set_enabled(&caller(&who, entry), id, None).await?;
    Ok(Json(with_budget_use(&api, routine).await?))
}

/// Fires a routine manually.
///
/// The cooldown does not apply, and the next time of the schedule stays as it is. With `Idempotency-Key`, a repeated request fires
/// nothing and answers with the run of the first one.
#[utoipa::path(
    post, path = "/api/routines/{id}/trigger", operation_id = "trigger_routine", tag = "routines",
    params(
        ("id" = String, Path, description = "Routine id."),
        ("Idempotency-Key" = Option<String>, Header, description = "The same key and body within 24 h return the run of the first request."),
    ),
    request_body(content = Option<TriggerRoutine>, example = json!({"wait_seconds": 30})),
    responses(
        (status = 200, body = RoutineRun, description = "The run has ended within `wait_seconds`."),
        (status = 202, body = RoutineRun, description = "The run waits or is in progress."),
        (status = 404, description = "No such routine."),
        (status = 409, description = "The routine is disabled or busy, or a guardrail stopped the firing."),
        (status = 422, description = "Invalid, or the idempotency key was used with another request."),
    )
)]
async fn trigger(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    ApiPath(id): ApiPath<RoutineId>,
    client: ClientHeaders,
    OptionalJson(request): OptionalJson<TriggerRoutine>,
) -> Result<Response, ApiError> {
    let body = serde_json::to_vec(&request).map_err(ApiError::internal)?;
    let key = client.bind(&who.user, format!("POST /api/routines/{id}/trigger"), body.into()).await?;
    let triggered = api.routines.trigger(&caller(&who, entry), id, request, key).await?;
    let status = if triggered.is_finished { StatusCode::OK } else { StatusCode::ACCEPTED };
    let response = (status, Json::<RoutineRun>(triggered.run)).into_response();
    Ok(if triggered.is_replayed { idempotent::mark_replayed(response) } else { response })
}

/// The caller of a request.
pub(super) fn caller(who: &Identity, entry: AuditEntry) -> RoutineCaller {
    RoutineCaller { user: who.user.clone(), sees_all: who.role.sees_all(), entry }
}

/// A routine with what its runs have used of its budget in the present period.
pub(super) async fn with_budget_use(api: &PublicApi, mut routine: Routine) -> Result<Routine, ApiError> {
    api.store.set_current_budget_use(std::slice::from_mut(&mut routine), api.clock.now()).await?;
    Ok(routine)
}

impl From<RoutineError> for ApiError {
    fn from(error: RoutineError) -> Self {
        let detail = error.to_string();
        match error {
            RoutineError::Invalid(fields) => Self::invalid(fields),
            RoutineError::NameTaken => Self::new(ErrorCode::NameTaken, detail),
            RoutineError::PathTaken => Self::new(ErrorCode::WebhookPathTaken, detail),
            RoutineError::TooMany { .. } | RoutineError::Contended => Self::new(ErrorCode::Conflict, detail),
            RoutineError::NotFound => Self::not_found(),
            RoutineError::NotOwner => Self::not_owner(),
            RoutineError::Changed { .. } => Self::new(ErrorCode::PreconditionFailed, detail),
            RoutineError::KeyReused => Self::new(ErrorCode::IdempotencyMismatch, detail),
            RoutineError::Disabled => Self::new(ErrorCode::RoutineDisabled, detail),
            RoutineError::AutomationDisabled => Self::new(ErrorCode::AutomationDisabled, detail),
            RoutineError::Skipped { run, reason } => {
                let code =
                    if reason == RunReason::Overlap { ErrorCode::RoutineBusy } else { ErrorCode::RoutineSkipped };
                Self::new(code, format!("{detail}; GET /api/runs/{run} shows it")).with_reason(reason.as_str())
            }
            RoutineError::Secret(SecretError::Store(error)) | RoutineError::Store(error) => error.into(),
            RoutineError::Secret(error) => Self::internal(error),
        }
    }
}
