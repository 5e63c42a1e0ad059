//! Usage of deleted jobs, which is kept by day and model, so periods begin and end with a day.

use chrono::{DateTime, Utc};
use sqlx::{QueryBuilder, Sqlite};

use super::{Period, SUMS, UsageFilter, of_user};

/// The rows of deleted jobs' model calls.
const OF_DELETED_CALLS: &str = "FROM deleted_usage AS c WHERE c.model <> ''";
/// The number of tool calls of deleted jobs.
const DELETED_TOOLS: &str = "COALESCE(SUM(c.tool_calls), 0) AS tools FROM deleted_usage AS c WHERE c.model = ''";

/// The day of a time, as it is stored.
pub(super) fn day_text(time: DateTime<Utc>) -> String {
    time.date_naive().to_string()
}

fn deleted_by_day(columns: &str, user: Option<&str>, period: Period) -> QueryBuilder<Sqlite> {
    let mut query = QueryBuilder::new(format!("SELECT c.day AS key, {columns} AND c.day >= "));
    query.push_bind(day_text(period.since)).push(" AND c.day < ").push_bind(day_text(period.until));
    of_user(&mut query, user);
    query.push(" GROUP BY key");
    query
}

fn deleted_since(columns: &str, user: Option<&str>, since: DateTime<Utc>) -> QueryBuilder<Sqlite> {
    let mut query = QueryBuilder::new(format!("SELECT {columns} AND c.day >= "));
    query.push_bind(day_text(since));
    of_user(&mut query, user);
    query
}

pub(super) fn calls_by_day(user: Option<&str>, period: Period) -> QueryBuilder<Sqlite> {
    deleted_by_day(&format!("{SUMS} {OF_DELETED_CALLS}"), user, period)
}

pub(super) fn tools_by_day(user: Option<&str>, period: Period) -> QueryBuilder<Sqlite> {
    deleted_by_day(DELETED_TOOLS, user, period)
}

pub(super) fn calls_since(user: Option<&str>, since: DateTime<Utc>) -> QueryBuilder<Sqlite> {
    deleted_since(&format!("{SUMS} {OF_DELETED_CALLS}"), user, since)
}

pub(super) fn tools_since(user: Option<&str>, since: DateTime<Utc>) -> QueryBuilder<Sqlite> {
    deleted_since(DELETED_TOOLS, user, since)
}

pub(super) fn sums_by_model(filter: &UsageFilter, since: DateTime<Utc>) -> QueryBuilder<Sqlite> {
    let mut query = QueryBuilder::new(format!("SELECT c.model AS key, {SUMS} {OF_DELETED_CALLS} AND c.day >= "));
    query.push_bind(day_text(since));
    of_user(&mut query, filter.user.as_deref());
    if let Some(after) = &filter.after {
        query.push(" AND c.model > ").push_bind(after.clone());
    }
    query.push(" GROUP BY c.model ORDER BY c.model LIMIT ").push_bind(i64::from(filter.limit));
    query
}
