//! `GET /api/routines/{id}`: shows a routine.

use axum::{
    Json,
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use protocol::{Routine, RoutineId};

use super::problem::etag;
use crate::{
    extract::ApiPath,
    problem::ApiError,
    public::{PublicApi, caller::Caller},
};

/// Gets a routine.
///
/// With its definition, status and next time. Secrets are not shown.
#[utoipa::path(
    get, path = "/api/routines/{id}", operation_id = "get_routine", tag = "routines",
    params(("id" = String, Path, description = "Routine id.")),
    responses(
        (status = 200, body = Routine, description = "The routine.",
            headers(("ETag" = String, description = "The revision in quotes, for If-Match."))),
        (status = 404, description = "No such routine."),
    )
)]
pub(in crate::public) async fn get(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiPath(id): ApiPath<RoutineId>,
) -> Result<Response, ApiError> {
    let routine: Routine = api.store.routine(id).await?.ok_or_else(ApiError::not_found)?;
    if !who.may_see(&routine.user_id) {
        return Err(ApiError::not_owner());
    }
    Ok(([(header::ETAG, etag(routine.rev)?)], Json(routine)).into_response())
}
