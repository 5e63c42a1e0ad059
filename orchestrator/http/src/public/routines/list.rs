//! `GET /api/routines`: lists routines.

use axum::{Json, extract::State};
use protocol::{Page, Routine, RoutineActionKind, RoutineId, RoutineStatus, TriggerType};
use serde::Deserialize;
use store::RoutineFilter;
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
    /// Maximum number of items, 1 to 200; default 50.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<u32>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// Lists routines, newest first.
///
/// An admin sees those of all users.
#[utoipa::path(
    get, path = "/api/routines", operation_id = "list_routines", tag = "routines", params(Params),
    responses(
        (status = 200, body = Page<Routine>, description = "A page."),
    )
)]
pub(in crate::public) async fn list(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiQuery(params): ApiQuery<Params>,
) -> Result<Json<Page<Routine>>, ApiError> {
    let limit = cursor::limit(params.limit)?;
    let filter = RoutineFilter {
        user: user_filter(&who, params.user)?,
        enabled: params.enabled,
        triggers: name_list::parse("trigger", params.trigger.as_deref(), TriggerType::ALL, TriggerType::as_str)?,
        actions: name_list::parse(
            "action",
            params.action.as_deref(),
            RoutineActionKind::ALL,
            RoutineActionKind::as_str,
        )?,
        statuses: name_list::parse("status", params.status.as_deref(), RoutineStatus::ALL, RoutineStatus::as_str)?,
        name: params.name,
        text: params.q.filter(|text| !text.is_empty()),
        id_part: params.id.as_deref().map(id_part).transpose()?,
        before: params.cursor.as_deref().map(cursor::read::<RoutineId>).transpose()?,
        limit,
    };
    let _permit = api.read_permit(&who).await?;
    let (items, has_more) = api.store.routines(&filter).await?;
    let next_cursor = items.last().filter(|_| has_more).map(|last| cursor::write(&last.id.to_string()));
    Ok(Json(Page { items, next_cursor }))
}
