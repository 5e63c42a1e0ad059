//! `GET /api/jobs/summary`: job counts by state, and usage of the day.

use axum::{Json, extract::State};
use chrono::{NaiveTime, Utc};
use protocol::JobCounts;

use super::{PublicApi, caller::Caller};
use crate::problem::ApiError;

/// Counts jobs by state.
///
/// With the usage since midnight UTC. Of the caller's jobs; for admins, of all jobs.
#[utoipa::path(
    get, path = "/api/jobs/summary", operation_id = "get_job_summary", tag = "jobs",
    responses((status = 200, body = JobCounts, description = "Counts and usage since midnight UTC."))
)]
pub(super) async fn summary(State(api): State<PublicApi>, Caller(who): Caller) -> Result<Json<JobCounts>, ApiError> {
    let midnight = api.clock.now().date_naive().and_time(NaiveTime::MIN).and_local_timezone(Utc);
    let user = (!who.role.sees_all()).then_some(who.user.as_str());
    let midnight = midnight.single().unwrap_or_else(|| api.clock.now());
    let _permit = api.read_permit(&who).await?;
    Ok(Json(api.store.summary(user, midnight).await?))
}
