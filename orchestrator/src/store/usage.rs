//! What was used, added up by day, by job or by model.
//!
//! A job's own sums stay for ever; days and models go back as far as single calls are kept. Every statement begins at an
//! index: of one user's jobs, of the jobs that were at work in the days asked for, or of the calls' numbers alone.

use std::collections::BTreeMap;

use chrono::{DateTime, Days, NaiveDate, NaiveTime, TimeDelta, Utc};
use protocol::{JobId, Usage, UsageLine};
use sqlx::{FromRow, QueryBuilder, Sqlite};
use uuid::Uuid;

use super::{
    Store, StoreError,
    rows::{Place, count, dollars},
};

/// Days that one page adds up at most: about what is kept by default.
const MAX_DAYS_A_PAGE: u32 = 92;
/// A call may be recorded so long after its job's end: the longest call, and what it takes to be given up.
const LATE_CALLS: TimeDelta = TimeDelta::hours(1);

/// Which lines.
#[derive(Debug, Clone, Default)]
pub struct UsageFilter {
    /// Only this user's.
    pub user: Option<String>,
    /// Only what follows the line with this key.
    pub after: Option<String>,
    /// At most so many.
    pub limit: u32,
}

/// Some days' usage, the newest first.
#[derive(Debug, Clone, Default)]
pub struct DayPage {
    /// One line for each day on which anything was used.
    pub lines: Vec<UsageLine>,
    /// The first day that was looked at, when something was used before it.
    pub next: Option<NaiveDate>,
}

impl Store {
    /// The `filter.limit` days before `before` (at most 92).
    pub async fn usage_by_day(&self, user: Option<&str>, before: NaiveDate, days: u32) -> Result<DayPage, StoreError> {
        let days = days.min(MAX_DAYS_A_PAGE);
        let first = before.checked_sub_days(Days::new(days.into())).unwrap_or(NaiveDate::MIN);
        let (since, until) = (midnight(first), midnight(before));
        let calls: Vec<SumRow> = calls_by_day(user, (since, until)).build_query_as().fetch_all(&self.read).await?;
        let tools: Vec<(String, i64)> =
            tools_by_day(user, (since, until)).build_query_as().fetch_all(&self.read).await?;
        let mut lines: BTreeMap<String, UsageLine> = BTreeMap::new();
        for row in calls {
            lines.insert(row.key.clone(), row.spent.line(Some(0)));
        }
        for (day, tools) in tools {
            lines.entry(day).or_default().tool_calls = Some(count(tools));
        }
        // What jobs of these days did before them.
        let before_them = lines.remove(EARLIER).is_some();
        let place = Place { table: "llm_calls", id: Uuid::nil() };
        let line = |(day, line): (String, UsageLine)| {
            let day = day.parse().map_err(|_| place.wrong("at"))?;
            Ok(UsageLine { day: Some(day), ..line })
        };
        let lines: Vec<UsageLine> = lines.into_iter().rev().map(line).collect::<Result<_, StoreError>>()?;
        let is_more = before_them || self.has_ended_before(user, earlier(since)).await?;
        Ok(DayPage { lines, next: is_more.then_some(first) })
    }

    /// Whether a job whose calls are kept ended before a time.
    async fn has_ended_before(&self, user: Option<&str>, time: DateTime<Utc>) -> Result<bool, StoreError> {
        let mut query = QueryBuilder::<Sqlite>::new(
            "SELECT 1 FROM jobs WHERE trimmed_at IS NULL AND finished_at IS NOT NULL AND finished_at < ",
        );
        query.push_bind(time);
        of_user(&mut query, user);
        query.push(" LIMIT 1");
        let found: Option<(i64,)> = query.build_query_as().fetch_optional(&self.read).await?;
        Ok(found.is_some())
    }

