//! What routines are: one, a page of them, their counts and their next times.

use axum::{
    Json,
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use chrono::{DateTime, NaiveTime, Utc};
use protocol::{
    Page, Routine, RoutineActionKind, RoutineId, RoutineStatus, RoutineSummary, TriggerType, UpcomingFirings,
    UpcomingOfRoutines,
};
use serde::Deserialize;
use store::RoutineFilter;
use utoipa::IntoParams;

use super::with_budget_use;
use crate::{
    problem::ApiError,
    public::{
        PublicApi,
        request::{ApiPath, ApiQuery, Caller, cursor, etag, filter, visible},
    },
};

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListParams {
    /// Statuses, separated by commas.
    status: Option<String>,
    /// Types of triggers, separated by commas.
    trigger: Option<String>,
    /// Types of actions, separated by commas.
    action: Option<String>,
    /// Only those that are enabled, or disabled.
    enabled: Option<bool>,
    /// Only the one with this name.
    name: Option<String>,
    /// Only those whose name or description contains this text.
    q: Option<String>,
    /// Prefix or suffix of an id, at least 4 characters.
    id: Option<String>,
    /// Only routines of this user; admins only.
    user: Option<String>,
    /// Maximum number of items, 1 to 200; default 50. A page also ends at 1 MiB, and one of a search (`q`) after a
    /// moment: then it may be short or empty, and `next_cursor` goes on.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<u32>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// Lists routines, newest first.
///
/// An admin sees those of all users.
#[utoipa::path(
    get, path = "/api/routines", operation_id = "list_routines", tag = "routines", params(ListParams),
    responses(
        (status = 200, body = Page<Routine>, description = "A page."),
        (status = 422, description = "A parameter is wrong, or a search over all users found nothing in the time it may take \
            (`query_too_broad`)."),
    )
)]
pub(super) async fn list(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiQuery(params): ApiQuery<ListParams>,
) -> Result<Json<Page<Routine>>, ApiError> {
    let limit = cursor::limit(params.limit)?;
    let filter = RoutineFilter {
        user: filter::user(&who, params.user, "list what belongs to other users")?,
        enabled: params.enabled,
        triggers: filter::names("trigger", params.trigger.as_deref(), TriggerType::ALL, TriggerType::as_str)?,
        actions: filter::names("action", params.action.as_deref(), RoutineActionKind::ALL, RoutineActionKind::as_str)?,
        statuses: filter::names("status", params.status.as_deref(), RoutineStatus::ALL, RoutineStatus::as_str)?,
        name: params.name,
        text: params.q.filter(|text| !text.is_empty()),
        id_part: params.id.as_deref().map(filter::id_part).transpose()?,
        before: params.cursor.as_deref().map(cursor::read::<RoutineId>).transpose()?,
        limit,
    };
    let _permit = api.list_permit(&who, filter.is_search()).await?;
    let (mut items, last) = api.store.routines(&filter).await?;
    api.store.set_current_budget_use(&mut items, api.clock.now()).await?;
    let next_cursor = last.map(|last| cursor::write(&last.to_string()));
    Ok(Json(Page { items, next_cursor }))
}

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
pub(super) async fn get(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiPath(id): ApiPath<RoutineId>,
) -> Result<Response, ApiError> {
    let routine: Routine = visible(&who, api.store.routine(id).await?, |routine| &routine.user_id)?;
    let routine = with_budget_use(&api, routine).await?;
    Ok(([(header::ETAG, etag(routine.rev)?)], Json(routine)).into_response())
}

/// Counts routines by status.
///
/// Of the caller's routines; for admins, of all.
#[utoipa::path(
    get, path = "/api/routines/summary", operation_id = "routine_summary", tag = "routines",
    responses(
        (status = 200, body = RoutineSummary, description = "The numbers."),
    )
)]
pub(super) async fn summary(
    State(api): State<PublicApi>,
    Caller(who): Caller,
) -> Result<Json<RoutineSummary>, ApiError> {
    let user = (!who.role.sees_all()).then_some(who.user.as_str());
    let midnight = api.clock.now().date_naive().and_time(NaiveTime::MIN).and_utc();
    let _permit = api.read_permit(&who).await?;
    Ok(Json(api.store.routine_summary(user, midnight).await?))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct UpcomingOfAllParams {
    /// Only firings before this time; at most, and by default, 8 days from now.
    until: Option<DateTime<Utc>>,
    /// Maximum number of items, 1 to 200; default 50.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<u32>,
    /// Only routines of this user; admins only.
    user: Option<String>,
}

/// Lists the next firings of all routines.
///
/// The soonest of the routines that are enabled and have a schedule, and the number of firings in each hour in UTC. `hours` counts
/// the 2,000 routines that fire the soonest, at most 500 with a cron schedule, for 100 ms; `left_out` is the number of the others. An
/// admin sees the routines of all users.
#[utoipa::path(
    get, path = "/api/routines/upcoming", operation_id = "upcoming_of_routines", tag = "routines", params(UpcomingOfAllParams),
    responses(
        (status = 200, body = UpcomingOfRoutines, description = "The firings."),
    )
)]
pub(super) async fn upcoming_of_all(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiQuery(params): ApiQuery<UpcomingOfAllParams>,
) -> Result<Json<UpcomingOfRoutines>, ApiError> {
    let limit = cursor::limit(params.limit)?;
    let user = filter::user(&who, params.user, "list what belongs to other users")?;
    let _permit = api.list_permit(&who, true).await?;
    Ok(Json(api.routines.upcoming_of_all(user.as_deref(), params.until, limit as usize).await?))
}

/// Times by default, and at most.
const DEFAULT_COUNT: usize = 10;
const MAX_COUNT: usize = 200;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct UpcomingParams {
    /// Number of times, 1 to 200; default 10.
    #[param(minimum = 1, maximum = 200)]
    count: Option<usize>,
}

/// Lists the next times of a routine's schedule.
///
/// Empty if the routine is disabled or has another trigger.
#[utoipa::path(
    get, path = "/api/routines/{id}/upcoming", operation_id = "upcoming_firings", tag = "routines",
    params(("id" = String, Path, description = "Routine id."), UpcomingParams),
    responses(
        (status = 200, body = UpcomingFirings, description = "The times."),
        (status = 404, description = "No such routine."),
    )
)]
pub(super) async fn upcoming(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiPath(id): ApiPath<RoutineId>,
    ApiQuery(params): ApiQuery<UpcomingParams>,
) -> Result<Json<UpcomingFirings>, ApiError> {
    let count = params.count.unwrap_or(DEFAULT_COUNT);
    if !(1..=MAX_COUNT).contains(&count) {
        return Err(ApiError::field("count", format!("must be from 1 to {MAX_COUNT}")));
    }
    let routine = visible(&who, api.store.routine(id).await?, |routine| &routine.user_id)?;
    Ok(Json(UpcomingFirings { items: api.routines.upcoming(&routine, count).await? }))
}
