//! `POST /api/runs/{id}/cancel`: cancels a run.

use axum::{Json, extract::State, http::StatusCode};
use protocol::{ErrorCode, RoutineRun, RunId};
use store::CancelledRun;

use crate::{
    extract::ApiPath,
    problem::ApiError,
    public::{PublicApi, audit_entry::AuditedCaller},
};

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
pub(in crate::public) async fn cancel(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    ApiPath(id): ApiPath<RunId>,
) -> Result<(StatusCode, Json<RoutineRun>), ApiError> {
    let run = api.store.routine_run(id).await?.ok_or_else(ApiError::not_found)?;
    if !who.may_see(&run.user_id) {
        return Err(ApiError::not_owner());
    }
    match api.store.cancel_run(id, &entry).await? {
        CancelledRun::Done(run) => {
            api.waker.wake();
            api.routines.waker.wake_runs();
            Ok((StatusCode::ACCEPTED, Json(*run)))
        }
        CancelledRun::Finished => Err(ApiError::new(ErrorCode::RunFinished, "the run has ended")),
        CancelledRun::NotFound => Err(ApiError::not_found()),
    }
}
