//! Retention: rows of finished jobs and idle chats are deleted after a time, or when the records are too large.
//!
//! A job's row with its usage is kept forever, and so are the beginnings of its texts and its last events from the
//! result on; a reader that resumes gets their first number. Never changes a job that is not finished.
//!
//! Each step deletes a bounded number of rows in one transaction. The parts take turns, so that none keeps the others
//! from their work; a part that fails does not affect the others.

mod size;

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use agent::BoxFuture;
use chrono::{DateTime, TimeDelta, Utc};
use sqlx::SqlSafeStr;
use tokio::time::Instant;
use uuid::Uuid;

use super::{
    Store, StoreError,
    calls::budget,
    events::instance_events,
    sqlite::{data_migrations::DataMigration, write_tx::WriteTx},
};

/// Rows that a step deletes, so that other writes do not wait long.
pub(super) const ROWS_PER_STEP: u64 = 1_000;
/// How long a sweep deletes. What remains is deleted by the next one, an hour later.
const MAX_SWEEP: Duration = Duration::from_mins(30);
/// Days for which an expired token is listed.
const EXPIRED_TOKEN_DAYS: i64 = 30;

/// How long rows are kept, and how large the records may become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetentionLimits {
    /// Days for which events, model calls and tool calls of finished jobs are kept.
    pub days: u64,
    /// Days for which audit entries are kept.
    pub audit_days: u64,
    /// Size in MiB of the records above which the oldest rows are deleted earlier; 0 is no limit.
    pub max_mb: u64,
}

/// What a sweep did.
#[derive(Debug, Default)]
pub struct Trimmed {
    /// The number of deleted rows, by part; only parts that deleted some.
    pub rows: BTreeMap<&'static str, u64>,
    /// The parts that failed.
    pub errors: Vec<(&'static str, StoreError)>,
    /// The bytes by which the records exceed the limit although nothing more may be deleted.
    pub excess_bytes: Option<u64>,
}

impl Trimmed {
    /// The number of rows that a part deleted.
    pub fn rows_of(&self, part: &str) -> u64 {
        self.rows.get(part).copied().unwrap_or(0)
    }

    fn add(&mut self, part: &'static str, rows: u64) {
        if rows > 0 {
            *self.rows.entry(part).or_default() += rows;
        }
    }
}

/// The times before which a sweep deletes.
struct Sweep {
    now: DateTime<Utc>,
    records: DateTime<Utc>,
    audit: DateTime<Utc>,
}

/// Deletes some rows, at most [`ROWS_PER_STEP`] in a transaction, and returns how many; 0 once there are none left.
type Step = for<'s> fn(&'s Store, &'s Sweep) -> BoxFuture<'s, Result<u64, StoreError>>;

const PARTS: &[(&str, Step)] = &[
    ("accepted", |store, sweep| {
        let expired = "DELETE FROM accepted WHERE rowid IN (SELECT rowid FROM accepted WHERE until < $1 LIMIT $2)";
        Box::pin(store.delete_batch(expired, sweep.now))
    }),
    ("tokens", |store, sweep| {
        // A token that was signed elsewhere has no user here, and nothing else says that it is revoked.
        let tokens = "DELETE FROM tokens WHERE rowid IN \
                      (SELECT rowid FROM tokens WHERE expires_at < $1 AND user_id <> '' LIMIT $2)";
        Box::pin(store.delete_batch(tokens, sweep.now - TimeDelta::days(EXPIRED_TOKEN_DAYS)))
    }),
    ("sessions", |store, sweep| {
        let ended = "DELETE FROM sessions WHERE rowid IN (SELECT rowid FROM sessions WHERE expires_at < $1 LIMIT $2)";
        Box::pin(store.delete_batch(ended, sweep.now))
    }),
    ("session_codes", |store, sweep| {
        let ended =
            "DELETE FROM session_codes WHERE rowid IN (SELECT rowid FROM session_codes WHERE expires_at < $1 LIMIT $2)";
        Box::pin(store.delete_batch(ended, sweep.now))
    }),
    ("notifications", |store, sweep| Box::pin(store.trim_notifications(sweep.now))),
    ("runs", |store, sweep| Box::pin(store.trim_runs(sweep.now))),
    ("webhook_deliveries", |store, sweep| Box::pin(store.trim_webhook_deliveries(sweep.now))),
    ("audit", |store, sweep| Box::pin(store.trim_audit(sweep.audit))),
    ("user_days", |store, sweep| {
        // Only for the budget of their day. A call that began on an earlier day is settled on that day: the two latest
        // days always stay.
        let days = "DELETE FROM user_days WHERE rowid IN (SELECT rowid FROM user_days WHERE day < $1 LIMIT $2)";
        Box::pin(store.delete_batch(days, budget::day_of(sweep.records - TimeDelta::days(1))))
    }),
    ("daily_usage", |store, sweep| {
        let usage = "DELETE FROM daily_usage WHERE (day, user_id, model) IN \
                     (SELECT day, user_id, model FROM daily_usage WHERE day < $1 LIMIT $2)";
        Box::pin(store.delete_batch(usage, sweep.records.date_naive().to_string()))
    }),
    ("daily_group_usage", |store, sweep| {
        let usage = "DELETE FROM daily_group_usage WHERE (dimension, day, user_id, value, model) IN \
                     (SELECT dimension, day, user_id, value, model FROM daily_group_usage WHERE day < $1 LIMIT $2)";
        Box::pin(store.delete_batch(usage, sweep.records.date_naive().to_string()))
    }),
    ("instance_events", |store, sweep| Box::pin(store.trim_instance_events(sweep.records))),
    ("gates", |store, sweep| Box::pin(store.trim_gates(sweep.records))),
    ("chats", |store, sweep| Box::pin(store.trim_chats(sweep.records))),
    ("model_calls", |store, sweep| {
        // Those of jobs are deleted with the other records of their job.
        let calls = "DELETE FROM model_calls WHERE rowid IN \
                     (SELECT rowid FROM model_calls WHERE kind <> 'job' AND at < $1 AND NOT is_open LIMIT $2)";
        Box::pin(store.delete_batch(calls, sweep.records))
    }),
    ("tool_calls", |store, sweep| Box::pin(store.trim_thread_tool_calls(sweep.records))),
    ("jobs", |store, sweep| Box::pin(store.trim_jobs(sweep.records, sweep.now))),
];

impl Store {
    /// Deletes expired rows, then the oldest ones while the records are too large.
    pub async fn trim(&self, limits: &RetentionLimits, now: DateTime<Utc>) -> Trimmed {
        self.trim_within(limits, now, MAX_SWEEP).await
    }

