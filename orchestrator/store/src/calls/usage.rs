//! Usage totals by day, job or model. Days and models include the calls of chat threads and runs, and what deleted jobs
//! used.
//!
//! Days and models are read from `daily_usage`, in which triggers count each call, and are limited by the retention of
//! calls. A job's totals are kept forever.

use chrono::{Datelike as _, Days, NaiveDate};
use protocol::{JobId, Usage, UsageLine};
use sqlx::{FromRow, QueryBuilder, Sqlite};
use uuid::Uuid;

use crate::{
    Store, StoreError,
    sqlite::{
        readers::Readers,
        rows::{RowRef, count, dollars},
    },
};

/// Maximum number of days of a page: about the default retention.
const MAX_DAYS_A_PAGE: u32 = 92;

/// Filter and page of usage lines.
#[derive(Debug, Clone, Default)]
pub struct UsageFilter {
    /// Only usage of this user.
    pub user: Option<String>,
    /// Only lines after this key.
    pub after: Option<String>,
    /// Maximum number of lines.
    pub limit: u32,
}

/// The first day of sums by model: these sums cover as many days as a page of days does.
pub fn first_day_of_model_sums(today: NaiveDate) -> NaiveDate {
    today.checked_sub_days(Days::new(u64::from(MAX_DAYS_A_PAGE) - 1)).unwrap_or(NaiveDate::MIN)
}

/// A page of usage by day, newest first.
#[derive(Debug, Clone, Default)]
pub struct DayPage {
    pub lines: Vec<UsageLine>,
    /// The first day of the page, if there is usage before it.
    pub next: Option<NaiveDate>,
}

impl Store {
    /// Usage of the `days` days before `before`, at most `MAX_DAYS_A_PAGE`.
    pub async fn usage_by_day(&self, user: Option<&str>, before: NaiveDate, days: u32) -> Result<DayPage, StoreError> {
        let days = days.min(MAX_DAYS_A_PAGE);
        let first = before.checked_sub_days(Days::new(days.into())).unwrap_or(NaiveDate::MIN);
        let rows: Vec<SumRow> =
            sums_by_day(user, first, before).build_query_as().fetch_all(self.readers_of_sums(user)).await?;
        let row_ref = RowRef { table: "daily_usage", id: Uuid::nil() };
        let line = |row: SumRow| {
            let day = row.key.parse().map_err(|_| row_ref.invalid("day"))?;
            Ok(UsageLine { day: Some(day), ..row.totals.line() })
        };
        let lines = rows.into_iter().map(line).collect::<Result<_, StoreError>>()?;
        let next = self.has_usage_before(user, first).await?.then_some(first);
        Ok(DayPage { lines, next })
    }

    /// Sums over all users read as many rows as a search.
    const fn readers_of_sums(&self, user: Option<&str>) -> &Readers {
        if user.is_some() { &self.read } else { &self.search }
    }

    async fn has_usage_before(&self, user: Option<&str>, day: NaiveDate) -> Result<bool, StoreError> {
        let mut query = QueryBuilder::<Sqlite>::new("SELECT EXISTS (SELECT 1");
        push_days(&mut query, user, NaiveDate::MIN, Some(day));
        query.push(")");
        Ok(query.build_query_scalar().fetch_one(self.readers_of_sums(user)).await?)
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

    /// Usage by model since a day, ordered by name, each line with its key.
    pub async fn usage_by_model(
        &self,
        filter: &UsageFilter,
        since: NaiveDate,
    ) -> Result<Vec<(String, UsageLine)>, StoreError> {
        let rows: Vec<SumRow> = sums_by_model(filter, since)
            .build_query_as()
            .fetch_all(self.readers_of_sums(filter.user.as_deref()))
            .await?;
        // A tool call is one of no model.
        let line = |SumRow { key, totals }: SumRow| {
            (key.clone(), UsageLine { model: Some(key), tool_calls: None, ..totals.line() })
        };
        Ok(rows.into_iter().map(line).collect())
    }

    /// Usage by job, newest first, each line with its key.
    pub async fn usage_by_job(&self, filter: &UsageFilter) -> Result<Vec<(String, UsageLine)>, StoreError> {
        let row_ref = RowRef { table: "jobs", id: Uuid::nil() };
        let after = filter.after.as_deref().map(str::parse::<JobId>).transpose().map_err(|_| row_ref.invalid("id"))?;
        let rows: Vec<JobSumRow> = sums_by_job(filter, after).build_query_as().fetch_all(&self.read).await?;
        let line = |row: JobSumRow| {
            let id = JobId::from_uuid(row.id);
            (id.to_string(), UsageLine { job_id: Some(id), user: Some(row.user_id), ..row.totals.line() })
        };
        Ok(rows.into_iter().map(line).collect())
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

fn sums_by_model(filter: &UsageFilter, since: NaiveDate) -> QueryBuilder<Sqlite> {
    let mut query = QueryBuilder::new(format!("SELECT model AS key, {SUMS}"));
    push_days(&mut query, filter.user.as_deref(), since, None);
    // A tool call is one of no model.
    query.push(" AND model <> ''");
    if let Some(after) = &filter.after {
        query.push(" AND model > ").push_bind(after.clone());
    }
    query.push(" GROUP BY model ORDER BY model LIMIT ").push_bind(i64::from(filter.limit));
    query
}

fn sums_by_job(filter: &UsageFilter, after: Option<JobId>) -> QueryBuilder<Sqlite> {
    let mut query = QueryBuilder::new(
        "SELECT id, user_id, input_tokens AS input, output_tokens AS output, cache_read_tokens AS cache_read, \
         cache_write_tokens AS cache_write, CASE WHEN NOT has_unpriced_calls THEN cost_micro_usd END AS cost, \
         llm_calls AS calls, tool_calls AS tools \
         FROM jobs WHERE 1 = 1",
    );
    of_user(&mut query, filter.user.as_deref());
    if let Some(after) = after {
        query.push(" AND id < ").push_bind(after);
    }
    query.push(" ORDER BY id DESC LIMIT ").push_bind(i64::from(filter.limit));
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

#[derive(FromRow)]
struct JobSumRow {
    id: Uuid,
    user_id: String,
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
