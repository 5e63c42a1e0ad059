//! `GET /api/routines/summary`: numbers of routines.

use axum::{Json, extract::State};
use chrono::NaiveTime;
use protocol::RoutineSummary;

use crate::{
    problem::ApiError,
    public::{PublicApi, caller::Caller},
};

/// Counts routines by status.
///
/// Of the caller's routines; for admins, of all.
#[utoipa::path(
    get, path = "/api/routines/summary", operation_id = "routine_summary", tag = "routines",
    responses(
        (status = 200, body = RoutineSummary, description = "The numbers."),
    )
)]
pub(in crate::public) async fn summary(
    State(api): State<PublicApi>,
    Caller(who): Caller,
) -> Result<Json<RoutineSummary>, ApiError> {
    let user = (!who.role.sees_all()).then_some(who.user.as_str());
    let midnight = api.clock.now().date_naive().and_time(NaiveTime::MIN).and_utc();
    let _permit = api.read_permit(&who).await?;
    Ok(Json(api.store.routine_summary(user, midnight).await?))
}
