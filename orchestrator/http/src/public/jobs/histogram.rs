//! `GET /api/jobs/histogram`: the numbers of jobs by hour and state.

use axum::{Json, extract::State};
use chrono::{DateTime, Utc};
use protocol::{JobHistogram, JobHour, JobState};
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
    /// Only jobs of this user; admins only.
    user: Option<String>,
    /// A state, or several separated by commas.
    state: Option<String>,
}

/// Counts jobs by hour and state.
///
/// By the hour in UTC in which they were created, and the state that they have now. Hours are counted as a whole. An admin sees
/// the jobs of all users.
#[utoipa::path(
    get, path = "/api/jobs/histogram", operation_id = "get_job_histogram", tag = "jobs", params(HistogramParams),
    responses(
        (status = 200, body = JobHistogram, description = "The hours with jobs."),
        (status = 422, description = "A parameter is wrong, or there are more than 200,000 jobs to count (`query_too_broad`)."),
    )
)]
pub(super) async fn histogram(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiQuery(params): ApiQuery<HistogramParams>,
) -> Result<Json<JobHistogram>, ApiError> {
    let (user, times) = ((params.user, "list the jobs of other users"), (params.since, params.until));
    let filter = filter::by_hour(&who, user, times, api.clock.now())?;
    let states = filter::names("state", params.state.as_deref(), JobState::ALL, JobState::as_str)?;
    let _permit = api.list_permit(&who, true).await?;
    let hours = api.store.job_histogram(&filter, &states).await?;
    Ok(Json(JobHistogram { items: hours.into_iter().map(|(hour, states)| JobHour { hour, states }).collect() }))
}