    async fn trim_within(&self, limits: &RetentionLimits, now: DateTime<Utc>, time: Duration) -> Trimmed {
        let sweep = Sweep { now, records: days_before(now, limits.days), audit: days_before(now, limits.audit_days) };
        let (mut trimmed, end) = (Trimmed::default(), Instant::now() + time);
        let mut parts: Vec<&(&str, Step)> = PARTS.iter().collect();
        while !parts.is_empty() && Instant::now() < end {
            let mut complete = HashSet::new();
            for (part, step) in &parts {
                match paced(step(self, &sweep)).await {
                    Ok(rows @ 1..) => trimmed.add(part, rows),
                    Ok(0) => drop(complete.insert(*part)),
                    Err(error) => {
                        complete.insert(*part);
                        trimmed.errors.push((part, error));
                    }
                }
            }
            parts.retain(|(part, _)| !complete.contains(part));
        }
        if let Err(error) = self.trim_to_size(limits, &sweep, end, &mut trimmed).await {
            trimmed.errors.push(("size", error));
        }
        trimmed
    }

    /// Runs a statement that deletes at most `$2` of the rows that `$1` selects. Returns how many.
    pub(super) async fn delete_batch<T>(
        &self,
        statement: impl SqlSafeStr + Send + 'static,
        argument: T,
    ) -> Result<u64, StoreError>
    where
        T: for<'q> sqlx::Encode<'q, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite> + Send + 'static,
    {
        self.write_one(transaction!(|tx| {
            let rows = sqlx::query(statement).bind(argument).bind(ROWS_PER_STEP.cast_signed());
            Ok(rows.execute(&mut tx.db).await?.rows_affected())
        }))
        .await
    }

    async fn trim_audit(&self, before: DateTime<Utc>) -> Result<u64, StoreError> {
        let entries = "DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE at < $1 ORDER BY at LIMIT $2)";
        self.delete_batch(entries, before).await
    }

