//! `POST /api/routines/{id}/enable`, `/disable` and `/toggle`.

use axum::{Json, extract::State};
use protocol::{Routine, RoutineId};

use super::problem::caller;
use crate::{
    extract::ApiPath,
    problem::ApiError,
    public::{PublicApi, audit_entry::AuditedCaller},
};

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
pub(in crate::public) async fn enable(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    ApiPath(id): ApiPath<RoutineId>,
) -> Result<Json<Routine>, ApiError> {
    Ok(Json(api.routines.set_enabled(&caller(&who, entry), id, Some(true)).await?))
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
pub(in crate::public) async fn disable(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    ApiPath(id): ApiPath<RoutineId>,
) -> Result<Json<Routine>, ApiError> {
    Ok(Json(api.routines.set_enabled(&caller(&who, entry), id, Some(false)).await?))
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
pub(in crate::public) async fn toggle(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    ApiPath(id): ApiPath<RoutineId>,
) -> Result<Json<Routine>, ApiError> {
    Ok(Json(api.routines.set_enabled(&caller(&who, entry), id, None).await?))
}
