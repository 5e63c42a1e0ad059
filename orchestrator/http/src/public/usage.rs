//! `GET /api/usage`: token, cost and call totals by day, job or model.

use axum::{Json, extract::State};
use protocol::{ErrorCode, JobId, Page, UsageBy, UsageLine};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{PublicApi, caller::Caller, cursor};
use auth::Identity;
use store::{DayPage, UsageFilter, first_day_of_model_sums};

use crate::{extract::ApiQuery, problem::ApiError};

/// Query parameters.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Params {
    /// Group by `day` (default), `job` or `model`.
    #[serde(default)]
    #[param(inline)]
    by: UsageBy,
    /// Only usage of this user; admins only.
    user: Option<String>,
    /// Maximum number of items, 1 to 200; default 50. By day: the number of days a page covers, at most 92.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<u32>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// Sums up usage by day, job or model.
///
/// Of the caller's jobs; for admins, of all jobs. Sums by model cover the last 92 days.
#[utoipa::path(
    get, path = "/api/usage", operation_id = "get_usage", tag = "operation", params(Params),
    responses(
        (status = 200, body = Page<UsageLine>, description = "A page."),
    )
)]
pub(super) async fn usage(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiQuery(params): ApiQuery<Params>,
) -> Result<Json<Page<UsageLine>>, ApiError> {
    let limit = cursor::limit(params.limit)?;
    let after: Option<String> = params.cursor.as_deref().map(cursor::read).transpose()?;
    let user = whose(&who, params.user)?;
    let _permit = api.read_permit(&who).await?;
    if params.by == UsageBy::Day {
        return by_day(&api, user.as_deref(), after.as_deref(), limit).await;
    }
    if params.by == UsageBy::Job
        && let Some(after) = &after
    {
        after.parse::<JobId>().map_err(|_| cursor::invalid())?;
    }
    // One more, to know whether there is a next page.
    let filter = UsageFilter { user, after, limit: limit + 1 };
    let lines = match params.by {
        UsageBy::Model => {
            let since = first_day_of_model_sums(api.clock.now().date_naive());
            api.store.usage_by_model(&filter, since).await?
        }
        UsageBy::Day | UsageBy::Job => api.store.usage_by_job(&filter).await?,
    };
    Ok(Json(cursor::page(lines, limit, String::clone)))
}

/// A page covers `days` days, with or without usage on each.
async fn by_day(
    api: &PublicApi,
    user: Option<&str>,
    after: Option<&str>,
    days: u32,
) -> Result<Json<Page<UsageLine>>, ApiError> {
    let before = match after {
        Some(day) => day.parse().map_err(|_| cursor::invalid())?,
        // The page starts with today.
        None => api.clock.now().date_naive().succ_opt().ok_or_else(|| ApiError::internal("date out of range"))?,
    };
    let DayPage { lines, next } = api.store.usage_by_day(user, before, days).await?;
    Ok(Json(Page { items: lines, next_cursor: next.map(|day| cursor::write(&day.to_string())) }))
}

/// The user to filter by; `None` for all users.
fn whose(who: &Identity, asked: Option<String>) -> Result<Option<String>, ApiError> {
    match asked {
        Some(user) if user != who.user && !who.role.sees_all() => {
            Err(ApiError::new(ErrorCode::Forbidden, "only an admin can see the usage of other users"))
        }
        None if !who.role.sees_all() => Ok(Some(who.user.clone())),
        asked => Ok(asked),
    }
}
