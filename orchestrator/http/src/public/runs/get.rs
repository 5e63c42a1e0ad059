//! `GET /api/runs/{id}`: shows a run.

use axum::{Json, extract::State};
use protocol::{RoutineRun, RunId};

use crate::{
    extract::ApiPath,
    problem::ApiError,
    public::{PublicApi, caller::Caller},
};

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
pub(in crate::public) async fn get(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiPath(id): ApiPath<RunId>,
) -> Result<Json<RoutineRun>, ApiError> {
    let run = api.store.routine_run(id).await?.ok_or_else(ApiError::not_found)?;
    if who.may_see(&run.user_id) { Ok(Json(run)) } else { Err(ApiError::not_owner()) }
}