    /// Deletes records of the jobs that finished first. A job with more records than a step deletes takes several, and
    /// is marked with the last one.
    async fn trim_jobs(&self, before: DateTime<Utc>, now: DateTime<Utc>) -> Result<u64, StoreError> {
        self.write(transaction!(|tx| {
            let jobs: Vec<Uuid> = sqlx::query_scalar(
                "SELECT id FROM jobs WHERE trimmed_at IS NULL AND finished_at IS NOT NULL AND finished_at < $1 \
                 ORDER BY finished_at LIMIT $2",
            )
            .bind(before)
            .bind(JOBS_PER_STEP)
            .fetch_all(&mut tx.db)
            .await?;
            let mut deleted = 0;
            for job in jobs {
                deleted += trim_job(tx, job, ROWS_PER_STEP - deleted).await?;
                if deleted >= ROWS_PER_STEP {
                    break;
                }
                for statement in CUT_TEXTS_OF_JOB {
                    sqlx::query(statement).bind(job).execute(&mut tx.db).await?;
                }
                let mark = sqlx::query("UPDATE jobs SET trimmed_at = $1 WHERE id = $2").bind(now).bind(job);
                mark.execute(&mut tx.db).await?;
                deleted += 1;
            }
            Ok(deleted)
        }))
        .await
    }
}

/// Jobs of which a step deletes records.
const JOBS_PER_STEP: i64 = 50;

/// The records of a finished job in other tables, at most `$2` at once. Its events are deleted before them.
pub(super) const RECORDS: [&str; 3] = [
    "DELETE FROM model_calls WHERE rowid IN (SELECT rowid FROM model_calls WHERE work_id = $1 LIMIT $2)",
    "DELETE FROM tool_calls WHERE rowid IN (SELECT rowid FROM tool_calls WHERE work_id = $1 LIMIT $2)",
    "DELETE FROM prompts WHERE rowid IN (SELECT rowid FROM prompts WHERE job_id = $1 LIMIT $2)",
];

/// The beginning of a text, which is kept of a finished job.
macro_rules! beginning {
    ($text:literal) => {
        concat!("CASE WHEN length(", $text, ") > 1000 THEN substr(", $text, ", 1, 1000) || '…' ELSE ", $text, " END")
    };
}

macro_rules! cut_job_texts {
    ($jobs:literal) => {
        concat!(
            "UPDATE job_texts SET metadata = '{}', note = NULL, prompt = ",
            beginning!("prompt"),
            ", result_text = ",
            beginning!("result_text"),
            ", result_partial = json_replace(result_partial, '$.text', ",
            beginning!("(result_partial ->> 'text')"),
            ") WHERE job_id ",
            $jobs
        )
    };
}

macro_rules! cut_results {
    ($jobs:literal) => {
        concat!(
            "UPDATE events SET data = json_replace(data, '$.text', ",
            beginning!("(data ->> 'text')"),
            ", '$.partial.text', ",
            beginning!("(data -> 'partial' ->> 'text')"),
            ") WHERE kind = 'result' AND octet_length(data) > 1000 AND job_id ",
            $jobs
        )
    };
}

/// Keeps the beginnings of a finished job's texts.
const CUT_TEXTS_OF_JOB: [&str; 2] = [cut_job_texts!("= $1"), cut_results!("= $1")];

/// The same for jobs whose records were deleted while their texts were kept forever.
pub(super) const CUT_TEXTS: DataMigration = DataMigration {
    name: "cut_texts_of_jobs",
    table: "jobs",
    step: &[
        cut_job_texts!("IN (SELECT id FROM jobs WHERE rowid > ?1 AND rowid <= ?2 AND trimmed_at IS NOT NULL)"),
        cut_results!("IN (SELECT id FROM jobs WHERE rowid > ?1 AND rowid <= ?2 AND trimmed_at IS NOT NULL)"),
    ],
    finish: &[],
};

/// Deletes at most `limit` records of a job, but for its last events from the result on. Returns how many.
async fn trim_job(tx: &mut WriteTx, job: Uuid, limit: u64) -> Result<u64, StoreError> {
    let cursors: Vec<i64> = sqlx::query_scalar(
        "DELETE FROM events WHERE cursor IN (SELECT cursor FROM events WHERE job_id = $1 AND seq < (SELECT r.seq \
         FROM events r WHERE r.job_id = $1 AND r.kind = 'result' ORDER BY r.seq DESC LIMIT 1) ORDER BY seq LIMIT $2) \
         RETURNING cursor",
    )
    .bind(job)
    .bind(limit.cast_signed())
    .fetch_all(&mut tx.db)
    .await?;
    instance_events::set_trimmed(tx, &cursors).await?;
    let mut deleted = cursors.len() as u64;
    for statement in RECORDS {
        let rows = sqlx::query(statement).bind(job).bind((limit - deleted).cast_signed());
        deleted += rows.execute(&mut tx.db).await?.rows_affected();
    }
    Ok(deleted)
}

/// Runs a step, and rests as long as it took: the writer has at least half of its time for others.
async fn paced(step: BoxFuture<'_, Result<u64, StoreError>>) -> Result<u64, StoreError> {
    let since = Instant::now();
    let rows = step.await?;
    if rows > 0 {
        tokio::time::sleep(since.elapsed()).await;
    }
    Ok(rows)
}

/// The earliest time there is when the result is out of range.
fn days_before(now: DateTime<Utc>, days: u64) -> DateTime<Utc> {
    let days = i64::try_from(days).ok().and_then(TimeDelta::try_days);
    days.and_then(|days| now.checked_sub_signed(days)).unwrap_or_default()
}

#[cfg(test)]
mod tests;
