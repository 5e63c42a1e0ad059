//! `GET /api/routines/{id}/upcoming`: the next times of a routine.

use axum::{Json, extract::State};
use protocol::{RoutineId, UpcomingFirings};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::{
    extract::{ApiPath, ApiQuery},
    problem::ApiError,
    public::{PublicApi, caller::Caller},
};

/// Times by default, and at most (contract: routines).
const DEFAULT_COUNT: usize = 10;
const MAX_COUNT: usize = 200;

/// Query parameters.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::public) struct Params {
    /// Number of times, 1 to 200; default 10.
    #[param(minimum = 1, maximum = 200)]
    count: Option<usize>,
}

/// Lists the next times of a routine's schedule.
///
/// Empty if the routine is disabled or has another trigger.
#[utoipa::path(
    get, path = "/api/routines/{id}/upcoming", operation_id = "upcoming_firings", tag = "routines",
    params(("id" = String, Path, description = "Routine id."), Params),
    responses(
        (status = 200, body = UpcomingFirings, description = "The times."),
        (status = 404, description = "No such routine."),
    )
)]
pub(in crate::public) async fn upcoming(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiPath(id): ApiPath<RoutineId>,
    ApiQuery(params): ApiQuery<Params>,
) -> Result<Json<UpcomingFirings>, ApiError> {
    let count = params.count.unwrap_or(DEFAULT_COUNT);
    if !(1..=MAX_COUNT).contains(&count) {
        return Err(ApiError::field("count", format!("must be from 1 to {MAX_COUNT}")));
    }
    let routine = api.store.routine(id).await?.ok_or_else(ApiError::not_found)?;
    if !who.may_see(&routine.user_id) {
        return Err(ApiError::not_owner());
    }
    Ok(Json(UpcomingFirings { items: api.routines.upcoming(&routine, count).await? }))
}
