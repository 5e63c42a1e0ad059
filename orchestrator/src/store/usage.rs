//! What was used, added up by day, by job or by model.
//!
//! A job's own sums stay for ever; days and models go back as far as single calls are kept.

use protocol::{JobId, UsageBy, UsageLine};
use sqlx::FromRow;
use uuid::Uuid;

use super::{
    Store, StoreError,
    rows::{Place, count, dollars},
};

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

impl Store {
    /// The lines, each with the key that it is found by.
    pub async fn usage(&self, by: UsageBy, filter: &UsageFilter) -> Result<Vec<(String, UsageLine)>, StoreError> {
        match by {
            UsageBy::Day => self.usage_by_day(filter).await,
            UsageBy::Job => self.usage_by_job(filter).await,
            UsageBy::Model => self.usage_by_model(filter).await,
        }
    }

    async fn usage_by_day(&self, filter: &UsageFilter) -> Result<Vec<(String, UsageLine)>, StoreError> {
        let rows: Vec<SumRow> = sqlx::query_as(
            "SELECT day AS key, SUM(input) AS input, SUM(output) AS output, SUM(cache_read) AS cache_read, \
             SUM(cache_write) AS cache_write, SUM(cost) AS cost, SUM(calls) AS calls, SUM(tools) AS tools FROM ( \
             SELECT substr(c.at, 1, 10) AS day, c.input_tokens AS input, c.output_tokens AS output, \
             c.cache_read_tokens AS cache_read, c.cache_write_tokens AS cache_write, \
             COALESCE(c.cost_micro_usd, 0) AS cost, c.tries AS calls, 0 AS tools \
             FROM llm_calls c JOIN jobs j ON j.id = c.job_id WHERE ($1 IS NULL OR j.user_id = $1) \
             UNION ALL SELECT substr(a.at, 1, 10), 0, 0, 0, 0, 0, 0, 1 \
             FROM job_actions a JOIN jobs j ON j.id = a.job_id WHERE ($1 IS NULL OR j.user_id = $1)) AS spent \
             WHERE ($2 IS NULL OR day < $2) GROUP BY day ORDER BY day DESC LIMIT $3",
        )
        .bind(&filter.user)
        .bind(&filter.after)
        .bind(i64::from(filter.limit))
        .fetch_all(&self.read)
        .await?;
        let place = Place { table: "llm_calls", id: Uuid::nil() };
        let line = |row: SumRow| {
            let day = row.key.parse().map_err(|_| place.wrong("at"))?;
            Ok((row.key.clone(), UsageLine { day: Some(day), ..row.line(Some(row.tools)) }))
        };
        rows.into_iter().map(line).collect()
    }

    async fn usage_by_model(&self, filter: &UsageFilter) -> Result<Vec<(String, UsageLine)>, StoreError> {
        let rows: Vec<SumRow> = sqlx::query_as(
            "SELECT c.model AS key, SUM(c.input_tokens) AS input, SUM(c.output_tokens) AS output, \
             SUM(c.cache_read_tokens) AS cache_read, SUM(c.cache_write_tokens) AS cache_write, \
             SUM(COALESCE(c.cost_micro_usd, 0)) AS cost, SUM(c.tries) AS calls, 0 AS tools \
             FROM llm_calls c JOIN jobs j ON j.id = c.job_id \
             WHERE ($1 IS NULL OR j.user_id = $1) AND ($2 IS NULL OR c.model > $2) \
             GROUP BY c.model ORDER BY c.model LIMIT $3",
        )
        .bind(&filter.user)
        .bind(&filter.after)
        .bind(i64::from(filter.limit))
        .fetch_all(&self.read)
        .await?;
        let line = |row: SumRow| (row.key.clone(), UsageLine { model: Some(row.key.clone()), ..row.line(None) });
        Ok(rows.into_iter().map(line).collect())
    }

    async fn usage_by_job(&self, filter: &UsageFilter) -> Result<Vec<(String, UsageLine)>, StoreError> {
        let place = Place { table: "jobs", id: Uuid::nil() };
        let after = filter.after.as_deref().map(str::parse::<JobId>).transpose().map_err(|_| place.wrong("id"))?;
        let rows: Vec<JobSumRow> = sqlx::query_as(
            "SELECT id, user_id, input_tokens AS input, output_tokens AS output, cache_read_tokens AS cache_read, \
             cache_write_tokens AS cache_write, cost_micro_usd AS cost, llm_calls AS calls, tool_calls AS tools \
             FROM jobs WHERE ($1 IS NULL OR user_id = $1) AND ($2 IS NULL OR id < $2) ORDER BY id DESC LIMIT $3",
        )
        .bind(&filter.user)
        .bind(after.map(|id| *id.as_uuid()))
        .bind(i64::from(filter.limit))
        .fetch_all(&self.read)
        .await?;
        let line = |row: JobSumRow| {
            let id = JobId::from_uuid(row.id);
            let spent = row.spent.line(Some(row.tools));
            (id.to_string(), UsageLine { job_id: Some(id), user: Some(row.user_id), ..spent })
        };
        Ok(rows.into_iter().map(line).collect())
    }
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
    tools: i64,
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

impl SumRow {
    fn line(&self, tools: Option<i64>) -> UsageLine {
        self.spent.line(tools)
    }
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
