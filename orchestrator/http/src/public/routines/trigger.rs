//! `POST /api/routines/{id}/trigger`: fires a routine manually.

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use protocol::{RoutineId, RoutineRun, TriggerRoutine};

use super::problem::caller;
use crate::{
    extract::{ApiPath, OptionalJson},
    problem::ApiError,
    public::{PublicApi, audit_entry::AuditedCaller},
};

/// Fires a routine manually.
///
/// The cooldown does not apply, and the next time of the schedule stays as it is.
#[utoipa::path(
    post, path = "/api/routines/{id}/trigger", operation_id = "trigger_routine", tag = "routines",
    params(("id" = String, Path, description = "Routine id.")), request_body = Option<TriggerRoutine>,
    responses(
        (status = 200, body = RoutineRun, description = "The run has ended within `wait_seconds`."),
        (status = 202, body = RoutineRun, description = "The run waits or is in progress."),
        (status = 404, description = "No such routine."),
        (status = 409, description = "The routine is disabled or busy, or a guardrail stopped the firing."),
    )
)]
pub(in crate::public) async fn trigger(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    ApiPath(id): ApiPath<RoutineId>,
    OptionalJson(request): OptionalJson<TriggerRoutine>,
) -> Result<Response, ApiError> {
    let triggered = api.routines.trigger(&caller(&who, entry), id, request).await?;
    let status = if triggered.is_finished { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok((status, Json::<RoutineRun>(triggered.run)).into_response())
}
