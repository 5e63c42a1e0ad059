//! Usage totals by day, job or model. Days and models include the calls of chat threads and runs, and what deleted jobs
//! used.
//!
//! A job's totals are kept forever; days and models are limited by the retention of calls. Every statement starts from
//! an index: of one user's jobs, of the jobs that ran on the requested days, of the calls of threads and runs by time,
//! or of the usage of deleted jobs by day.

use chrono::{DateTime, Days, NaiveDate, NaiveTime, TimeDelta, Utc};
use protocol::{JobId, Usage, UsageLine};
use sqlx::{FromRow, QueryBuilder, Sqlite};
use uuid::Uuid;

use crate::{
    Store, StoreError,
    sqlite::rows::{RowRef, count, dollars},
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
        let since = midnight(first);
        let mut query = sums_by_day(user, since, midnight(before));
        let mut rows: Vec<SumRow> = query.build_query_as().fetch_all(&self.read).await?;
        // Usage before these days, of jobs that ran on them. It is the last row, since its key sorts first.
        let has_earlier = rows.pop_if(|row| row.key == EARLIER).is_some();
        let row_ref = RowRef { table: "model_calls", id: Uuid::nil() };
        let line = |row: SumRow| {
            let day = row.key.parse().map_err(|_| row_ref.invalid("at"))?;
            Ok(UsageLine { day: Some(day), ..row.totals.line() })
        };
        let lines: Vec<UsageLine> = rows.into_iter().map(line).collect::<Result<_, StoreError>>()?;
        let is_more = has_earlier || self.has_usage_before(user, since).await?;
        Ok(DayPage { lines, next: is_more.then_some(first) })
    }

    /// Whether a job that ended before a day has retained calls, or a thread, a run or a deleted job has usage before
    /// it.
    async fn has_usage_before(&self, user: Option<&str>, day: DateTime<Utc>) -> Result<bool, StoreError> {
        let mut query = QueryBuilder::<Sqlite>::new("SELECT EXISTS (SELECT 1 FROM deleted_usage WHERE day < ");
        query.push_bind(day_text(day));
        of_user(&mut query, user);
        query.push(
            ") OR EXISTS (SELECT 1 FROM jobs WHERE trimmed_at IS NULL AND finished_at IS NOT NULL AND finished_at < ",
        );
        query.push_bind(earlier(day));
        of_user(&mut query, user);
        query.push(") OR EXISTS (SELECT 1 FROM model_calls WHERE kind <> 'job' AND at < ").push_bind(earlier(day));
        of_user(&mut query, user);
        query.push(")");
        Ok(query.build_query_scalar().fetch_one(&self.read).await?)
    }

    /// Total usage since a time.
    pub(crate) async fn usage_since(&self, user: Option<&str>, since: DateTime<Utc>) -> Result<Usage, StoreError> {
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
        let rows: Vec<SumRow> = sums_by_model(filter, midnight(since)).build_query_as().fetch_all(&self.read).await?;
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

/// The key of usage before the first day.
const EARLIER: &str = "";

/// The earliest end of jobs that may have calls since a time.
fn earlier(since: DateTime<Utc>) -> DateTime<Utc> {
    since.checked_sub_signed(LATE_CALLS).unwrap_or(since)
}

fn midnight(day: NaiveDate) -> DateTime<Utc> {
    day.and_time(NaiveTime::MIN).and_utc()
}

/// The day of a time, as the usage of deleted jobs has it.
fn day_text(time: DateTime<Utc>) -> String {
    time.date_naive().to_string()
}

fn of_user(query: &mut QueryBuilder<Sqlite>, user: Option<&str>) {
    if let Some(user) = user {
        query.push(" AND user_id = ").push_bind(user.to_owned());
    }
}

/// Totals over [`Calls`]; the cost is NULL when any of them had no price.
const SUMS: &str = "COALESCE(SUM(input_tokens), 0) AS input, COALESCE(SUM(output_tokens), 0) AS output, \
    COALESCE(SUM(cache_read_tokens), 0) AS cache_read, COALESCE(SUM(cache_write_tokens), 0) AS cache_write, \
    CASE WHEN COUNT(cost_micro_usd) = COUNT(*) THEN COALESCE(SUM(cost_micro_usd), 0) END AS cost, \
    COALESCE(SUM(tries), 0) AS calls, COALESCE(SUM(tools), 0) AS tools";

/// What is summed up of a row of each table.
const OF_MODEL_CALL: &str = "c.at, c.model, c.input_tokens, c.output_tokens, c.cache_read_tokens, c.cache_write_tokens, \
    c.cost_micro_usd, c.tries, 0 AS tools FROM ";
const OF_TOOL_CALL: &str = "c.at, '', 0, 0, 0, 0, 0, 0, 1 FROM ";
const OF_DELETED: &str = "day, model, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, \
    cost_micro_usd, tries, tool_calls FROM deleted_usage WHERE day >= ";

/// The calls of a period.
#[derive(Clone, Copy)]
struct Calls<'a> {
    user: Option<&'a str>,
    since: DateTime<Utc>,
    /// Before this time, if there is one. The calls of jobs then begin before the period, too: they tell whether there
    /// is usage before it.
    until: Option<DateTime<Utc>>,
    /// Whether tool calls are among them.
    tools: bool,
}

