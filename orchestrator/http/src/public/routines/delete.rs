//! `DELETE /api/routines/{id}`: deletes a routine.

use axum::{extract::State, http::StatusCode};
use protocol::RoutineId;

use super::problem::caller;
use crate::{
    extract::ApiPath,
    problem::ApiError,
    public::{PublicApi, audit_entry::AuditedCaller},
};

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
pub(in crate::public) async fn delete(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    ApiPath(id): ApiPath<RoutineId>,
) -> Result<StatusCode, ApiError> {
    api.routines.delete(&caller(&who, entry), id).await?;
    Ok(StatusCode::NO_CONTENT)
}