    /// What was used since a time.
    pub(super) async fn usage_since(&self, user: Option<&str>, since: DateTime<Utc>) -> Result<Usage, StoreError> {
        let spent: Spent = calls_since(user, since).build_query_as().fetch_one(&self.read).await?;
        let tools: i64 = tools_since(user, since).build_query_scalar().fetch_one(&self.read).await?;
        Ok(Usage {
            input_tokens: count(spent.input),
            output_tokens: count(spent.output),
            cache_read_tokens: count(spent.cache_read),
            cache_write_tokens: count(spent.cache_write),
            cost_usd: dollars(spent.cost),
            llm_calls: count(spent.calls),
            tool_calls: count(tools),
            // An iteration is one model call.
            iterations: count(spent.calls),
        })
    }

    /// By model, in the order of their names, each with the key that it is found by.
    pub async fn usage_by_model(&self, filter: &UsageFilter) -> Result<Vec<(String, UsageLine)>, StoreError> {
        let rows: Vec<SumRow> = sums_by_model(filter).build_query_as().fetch_all(&self.read).await?;
        let line = |row: SumRow| (row.key.clone(), UsageLine { model: Some(row.key), ..row.spent.line(None) });
        Ok(rows.into_iter().map(line).collect())
    }

    /// By job, the newest first, each with the key that it is found by.
    pub async fn usage_by_job(&self, filter: &UsageFilter) -> Result<Vec<(String, UsageLine)>, StoreError> {
        let place = Place { table: "jobs", id: Uuid::nil() };
        let after = filter.after.as_deref().map(str::parse::<JobId>).transpose().map_err(|_| place.wrong("id"))?;
        let rows: Vec<JobSumRow> = sums_by_job(filter, after).build_query_as().fetch_all(&self.read).await?;
        let line = |row: JobSumRow| {
            let id = JobId::from_uuid(row.id);
            let spent = row.spent.line(Some(row.tools));
            (id.to_string(), UsageLine { job_id: Some(id), user: Some(row.user_id), ..spent })
        };
        Ok(rows.into_iter().map(line).collect())
    }
}

/// The key of what was used before the first day.
const EARLIER: &str = "";

/// From when on the jobs' ends are looked at, for calls since a time.
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

/// Goes on with the jobs, as `r`, that may have calls since a time: those that are not over, and those that ended after
/// it. Without a time, all whose calls are kept.
fn from_jobs(query: &mut QueryBuilder<Sqlite>, user: Option<&str>, since: Option<DateTime<Utc>>) {
    query.push(" FROM (SELECT id FROM jobs WHERE finished_at IS NULL");
    of_user(query, user);
    query.push(" UNION ALL SELECT id FROM jobs WHERE trimmed_at IS NULL AND finished_at IS NOT NULL");
    of_user(query, user);
    if let Some(since) = since {
        query.push(" AND finished_at >= ").push_bind(earlier(since));
    }
    query.push(") AS r ");
}

/// The sums of calls `c`.
const SUMS: &str = "COALESCE(SUM(c.input_tokens), 0) AS input, COALESCE(SUM(c.output_tokens), 0) AS output, \
    COALESCE(SUM(c.cache_read_tokens), 0) AS cache_read, COALESCE(SUM(c.cache_write_tokens), 0) AS cache_write, \
    COALESCE(SUM(c.cost_micro_usd), 0) AS cost, COALESCE(SUM(c.tries), 0) AS calls";

/// `sums` of the rows of `table` by day, those before `since` under [`EARLIER`]. SQLite takes the tables of a cross join in
/// their order: the jobs first.
fn by_day(
    (sums, table): (&str, &str),
    user: Option<&str>,
    (since, until): (DateTime<Utc>, DateTime<Utc>),
) -> QueryBuilder<Sqlite> {
    let mut query = QueryBuilder::new("SELECT CASE WHEN c.at < ");
    query.push_bind(since).push(format!(" THEN '{EARLIER}' ELSE substr(c.at, 1, 10) END AS key, {sums}"));
    from_jobs(&mut query, user, Some(since));
    query.push(format!("CROSS JOIN {table} AS c WHERE c.job_id = r.id AND c.at < ")).push_bind(until);
    query.push(" GROUP BY key");
    query
}

