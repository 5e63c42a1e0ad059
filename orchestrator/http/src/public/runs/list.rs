//! `GET /api/runs`: lists runs of all routines.

use axum::{Json, extract::State};
use chrono::{DateTime, Utc};
use protocol::{Page, RoutineId, RoutineRun, RunId, RunStatus, TriggerType};
use serde::Deserialize;
use store::RunFilter;
use utoipa::IntoParams;

use crate::{
    extract::ApiQuery,
    problem::ApiError,
    public::{
        PublicApi,
        caller::{Caller, user_filter},
        cursor,
        id_part::id_part,
        name_list,
    },
};

/// Query parameters.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::public) struct Params {
    /// Only runs of this routine.
    #[param(value_type = Option<String>)]
    routine_id: Option<RoutineId>,
    /// Statuses, separated by commas.
    status: Option<String>,
    /// Types of triggers, separated by commas.
    trigger: Option<String>,
    /// Only runs that were recorded at or after this time.
    since: Option<DateTime<Utc>>,
    /// Only runs that were recorded before this time.
    until: Option<DateTime<Utc>>,
    /// Prefix or suffix of an id, at least 4 characters.
    id: Option<String>,
    /// Only runs of this user; admins only.
    user: Option<String>,
    /// Maximum number of items, 1 to 200; default 50.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<u32>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// Lists runs, newest first.
///
/// Also those of routines that were deleted. An admin sees those of all users.
#[utoipa::path(
    get, path = "/api/runs", operation_id = "list_runs", tag = "routines", params(Params),
    responses(
        (status = 200, body = Page<RoutineRun>, description = "A page."),
    )
)]
pub(in crate::public) async fn list(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiQuery(params): ApiQuery<Params>,
) -> Result<Json<Page<RoutineRun>>, ApiError> {
    let limit = cursor::limit(params.limit)?;
    let filter = RunFilter {
        user: user_filter(&who, params.user)?,
        routine: params.routine_id,
        statuses: name_list::parse("status", params.status.as_deref(), RunStatus::ALL, RunStatus::as_str)?,
        triggers: name_list::parse("trigger", params.trigger.as_deref(), TriggerType::ALL, TriggerType::as_str)?,
        id_part: params.id.as_deref().map(id_part).transpose()?,
        since: params.since,
        until: params.until,
        before: params.cursor.as_deref().map(cursor::read::<RunId>).transpose()?,
        limit,
    };
    let _permit = api.read_permit(&who).await?;
    let (items, has_more) = api.store.runs(&filter).await?;
    let next_cursor = items.last().filter(|_| has_more).map(|last| cursor::write(&last.id.to_string()));
    Ok(Json(Page { items, next_cursor }))
}
