//! `GET /api/runs/histogram`: the numbers of runs by hour and status.

use axum::{Json, extract::State};
use chrono::{DateTime, Utc};
use protocol::{RoutineId, RunHistogram, RunHour};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::{
    problem::ApiError,
    public::{
        PublicApi,
        request::{ApiQuery, Caller, filter},
    },
};

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct HistogramParams {
    /// The first hour is that of this time; default 24 hours before `until`, and at most 8 days.
    since: Option<DateTime<Utc>>,
    /// The last hour is that before this time; default now.
    until: Option<DateTime<Utc>>,
    /// Only runs of this routine.
    #[param(value_type = Option<String>)]
    routine_id: Option<RoutineId>,
    /// Only runs of this user; admins only.
    user: Option<String>,
}

/// Counts runs by hour and status.
///
/// By the hour in UTC in which they were recorded, and the status that they have now: the entries of `GET /api/runs`, so that
/// firings that are one entry count once. Hours are counted as a whole. An admin sees those of all users.
#[utoipa::path(
    get, path = "/api/runs/histogram", operation_id = "get_run_histogram", tag = "routines", params(HistogramParams),
    responses(
        (status = 200, body = RunHistogram, description = "The hours with runs."),
        (status = 422, description = "A parameter is wrong, or there are more than 200,000 runs to count (`query_too_broad`)."),
    )
)]
pub(super) async fn histogram(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiQuery(params): ApiQuery<HistogramParams>,
) -> Result<Json<RunHistogram>, ApiError> {
    let (user, times) = ((params.user, "list what belongs to other users"), (params.since, params.until));
    let filter = filter::by_hour(&who, user, times, api.clock.now())?;
    let _permit = api.list_permit(&who, true).await?;
    let hours = api.store.run_histogram(&filter, params.routine_id).await?;
    let items = hours.into_iter().map(|(hour, statuses)| RunHour { hour, statuses }).collect();
    Ok(Json(RunHistogram { items }))
}