fn calls_by_day(user: Option<&str>, days: (DateTime<Utc>, DateTime<Utc>)) -> QueryBuilder<Sqlite> {
    by_day((SUMS, "llm_calls"), user, days)
}

fn tools_by_day(user: Option<&str>, days: (DateTime<Utc>, DateTime<Utc>)) -> QueryBuilder<Sqlite> {
    by_day(("COUNT(*) AS tools", "job_actions"), user, days)
}

fn calls_since(user: Option<&str>, since: DateTime<Utc>) -> QueryBuilder<Sqlite> {
    let mut query = QueryBuilder::new(format!("SELECT {SUMS}"));
    from_jobs(&mut query, user, Some(since));
    query.push("CROSS JOIN llm_calls AS c WHERE c.job_id = r.id AND c.at >= ").push_bind(since);
    query
}

fn tools_since(user: Option<&str>, since: DateTime<Utc>) -> QueryBuilder<Sqlite> {
    let mut query = QueryBuilder::new("SELECT COUNT(*)");
    from_jobs(&mut query, user, Some(since));
    query.push("CROSS JOIN job_actions AS c WHERE c.job_id = r.id AND c.at >= ").push_bind(since);
    query
}

fn sums_by_model(filter: &UsageFilter) -> QueryBuilder<Sqlite> {
    let mut query = QueryBuilder::new(format!("SELECT c.model AS key, {SUMS}"));
    match &filter.user {
        Some(user) => {
            from_jobs(&mut query, Some(user), None);
            query.push("CROSS JOIN llm_calls AS c WHERE c.job_id = r.id");
        }
        None => {
            query.push(" FROM llm_calls AS c WHERE 1 = 1");
        }
    }
    if let Some(after) = &filter.after {
        query.push(" AND c.model > ").push_bind(after.clone());
    }
    query.push(" GROUP BY c.model ORDER BY c.model LIMIT ").push_bind(i64::from(filter.limit));
    query
}

fn sums_by_job(filter: &UsageFilter, after: Option<JobId>) -> QueryBuilder<Sqlite> {
    let mut query = QueryBuilder::new(
        "SELECT id, user_id, input_tokens AS input, output_tokens AS output, cache_read_tokens AS cache_read, \
         cache_write_tokens AS cache_write, cost_micro_usd AS cost, llm_calls AS calls, tool_calls AS tools \
         FROM jobs WHERE 1 = 1",
    );
    of_user(&mut query, filter.user.as_deref());
    if let Some(after) = after {
        query.push(" AND id < ").push_bind(*after.as_uuid());
    }
    query.push(" ORDER BY id DESC LIMIT ").push_bind(i64::from(filter.limit));
    query
}

#[derive(FromRow)]
struct Spent {
    input: i64,
    output: i64,
    cache_read: i64,
    cache_write: i64,
    cost: i64,
    calls: i64,
}

#[derive(FromRow)]
struct SumRow {
    key: String,
    #[sqlx(flatten)]
    spent: Spent,
}

#[derive(FromRow)]
struct JobSumRow {
    id: Uuid,
    user_id: String,
    tools: i64,
    #[sqlx(flatten)]
    spent: Spent,
}

impl Spent {
    fn line(&self, tools: Option<i64>) -> UsageLine {
        UsageLine {
            input_tokens: count(self.input),
            output_tokens: count(self.output),
            cache_read_tokens: count(self.cache_read),
            cache_write_tokens: count(self.cache_write),
            cost_usd: dollars(self.cost),
            llm_calls: count(self.calls),
            tool_calls: tools.map(count),
            ..UsageLine::default()
        }
    }
}

#[cfg(test)]
mod tests;
