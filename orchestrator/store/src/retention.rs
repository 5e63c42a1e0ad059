//! Retention: rows of finished jobs and idle chats are deleted after a time, or when the database is too large.
//!
//! A job's row with its result and usage is kept forever, and so are its last events from the result on; a reader that
//! resumes gets their first number. Never changes a job that is not finished.

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use super::{Store, StoreError, budget, idempotency};

/// Jobs in one transaction, so that other writes do not wait long.
const JOBS_PER_BATCH: i64 = 50;
/// Audit entries in one transaction.
const AUDIT_ROWS_PER_BATCH: i64 = 5_000;

/// The part of the maximum size that a user's chats may have before they are trimmed first: one sixteenth.
const CHATS_SHARE: u64 = 16;

/// Deletes the rows of a finished job in other tables, except its last events from the result on.
const TRIM_JOB: [&str; 5] = [
    "UPDATE trimmed_events SET cursor = MAX(cursor, COALESCE((SELECT MAX(e.cursor) FROM events e WHERE e.job_id = $1 \
     AND e.seq < (SELECT MAX(r.seq) FROM events r WHERE r.job_id = $1 AND r.kind = 'result')), 0))",
    "DELETE FROM events WHERE job_id = $1 AND seq < \
     (SELECT MAX(r.seq) FROM events r WHERE r.job_id = $1 AND r.kind = 'result')",
    "DELETE FROM model_calls WHERE work_id = $1",
    "DELETE FROM tool_calls WHERE work_id = $1",
    "DELETE FROM prompts WHERE job_id = $1",
];

/// How long rows are kept, and how large the database may become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetentionLimits {
    /// Days for which events, model calls and tool calls of finished jobs are kept.
    pub days: u64,
    /// Days for which audit entries are kept.
    pub audit_days: u64,
    /// Database size in MiB above which the oldest rows are deleted earlier; 0 is no limit.
    pub max_mb: u64,
}

/// The rows that a sweep deleted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Trimmed {
    /// Jobs whose events and calls were deleted.
    pub jobs: u64,
    pub keys: u64,
    pub audit_rows: u64,
    pub notifications: u64,
    pub runs: u64,
    /// Events of gates, threads and notifications.
    pub instance_events: u64,
    pub gates: u64,
    /// Tool calls of chats.
    pub thread_actions: u64,
    /// Entries of chats, and what was stored with them.
    pub chat_rows: u64,
}

impl Store {
    /// Deletes expired rows, then the oldest ones while the database is too large.
    pub async fn trim(&self, limits: &RetentionLimits, now: DateTime<Utc>) -> Result<Trimmed, StoreError> {
        let mut trimmed = Trimmed { keys: self.trim_keys(now).await?, ..Trimmed::default() };
        trimmed.notifications = self.trim_notifications(now).await?;
        trimmed.runs = self.trim_runs(now).await?;
        self.trim_webhook_deliveries(now).await?;
        if let Some(before) = days_before(now, limits.audit_days) {
            while let rows @ 1.. = self.trim_audit(before).await? {
                trimmed.audit_rows += rows;
            }
        }
        if let Some(before) = days_before(now, limits.days) {
            self.trim_user_days(before).await?;
            self.trim_deleted_usage(before).await?;
            while let rows @ 1.. = self.trim_instance_events(before).await? {
                trimmed.instance_events += rows;
            }
            while let rows @ 1.. = self.trim_gates(before).await? {
                trimmed.gates += rows;
            }
            trimmed.chat_rows += self.trim_chats(before).await?;
            self.trim_thread_calls(before).await?;
            while let rows @ 1.. = self.trim_thread_tool_calls(before).await? {
                trimmed.thread_actions += rows;
            }
            while let batch @ 1.. = self.trim_batch(before, now).await? {
                trimmed.jobs += batch;
            }
        }
        let max_bytes = limits.max_mb.saturating_mul(1024 * 1024);
        while max_bytes > 0 && self.used_bytes().await? > max_bytes {
            // One user's chats must not displace the records of others.
            if let rows @ 1.. = self.trim_largest_chats(max_bytes / CHATS_SHARE).await? {
                trimmed.chat_rows += rows;
                continue;
            }
            if self.trim_oldest(now, &mut trimmed).await? == 0 {
                break;
            }
        }
        Ok(trimmed)
    }

    /// Deletes a batch of the oldest rows of all kinds, so that a flood of one kind does not displace the others.
    /// Returns how many rows or jobs.
    async fn trim_oldest(&self, now: DateTime<Utc>, trimmed: &mut Trimmed) -> Result<u64, StoreError> {
        let [job, row, event] = self.oldest().await?;
        let is_older = |one: Option<DateTime<Utc>>, other: Option<DateTime<Utc>>| {
            one.is_some() && (other.is_none() || one < other)
        };
        let until = job.unwrap_or(now);
        if is_older(row, job) && !is_older(event, row) {
            let rows = self.trim_audit(until).await?;
            trimmed.audit_rows += rows;
            return Ok(rows);
        }
        if is_older(event, job) {
            let rows = self.trim_instance_events(until).await?;
            trimmed.instance_events += rows;
            return Ok(rows);
        }
        let jobs = self.trim_batch(now, now).await?;
        trimmed.jobs += jobs;
        Ok(jobs)
    }