impl Calls<'_> {
    /// Appends the calls as rows of FROM.
    fn push(&self, query: &mut QueryBuilder<Sqlite>) {
        query.push(" FROM (SELECT ");
        self.push_table(query, OF_MODEL_CALL, "model_calls");
        if self.tools {
            query.push(" UNION ALL SELECT ");
            self.push_table(query, OF_TOOL_CALL, "tool_calls");
        }
        query.push(" UNION ALL SELECT ").push(OF_DELETED).push_bind(day_text(self.since));
        if let Some(until) = self.until {
            query.push(" AND day < ").push_bind(day_text(until));
        }
        if !self.tools {
            query.push(" AND model <> ''");
        }
        of_user(query, self.user);
        query.push(") AS calls");
    }

    /// The calls of one table: of the jobs that may have calls since then, which are open or ended after it, and of
    /// threads and runs. SQLite keeps the table order of a cross join: the jobs first.
    fn push_table(&self, query: &mut QueryBuilder<Sqlite>, columns: &str, table: &str) {
        query.push(columns).push("(SELECT id FROM jobs WHERE finished_at IS NULL");
        of_user(query, self.user);
        query.push(" UNION ALL SELECT id FROM jobs WHERE trimmed_at IS NULL AND finished_at IS NOT NULL");
        of_user(query, self.user);
        query.push(" AND finished_at >= ").push_bind(earlier(self.since));
        query.push(format!(") AS r CROSS JOIN {table} AS c WHERE c.work_id = r.id AND c.at "));
        match self.until {
            Some(until) => query.push("< ").push_bind(until),
            None => query.push(">= ").push_bind(self.since),
        };
        query.push(format!(" UNION ALL SELECT {columns}{table} AS c WHERE c.kind <> 'job' AND c.at >= "));
        query.push_bind(self.since);
        if let Some(until) = self.until {
            query.push(" AND c.at < ").push_bind(until);
        }
        of_user(query, self.user);
    }
}

/// Totals of a period by day, newest first; usage before it has the key [`EARLIER`].
fn sums_by_day(user: Option<&str>, since: DateTime<Utc>, until: DateTime<Utc>) -> QueryBuilder<Sqlite> {
    let mut query = QueryBuilder::new("SELECT CASE WHEN at < ");
    query.push_bind(day_text(since)).push(format!(" THEN '{EARLIER}' ELSE substr(at, 1, 10) END AS key, {SUMS}"));
    Calls { user, since, until: Some(until), tools: true }.push(&mut query);
    query.push(" GROUP BY key ORDER BY key DESC");
    query
}

fn sums_since(user: Option<&str>, since: DateTime<Utc>) -> QueryBuilder<Sqlite> {
    let mut query = QueryBuilder::new(format!("SELECT {SUMS}"));
    Calls { user, since, until: None, tools: true }.push(&mut query);
    query
}

fn sums_by_model(filter: &UsageFilter, since: DateTime<Utc>) -> QueryBuilder<Sqlite> {
    let mut query = QueryBuilder::new(format!("SELECT model AS key, {SUMS}"));
    Calls { user: filter.user.as_deref(), since, until: None, tools: false }.push(&mut query);
    if let Some(after) = &filter.after {
        query.push(" WHERE model > ").push_bind(after.clone());
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
