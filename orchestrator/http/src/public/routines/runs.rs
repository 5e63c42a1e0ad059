//! `GET /api/routines/{id}/runs`: the runs of a routine.

use axum::{Json, extract::State};
use protocol::{Page, RoutineId, RoutineRun, RunId, RunStatus};
use serde::Deserialize;
use store::RunFilter;
use utoipa::IntoParams;

use crate::{
    extract::{ApiPath, ApiQuery},
    problem::ApiError,
    public::{PublicApi, caller::Caller, cursor, name_list},
};

/// Query parameters.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::public) struct Params {
    /// Statuses, separated by commas.
    status: Option<String>,
    /// Maximum number of items, 1 to 200; default 50.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<u32>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// Lists the runs of a routine, newest first.
///
/// Each firing is a run, including those that a guardrail prevented or that were missed.
#[utoipa::path(
    get, path = "/api/routines/{id}/runs", operation_id = "list_routine_runs", tag = "routines",
    params(("id" = String, Path, description = "Routine id."), Params),
    responses(
        (status = 200, body = Page<RoutineRun>, description = "A page."),
        (status = 404, description = "No such routine."),
    )
)]
pub(in crate::public) async fn list(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiPath(id): ApiPath<RoutineId>,
    ApiQuery(params): ApiQuery<Params>,
) -> Result<Json<Page<RoutineRun>>, ApiError> {
    let limit = cursor::limit(params.limit)?;
    let routine = api.store.routine(id).await?.ok_or_else(ApiError::not_found)?;
    if !who.may_see(&routine.user_id) {
        return Err(ApiError::not_owner());
    }
    let filter = RunFilter {
        routine: Some(id),
        statuses: name_list::parse("status", params.status.as_deref(), RunStatus::ALL, RunStatus::as_str)?,
        before: params.cursor.as_deref().map(cursor::read::<RunId>).transpose()?,
        limit,
        ..RunFilter::default()
    };
    let _permit = api.read_permit(&who).await?;
    let (items, has_more) = api.store.runs(&filter).await?;
    let next_cursor = items.last().filter(|_| has_more).map(|last| cursor::write(&last.id.to_string()));
    Ok(Json(Page { items, next_cursor }))
}