    /// The size of the database without its free pages.
    pub async fn used_bytes(&self) -> Result<u64, StoreError> {
        let used: i64 = sqlx::query_scalar(
            "SELECT (c.page_count - f.freelist_count) * s.page_size \
             FROM pragma_page_count AS c, pragma_freelist_count AS f, pragma_page_size AS s",
        )
        .fetch_one(&self.read)
        .await?;
        Ok(u64::try_from(used).unwrap_or(0))
    }

    /// When the oldest untrimmed job finished, and the times of the oldest audit entry and the oldest event of the
    /// instance.
    async fn oldest(&self) -> Result<[Option<DateTime<Utc>>; 3], StoreError> {
        let job = sqlx::query_scalar(
            "SELECT finished_at FROM jobs WHERE trimmed_at IS NULL AND finished_at IS NOT NULL ORDER BY finished_at LIMIT 1",
        )
        .fetch_optional(&self.read)
        .await?;
        let row = sqlx::query_scalar("SELECT at FROM audit ORDER BY at LIMIT 1").fetch_optional(&self.read).await?;
        let event =
            sqlx::query_scalar("SELECT at FROM instance_events ORDER BY at LIMIT 1").fetch_optional(&self.read).await?;
        Ok([job, row, event])
    }

    async fn trim_keys(&self, now: DateTime<Utc>) -> Result<u64, StoreError> {
        self.write_one(transaction!(|tx| {
            let keys =
                sqlx::query("DELETE FROM idempotency_keys WHERE created_at < $1").bind(now - idempotency::LIFETIME);
            Ok(keys.execute(&mut tx.db).await?.rows_affected())
        }))
        .await
    }

    /// Deletes the daily totals of past days. They are only for the budget of their day; usage by day is summed up from
    /// calls.
    async fn trim_user_days(&self, before: DateTime<Utc>) -> Result<(), StoreError> {
        // A call that began on an earlier day is settled on that day: the two latest days always stay.
        let before = budget::day_of(before - TimeDelta::days(1));
        self.write_one(transaction!(|tx| {
            sqlx::query("DELETE FROM user_days WHERE day < $1").bind(before).execute(&mut tx.db).await?;
            Ok(())
        }))
        .await
    }

    /// Deletes the records of model calls of chat threads.
    async fn trim_thread_calls(&self, before: DateTime<Utc>) -> Result<(), StoreError> {
        self.write_one(transaction!(|tx| {
            sqlx::query("DELETE FROM model_calls WHERE kind <> 'job' AND at < $1 AND NOT is_open")
                .bind(before)
                .execute(&mut tx.db)
                .await?;
            Ok(())
        }))
        .await
    }

    async fn trim_audit(&self, before: DateTime<Utc>) -> Result<u64, StoreError> {
        self.write_one(transaction!(|tx| {
            let rows =
                sqlx::query("DELETE FROM audit WHERE id IN (SELECT id FROM audit WHERE at < $1 ORDER BY at LIMIT $2)")
                    .bind(before)
                    .bind(AUDIT_ROWS_PER_BATCH);
            Ok(rows.execute(&mut tx.db).await?.rows_affected())
        }))
        .await
    }

    async fn trim_batch(&self, before: DateTime<Utc>, now: DateTime<Utc>) -> Result<u64, StoreError> {
        self.write(transaction!(|tx| {
            let jobs: Vec<Uuid> = sqlx::query_scalar(
                "SELECT id FROM jobs WHERE trimmed_at IS NULL AND finished_at IS NOT NULL AND finished_at < $1 \
                 ORDER BY finished_at LIMIT $2",
            )
            .bind(before)
            .bind(JOBS_PER_BATCH)
            .fetch_all(&mut tx.db)
            .await?;
            for job in &jobs {
                for statement in TRIM_JOB {
                    sqlx::query(statement).bind(job).execute(&mut tx.db).await?;
                }
                sqlx::query("UPDATE jobs SET trimmed_at = $1 WHERE id = $2")
                    .bind(now)
                    .bind(job)
                    .execute(&mut tx.db)
                    .await?;
            }
            Ok(jobs.len() as u64)
        }))
        .await
    }
}

/// `None` when the result is out of range.
fn days_before(now: DateTime<Utc>, days: u64) -> Option<DateTime<Utc>> {
    let days = i64::try_from(days).ok().and_then(TimeDelta::try_days)?;
    now.checked_sub_signed(days)
}
