//! Usage totals of jobs, which are kept forever: the newest first, or the dearest of a period.

use chrono::{NaiveDate, NaiveTime};
use protocol::{JobId, UsageLine, UsageSort};
use sqlx::{FromRow, QueryBuilder, Sqlite};
use uuid::Uuid;

use super::{
    Totals,
    by_group::{UsagePosition, UsageQuery},
    day_text, of_user,
};
use crate::{
    Store, StoreError,
    sqlite::{
        list_walks::{ID_TOLERANCE, first_id_after},
        rows::RowRef,
    },
};

impl Store {
    /// A page of the usage of jobs that were created in a period.
    pub(super) async fn usage_by_job(&self, query: &UsageQuery) -> Result<Vec<(UsagePosition, UsageLine)>, StoreError> {
        let row_ref = RowRef { table: "jobs", id: Uuid::nil() };
        let id = query.after.as_ref().and_then(|after| after.keys.first()).map(|key| key.parse::<JobId>());
        let id = id.transpose().map_err(|_| row_ref.invalid("id"))?;
        let micro_usd = query.after.as_ref().and_then(|after| after.micro_usd);
        let mut statement = match query.sort {
            UsageSort::Group => newest(query, id),
            UsageSort::Cost => dearest(query, micro_usd.zip(id)),
        };
        let readers = self.readers_of_sums(query.is_search());
        let rows: Vec<JobSumRow> = statement.build_query_as().fetch_all(readers).await?;
        let line = |row: JobSumRow| {
            let id = JobId::from_uuid(row.id);
            let micro_usd = (query.sort == UsageSort::Cost).then_some(row.known_cost);
            let position = UsagePosition { micro_usd, keys: vec![id.to_string()] };
            (position, UsageLine { job_id: Some(id), user: Some(row.user_id), ..row.totals.line() })
        };
        Ok(rows.into_iter().map(line).collect())
    }
}

/// The columns of [`JobSumRow`], for SELECT from `jobs`.
macro_rules! job_sums {
    () => {
        "SELECT id, user_id, cost_micro_usd AS known_cost, input_tokens AS input, output_tokens AS output, \
         cache_read_tokens AS cache_read, cache_write_tokens AS cache_write, \
         CASE WHEN NOT has_unpriced_calls THEN cost_micro_usd END AS cost, llm_calls AS calls, tool_calls AS tools FROM "
    };
}

pub(super) fn newest(query: &UsageQuery, after: Option<JobId>) -> QueryBuilder<Sqlite> {
    let mut statement = QueryBuilder::new(concat!(job_sums!(), "jobs WHERE TRUE"));
    of_user(&mut statement, query.user.as_deref());
    // Ids have the time of their creation.
    let midnight = |day: NaiveDate| day.and_time(NaiveTime::MIN).and_utc();
    if query.since > NaiveDate::MIN {
        let since = midnight(query.since);
        statement
            .push(" AND id >= ")
            .push_bind(first_id_after(since.checked_sub_signed(ID_TOLERANCE).unwrap_or(since)));
        statement.push(" AND created_at >= ").push_bind(since);
    }
    if query.until < NaiveDate::MAX {
        let until = midnight(query.until);
        statement.push(" AND id < ").push_bind(first_id_after(until.checked_add_signed(ID_TOLERANCE).unwrap_or(until)));
        statement.push(" AND created_at < ").push_bind(until);
    }
    if let Some(after) = after {
        statement.push(" AND id < ").push_bind(after);
    }
    statement.push(" ORDER BY id DESC LIMIT ").push_bind(i64::from(query.limit));
    statement
}

/// Reads the dearest jobs of each day, then of all days. Jobs without a known cost are not among them.
pub(super) fn dearest(query: &UsageQuery, after: Option<(i64, JobId)>) -> QueryBuilder<Sqlite> {
    let (since, until) = (day_text(query.since), day_text(query.until));
    let mut statement = QueryBuilder::new("WITH RECURSIVE days (day) AS (SELECT ");
    statement.push_bind(since.clone()).push(" WHERE ").push_bind(since).push(" < ").push_bind(until.clone());
    statement.push(" UNION ALL SELECT date(day, '+1 day') FROM days WHERE date(day, '+1 day') < ");
    statement.push_bind(until).push(") ").push(job_sums!());
    let index = if query.user.is_some() { "jobs_by_user_day_cost" } else { "jobs_by_day_cost" };
    statement.push("days CROSS JOIN jobs ON jobs.id IN (SELECT id FROM jobs INDEXED BY ").push(index);
    statement.push(" WHERE substr(created_at, 1, 10) = days.day AND cost_micro_usd > 0");
    of_user(&mut statement, query.user.as_deref());
    if let Some((micro_usd, id)) = after {
        statement.push(" AND (cost_micro_usd, id) < (").push_bind(micro_usd).push(", ").push_bind(id).push(")");
    }
    statement.push(" ORDER BY cost_micro_usd DESC, id DESC LIMIT ").push_bind(i64::from(query.limit));
    statement.push(") ORDER BY cost_micro_usd DESC, id DESC LIMIT ").push_bind(i64::from(query.limit));
    statement
}

#[derive(FromRow)]
struct JobSumRow {
    id: Uuid,
    user_id: String,
    known_cost: i64,
    #[sqlx(flatten)]
    totals: Totals,
}
