//! Usage totals by day, and the total since a day. They include the calls of chat threads and runs, and what deleted jobs
//! used.
//!
//! Read from `daily_usage`, in which triggers count each call; limited by the retention of calls. `by_group` has the sums
//! by everything else, `by_job` those of jobs, which are kept forever.

mod by_group;
mod by_job;

use chrono::{Datelike as _, Days, NaiveDate};
use protocol::{Usage, UsageLine};
use sqlx::{FromRow, QueryBuilder, Sqlite};
use uuid::Uuid;

pub(crate) use by_group::{COUNT_MODEL_CALLS, COUNT_TOOL_CALLS};
pub use by_group::{UsagePosition, UsageQuery};

use crate::{
    Store, StoreError,
    sqlite::{
        readers::Readers,
        rows::{RowRef, count, dollars},
    },
};

/// Maximum number of days of a page: about the default retention.
const MAX_DAYS_A_PAGE: u32 = 92;

/// A page of usage by day, newest first.
#[derive(Debug, Clone, Default)]
pub struct DayPage {
    pub lines: Vec<UsageLine>,
    /// The first day of the page, if there is usage before it.
    pub next: Option<NaiveDate>,
}

impl Store {
    /// Usage of the `days` days before `before`, at most `MAX_DAYS_A_PAGE`, and none before `since`.
    pub async fn usage_by_day(
        &self,
        user: Option<&str>,
        since: NaiveDate,
        before: NaiveDate,
        days: u32,
    ) -> Result<DayPage, StoreError> {
        let days = days.min(MAX_DAYS_A_PAGE);
        let first = before.checked_sub_days(Days::new(days.into())).unwrap_or(NaiveDate::MIN).max(since);
        let readers = self.readers_of_sums(user.is_none());
        let rows: Vec<SumRow> = sums_by_day(user, first, before).build_query_as().fetch_all(readers).await?;
        let row_ref = RowRef { table: "daily_usage", id: Uuid::nil() };
        let line = |row: SumRow| {
            let day = row.key.parse().map_err(|_| row_ref.invalid("day"))?;
            Ok(UsageLine { day: Some(day), ..row.totals.line() })
        };
        let lines = rows.into_iter().map(line).collect::<Result<_, StoreError>>()?;
        let next = self.has_usage_between(user, since, first).await?.then_some(first);
        Ok(DayPage { lines, next })
    }

    const fn readers_of_sums(&self, is_search: bool) -> &Readers {
        if is_search { &self.search } else { &self.read }
    }

    async fn has_usage_between(
        &self,
        user: Option<&str>,
        since: NaiveDate,
        until: NaiveDate,
    ) -> Result<bool, StoreError> {
        let mut query = QueryBuilder::<Sqlite>::new("SELECT EXISTS (SELECT 1");
        push_days(&mut query, user, since, Some(until));
        query.push(")");
        Ok(query.build_query_scalar().fetch_one(self.readers_of_sums(user.is_none())).await?)
    }

    /// Total usage since a day.
    pub(crate) async fn usage_since(&self, user: Option<&str>, since: NaiveDate) -> Result<Usage, StoreError> {
        let totals: Totals = sums_since(user, since).build_query_as().fetch_one(&self.read).await?;
        Ok(Usage {
            input_tokens: count(totals.input),
            output_tokens: count(totals.output),
            cache_read_tokens: count(totals.cache_read),
            cache_write_tokens: count(totals.cache_write),
            cost_usd: totals.cost.map(dollars),
            llm_calls: count(totals.calls),
            tool_calls: count(totals.tools),
            // An iteration is one model call.
            iterations: count(totals.calls),
        })
    }
}

/// The key of a day. Years before the first one have no key that sorts before it.
fn day_text(day: NaiveDate) -> String {
    if day.year() < 1 { String::new() } else { day.to_string() }
}

fn of_user(query: &mut QueryBuilder<Sqlite>, user: Option<&str>) {
    if let Some(user) = user {
        query.push(" AND user_id = ").push_bind(user.to_owned());
    }
}

/// Totals over rows of `daily_usage`; the cost is NULL when any call had no price.
const SUMS: &str = "COALESCE(SUM(input_tokens), 0) AS input, COALESCE(SUM(output_tokens), 0) AS output, \
    COALESCE(SUM(cache_read_tokens), 0) AS cache_read, COALESCE(SUM(cache_write_tokens), 0) AS cache_write, \
    CASE WHEN COALESCE(SUM(unpriced_calls), 0) = 0 THEN COALESCE(SUM(cost_micro_usd), 0) END AS cost, \
    COALESCE(SUM(tries), 0) AS calls, COALESCE(SUM(tool_calls), 0) AS tools";

/// Appends FROM and the conditions for the days from `since` until before `until`. A row of a day that has no more
/// calls is left out.
fn push_days(query: &mut QueryBuilder<Sqlite>, user: Option<&str>, since: NaiveDate, until: Option<NaiveDate>) {
    query.push(" FROM daily_usage WHERE (tries > 0 OR tool_calls > 0) AND day >= ").push_bind(day_text(since));
    if let Some(until) = until {
        query.push(" AND day < ").push_bind(day_text(until));
    }
    of_user(query, user);
}

/// Totals of a period by day, newest first.
fn sums_by_day(user: Option<&str>, since: NaiveDate, until: NaiveDate) -> QueryBuilder<Sqlite> {
    let mut query = QueryBuilder::new(format!("SELECT day AS key, {SUMS}"));
    push_days(&mut query, user, since, Some(until));
    query.push(" GROUP BY day ORDER BY day DESC");
    query
}

fn sums_since(user: Option<&str>, since: NaiveDate) -> QueryBuilder<Sqlite> {
    let mut query = QueryBuilder::new(format!("SELECT {SUMS}"));
    push_days(&mut query, user, since, None);
    query
}

#[derive(FromRow)]
struct Totals {
    input: i64,
    output: i64,
    cache_read: i64,
    cache_write: i64,
    cost: Option<i64>,
    calls: i64,
    tools: i64,
}

#[derive(FromRow)]
struct SumRow {
    key: String,
    #[sqlx(flatten)]
    totals: Totals,
}

impl Totals {
    fn line(&self) -> UsageLine {
        UsageLine {
            input_tokens: count(self.input),
            output_tokens: count(self.output),
            cache_read_tokens: count(self.cache_read),
            cache_write_tokens: count(self.cache_write),
            cost_usd: self.cost.map(dollars),
            llm_calls: count(self.calls),
            tool_calls: Some(count(self.tools)),
            ..UsageLine::default()
        }
    }
}

#[cfg(test)]
mod tests;
