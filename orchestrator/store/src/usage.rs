//! Usage totals by day, job or model. Days and models include the calls of chat threads.
//!
//! A job's totals are kept forever; days and models are limited by the retention of calls. Every statement starts from
//! an index: of one user's jobs, of the jobs that ran on the requested days, or of the usage columns of calls.

mod deleted;

use std::collections::{BTreeMap, btree_map::Entry};

use chrono::{DateTime, Days, NaiveDate, NaiveTime, TimeDelta, Utc};
use protocol::{JobId, Usage, UsageLine};
use sqlx::{FromRow, QueryBuilder, Sqlite};
use uuid::Uuid;

use super::{
    Store, StoreError,
    rows::{RowRef, count, dollars},
};

/// Maximum number of days of a page: about the default retention.
const MAX_DAYS_A_PAGE: u32 = 92;
/// Maximum delay of a call's record after its job's end: the longest call with its cancellation.
const LATE_CALLS: TimeDelta = TimeDelta::hours(1);

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
        let period = Period { since: midnight(first), until: midnight(before) };
        let calls: Vec<SumRow> = calls_by_day(user, period).build_query_as().fetch_all(&self.read).await?;
        let tools: Vec<(String, i64)> = tools_by_day(user, period).build_query_as().fetch_all(&self.read).await?;
        let mut lines: BTreeMap<String, UsageLine> = BTreeMap::new();
        let of_threads: Vec<SumRow> = thread_calls_by_day(user, period).build_query_as().fetch_all(&self.read).await?;
        let tools_of_threads: Vec<(String, i64)> =
            thread_tools_by_day(user, period).build_query_as().fetch_all(&self.read).await?;
        let of_deleted: Vec<SumRow> =
            deleted::calls_by_day(user, period).build_query_as().fetch_all(&self.read).await?;
        let tools_of_deleted: Vec<(String, i64)> =
            deleted::tools_by_day(user, period).build_query_as().fetch_all(&self.read).await?;
        for row in merged(merged(calls, of_threads).collect(), of_deleted) {
            lines.insert(row.key.clone(), row.totals.line(Some(0)));
        }
        for (day, tools) in tools.into_iter().chain(tools_of_threads).chain(tools_of_deleted) {
            let without_calls = || UsageLine { cost_usd: Some(0.0), ..UsageLine::default() };
            *lines.entry(day).or_insert_with(without_calls).tool_calls.get_or_insert(0) += count(tools);
        }
        // Usage before these days, of jobs that ran on them.
        let has_earlier = lines.remove(EARLIER).is_some();
        let row_ref = RowRef { table: "llm_calls", id: Uuid::nil() };
        let line = |(day, line): (String, UsageLine)| {
            let day = day.parse().map_err(|_| row_ref.invalid("at"))?;
            Ok(UsageLine { day: Some(day), ..line })
        };
        let lines: Vec<UsageLine> = lines.into_iter().rev().map(line).collect::<Result<_, StoreError>>()?;
        let is_more = has_earlier || self.has_usage_before(user, period.since).await?;
        Ok(DayPage { lines, next: is_more.then_some(first) })
    }

    /// Whether a job that ended before a day has retained calls, or a chat or a deleted job has usage before it.
    async fn has_usage_before(&self, user: Option<&str>, day: DateTime<Utc>) -> Result<bool, StoreError> {
        let mut query = QueryBuilder::<Sqlite>::new("SELECT 1 FROM deleted_usage WHERE day < ");
        query.push_bind(deleted::day_text(day));
        of_user(&mut query, user);
        query.push(" LIMIT 1");
        let found: Option<(i64,)> = query.build_query_as().fetch_optional(&self.read).await?;
        if found.is_some() {
            return Ok(true);
        }
        let time = earlier(day);
        let mut query = QueryBuilder::<Sqlite>::new(
            "SELECT 1 FROM jobs WHERE trimmed_at IS NULL AND finished_at IS NOT NULL AND finished_at < ",
        );
        query.push_bind(time);
        of_user(&mut query, user);
        query.push(" LIMIT 1");
        let found: Option<(i64,)> = query.build_query_as().fetch_optional(&self.read).await?;
        if found.is_some() {
            return Ok(true);
        }
        let mut query = QueryBuilder::<Sqlite>::new("SELECT 1 FROM thread_calls WHERE at < ");
        query.push_bind(time);
        of_user(&mut query, user);
        query.push(" LIMIT 1");
        let found: Option<(i64,)> = query.build_query_as().fetch_optional(&self.read).await?;
        Ok(found.is_some())
    }

    /// Total usage since a time.
    pub(super) async fn usage_since(&self, user: Option<&str>, since: DateTime<Utc>) -> Result<Usage, StoreError> {
        let mut totals: Totals = calls_since(user, since).build_query_as().fetch_one(&self.read).await?;
        totals.add(&thread_calls_since(user, since).build_query_as().fetch_one(&self.read).await?);
        totals.add(&deleted::calls_since(user, since).build_query_as().fetch_one(&self.read).await?);
        let of_deleted: i64 = deleted::tools_since(user, since).build_query_scalar().fetch_one(&self.read).await?;
        let tools: i64 = tools_since(user, since).build_query_scalar().fetch_one(&self.read).await?;
        let of_threads: i64 = thread_tools_since(user, since).build_query_scalar().fetch_one(&self.read).await?;
        Ok(Usage {
            input_tokens: count(totals.input),
            output_tokens: count(totals.output),
            cache_read_tokens: count(totals.cache_read),
            cache_write_tokens: count(totals.cache_write),
            cost_usd: totals.cost.map(dollars),
            llm_calls: count(totals.calls),
            tool_calls: count(tools) + count(of_threads) + count(of_deleted),
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
        let since = midnight(since);
        let rows: Vec<SumRow> = sums_by_model(filter, since).build_query_as().fetch_all(&self.read).await?;
        let of_threads: Vec<SumRow> =
            thread_sums_by_model(filter, since).build_query_as().fetch_all(&self.read).await?;
        let line = |row: SumRow| (row.key.clone(), UsageLine { model: Some(row.key), ..row.totals.line(None) });
        // Each list has the first models by name, so the first of both together are among them.
        let of_deleted: Vec<SumRow> =
            deleted::sums_by_model(filter, since).build_query_as().fetch_all(&self.read).await?;
        let rows = merged(merged(rows, of_threads).collect(), of_deleted);
        Ok(rows.map(line).take(filter.limit as usize).collect())
    }

    /// Usage by job, newest first, each line with its key.
    pub async fn usage_by_job(&self, filter: &UsageFilter) -> Result<Vec<(String, UsageLine)>, StoreError> {
        let row_ref = RowRef { table: "jobs", id: Uuid::nil() };
        let after = filter.after.as_deref().map(str::parse::<JobId>).transpose().map_err(|_| row_ref.invalid("id"))?;
        let rows: Vec<JobSumRow> = sums_by_job(filter, after).build_query_as().fetch_all(&self.read).await?;
        let line = |row: JobSumRow| {
            let id = JobId::from_uuid(row.id);
            let line = row.totals.line(Some(row.tools));
            (id.to_string(), UsageLine { job_id: Some(id), user: Some(row.user_id), ..line })
        };
        Ok(rows.into_iter().map(line).collect())
    }
}

/// A period: from `since`, before `until`.
#[derive(Debug, Clone, Copy)]
struct Period {
    since: DateTime<Utc>,
    until: DateTime<Utc>,
}

/// The key of usage before the first day.
const EARLIER: &str = "";

/// The earliest end of jobs that may have calls since a time.
fn earlier(since: DateTime<Utc>) -> DateTime<Utc> {
    since.checked_sub_signed(LATE_CALLS).unwrap_or(since)
}

fn midnight(day: NaiveDate) -> DateTime<Utc> {
    day.and_time(NaiveTime::MIN).and_utc()
}

fn of_user(query: &mut QueryBuilder<Sqlite>, user: Option<&str>) {
    if let Some(user) = user {
        query.push(" AND user_id = ").push_bind(user.to_owned());
    }
}

/// Appends the jobs, as `r`, that may have calls since a time: open ones, and those that ended after it.
fn from_jobs(query: &mut QueryBuilder<Sqlite>, user: Option<&str>, since: DateTime<Utc>) {
    query.push(" FROM (SELECT id FROM jobs WHERE finished_at IS NULL");
    of_user(query, user);
    query.push(" UNION ALL SELECT id FROM jobs WHERE trimmed_at IS NULL AND finished_at IS NOT NULL");
    of_user(query, user);
    query.push(" AND finished_at >= ").push_bind(earlier(since));
    query.push(") AS r ");
}

/// Totals over calls `c`; the cost is NULL when any of them had no price.
const SUMS: &str = "COALESCE(SUM(c.input_tokens), 0) AS input, COALESCE(SUM(c.output_tokens), 0) AS output, \
    COALESCE(SUM(c.cache_read_tokens), 0) AS cache_read, COALESCE(SUM(c.cache_write_tokens), 0) AS cache_write, \
    CASE WHEN COUNT(c.cost_micro_usd) = COUNT(*) THEN COALESCE(SUM(c.cost_micro_usd), 0) END AS cost, COALESCE(SUM(c.tries), 0) AS calls";

/// Totals of a period by day; usage before it has the key [`EARLIER`]. SQLite keeps the table order of a cross join:
/// the jobs first.
fn by_day(sums: &str, table: &str, user: Option<&str>, period: Period) -> QueryBuilder<Sqlite> {
    let mut query = QueryBuilder::new("SELECT CASE WHEN c.at < ");
    query.push_bind(period.since).push(format!(" THEN '{EARLIER}' ELSE substr(c.at, 1, 10) END AS key, {sums}"));
    from_jobs(&mut query, user, period.since);
    query.push(format!("CROSS JOIN {table} AS c WHERE c.job_id = r.id AND c.at < ")).push_bind(period.until);
    query.push(" GROUP BY key");
    query
}

/// Rows of both lists, those with the same key added, ordered by key.
fn merged(rows: Vec<SumRow>, others: Vec<SumRow>) -> impl Iterator<Item = SumRow> {
    let mut by_key: BTreeMap<String, Totals> = rows.into_iter().map(|row| (row.key, row.totals)).collect();
    for SumRow { key, totals } in others {
        match by_key.entry(key) {
            Entry::Occupied(mut known) => known.get_mut().add(&totals),
            Entry::Vacant(new) => {
                new.insert(totals);
            }
        }
    }
    by_key.into_iter().map(|(key, totals)| SumRow { key, totals })
}

fn thread_calls_by_day(user: Option<&str>, period: Period) -> QueryBuilder<Sqlite> {
    threads_by_day(SUMS, "thread_calls", user, period)
}

fn thread_tools_by_day(user: Option<&str>, period: Period) -> QueryBuilder<Sqlite> {
    threads_by_day("COUNT(*) AS tools", "thread_actions", user, period)
}

fn threads_by_day(columns: &str, table: &str, user: Option<&str>, period: Period) -> QueryBuilder<Sqlite> {
    let mut query =
        QueryBuilder::new(format!("SELECT substr(c.at, 1, 10) AS key, {columns} FROM {table} AS c WHERE c.at >= "));
    query.push_bind(period.since).push(" AND c.at < ").push_bind(period.until);
    of_user(&mut query, user);
    query.push(" GROUP BY key");
    query
}

fn thread_calls_since(user: Option<&str>, since: DateTime<Utc>) -> QueryBuilder<Sqlite> {
    threads_since(SUMS, "thread_calls", user, since)
}

fn thread_tools_since(user: Option<&str>, since: DateTime<Utc>) -> QueryBuilder<Sqlite> {
    threads_since("COUNT(*)", "thread_actions", user, since)
}

fn threads_since(columns: &str, table: &str, user: Option<&str>, since: DateTime<Utc>) -> QueryBuilder<Sqlite> {
    let mut query = QueryBuilder::new(format!("SELECT {columns} FROM {table} AS c WHERE c.at >= "));
    query.push_bind(since);
    of_user(&mut query, user);
    query
}

fn thread_sums_by_model(filter: &UsageFilter, since: DateTime<Utc>) -> QueryBuilder<Sqlite> {
    let mut query = QueryBuilder::new(format!("SELECT c.model AS key, {SUMS} FROM thread_calls AS c WHERE c.at >= "));
    query.push_bind(since);
    of_user(&mut query, filter.user.as_deref());
    if let Some(after) = &filter.after {
        query.push(" AND c.model > ").push_bind(after.clone());
    }
    query.push(" GROUP BY c.model ORDER BY c.model LIMIT ").push_bind(i64::from(filter.limit));
    query
}

fn calls_by_day(user: Option<&str>, period: Period) -> QueryBuilder<Sqlite> {
    by_day(SUMS, "llm_calls", user, period)
}

fn tools_by_day(user: Option<&str>, period: Period) -> QueryBuilder<Sqlite> {
    by_day("COUNT(*) AS tools", "job_actions", user, period)
}

fn calls_since(user: Option<&str>, since: DateTime<Utc>) -> QueryBuilder<Sqlite> {
    let mut query = QueryBuilder::new(format!("SELECT {SUMS}"));
    from_jobs(&mut query, user, since);
    query.push("CROSS JOIN llm_calls AS c WHERE c.job_id = r.id AND c.at >= ").push_bind(since);
    query
}

fn tools_since(user: Option<&str>, since: DateTime<Utc>) -> QueryBuilder<Sqlite> {
    let mut query = QueryBuilder::new("SELECT COUNT(*)");
    from_jobs(&mut query, user, since);
    query.push("CROSS JOIN job_actions AS c WHERE c.job_id = r.id AND c.at >= ").push_bind(since);
    query
}

fn sums_by_model(filter: &UsageFilter, since: DateTime<Utc>) -> QueryBuilder<Sqlite> {
    let mut query = QueryBuilder::new(format!("SELECT c.model AS key, {SUMS}"));
    from_jobs(&mut query, filter.user.as_deref(), since);
    query.push("CROSS JOIN llm_calls AS c WHERE c.job_id = r.id AND c.at >= ").push_bind(since);
    if let Some(after) = &filter.after {
        query.push(" AND c.model > ").push_bind(after.clone());
    }
    query.push(" GROUP BY c.model ORDER BY c.model LIMIT ").push_bind(i64::from(filter.limit));
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
    tools: i64,
    #[sqlx(flatten)]
    totals: Totals,
}

impl Totals {
    /// Adds other totals. The cost is known if both are.
    fn add(&mut self, other: &Self) {
        self.input += other.input;
        self.output += other.output;
        self.cache_read += other.cache_read;
        self.cache_write += other.cache_write;
        self.cost = self.cost.zip(other.cost).map(|(cost, others)| cost + others);
        self.calls += other.calls;
    }

    fn line(&self, tools: Option<i64>) -> UsageLine {
        UsageLine {
            input_tokens: count(self.input),
            output_tokens: count(self.output),
            cache_read_tokens: count(self.cache_read),
            cache_write_tokens: count(self.cache_write),
            cost_usd: self.cost.map(dollars),
            llm_calls: count(self.calls),
            tool_calls: tools.map(count),
            ..UsageLine::default()
        }
    }
}

#[cfg(test)]
mod tests;
