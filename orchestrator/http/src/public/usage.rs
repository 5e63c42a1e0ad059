//! `/api/usage`: sums of what was used, by one group or two.

use axum::{Json, extract::State};
use chrono::{Datelike as _, Days, NaiveDate};
use domain::request::check_label_key;
use protocol::{Page, UsageGroup, UsageLine, UsageSort};
use serde::Deserialize;
use store::{DayPage, UsageQuery};
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    PublicApi,
    request::{ApiQuery, Caller, cursor, filter},
};
use crate::problem::ApiError;

/// Days of a period without a beginning: about the default retention.
const DEFAULT_DAYS: u64 = 92;
/// Maximum number of days that are summed up.
const MAX_DAYS: i64 = 366;

pub(super) fn routes() -> OpenApiRouter<PublicApi> {
    OpenApiRouter::new().routes(routes!(usage))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct UsageParams {
    /// Group by `day` (default), `job`, `model`, `user`, `routine` or `label:KEY`, or by two of them, separated by a
    /// comma, such as `day,model`. `job` stands alone, and `routine` and labels do not go together.
    by: Option<String>,
    /// Only usage of this user; admins only.
    user: Option<String>,
    /// Only usage on or after this day in UTC, such as `2030-01-31`; of jobs: those that were created then. Default: no
    /// limit by day or job alone, else 92 days before `until`.
    since: Option<String>,
    /// Only usage before this day in UTC. Default: today is the last day.
    until: Option<String>,
    /// `group` (default): in the order of the groups; `cost`: the dearest first, and of jobs only those with a cost.
    #[serde(default)]
    #[param(inline)]
    sort: UsageSort,
    /// Maximum number of items, 1 to 200; default 50. By day alone: the number of days a page covers, at most 92.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<u32>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// Sums up usage by day, job, model, user, routine or label.
///
/// Of the caller's work; for admins, of all. Days are those of UTC. Sums by routine have the usage of its lightweight
/// runs and of its jobs with their children, and sums by label that of the jobs with the label. Sums cover at most 366
/// days, and what is in them is kept as long as records of jobs; the usage of jobs is kept forever.
#[utoipa::path(
    get, path = "/api/usage", operation_id = "get_usage", tag = "operation", params(UsageParams),
    responses(
        (status = 200, body = Page<UsageLine>, description = "A page."),
        (status = 422, description = "A parameter is wrong, or a label has too many values in the period (`query_too_broad`)."),
    )
)]
async fn usage(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiQuery(params): ApiQuery<UsageParams>,
) -> Result<Json<Page<UsageLine>>, ApiError> {
    let limit = cursor::limit(params.limit)?;
    let groups = groups(params.by.as_deref())?;
    let (since, until) = (day("since", params.since.as_deref())?, day("until", params.until.as_deref())?);
    let user = filter::user(&who, params.user, "see the usage of other users")?;
    let in_order = params.sort == UsageSort::Group;
    let tomorrow = api.clock.now().date_naive().succ_opt().ok_or_else(|| ApiError::internal("date out of range"))?;
    if in_order && groups == [UsageGroup::Day] {
        let before: Option<NaiveDate> = params.cursor.as_deref().map(cursor::read).transpose()?;
        let before = before.or(until).unwrap_or(tomorrow).min(tomorrow);
        let _permit = api.list_permit(&who, user.is_none()).await?;
        let since = since.unwrap_or(NaiveDate::MIN);
        // A page covers `limit` days, with or without usage on each.
        let DayPage { lines, next } = api.store.usage_by_day(user.as_deref(), since, before, limit).await?;
        return Ok(Json(Page { items: lines, next_cursor: next.map(|day| cursor::write(&day.to_string())) }));
    }
    let (since, until) = if in_order && groups == [UsageGroup::Job] {
        (since.unwrap_or(NaiveDate::MIN), until.unwrap_or(NaiveDate::MAX))
    } else {
        period(since, until.unwrap_or(tomorrow))?
    };
    let after = params.cursor.as_deref().map(cursor::read).transpose()?;
    // One more, to know whether there is a next page.
    let query = UsageQuery { groups, user, since, until, sort: params.sort, after, limit: limit + 1 };
    if !query.has_valid_position() {
        return Err(cursor::invalid());
    }
    let _permit = api.list_permit(&who, query.is_search()).await?;
    Ok(Json(cursor::page(api.store.usage(&query).await?, limit, ToString::to_string)))
}

fn groups(asked: Option<&str>) -> Result<Vec<UsageGroup>, ApiError> {
    let Some(asked) = asked else { return Ok(vec![UsageGroup::Day]) };
    let groups = UsageGroup::parse_list(asked).map_err(|error| ApiError::field("by", error.to_string()))?;
    for group in &groups {
        if let UsageGroup::Label(key) = group {
            check_label_key(key).map_err(|rule| ApiError::field("by", rule))?;
        }
    }
    Ok(groups)
}

fn day(field: &str, asked: Option<&str>) -> Result<Option<NaiveDate>, ApiError> {
    let Some(asked) = asked else { return Ok(None) };
    // Others have no text that sorts as they do.
    let day = asked.parse().ok().filter(|day: &NaiveDate| (1..=9_999).contains(&day.year()));
    day.map(Some).ok_or_else(|| ApiError::field(field, "must be a day such as 2030-01-31"))
}

/// The period that is summed up.
fn period(since: Option<NaiveDate>, until: NaiveDate) -> Result<(NaiveDate, NaiveDate), ApiError> {
    let since = since.or_else(|| until.checked_sub_days(Days::new(DEFAULT_DAYS))).unwrap_or(until);
    if (until - since).num_days() > MAX_DAYS {
        return Err(ApiError::field("since", format!("must be at most {MAX_DAYS} days before until")));
    }
    Ok((since, until))
}
