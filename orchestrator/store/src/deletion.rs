//! Deletion of a finished job on request: its row, and all rows that belong to it alone.
//!
//! What it used stays counted (`deleted_usage`), and so does how it ended. Other objects outlive it: a child's parent
//! and a notification's job become null; a restarted job and a run keep the id, which names no job then. Never deletes
//! files: it records that they are to be removed.
//!
//! The usage is added up before the rows that it is read from are deleted. `forget_responses` keeps the idempotency
//! keys and empties their recorded responses: without the key a repeated request would create the job again, and with
//! the response it would show what was deleted. A key does not have the id of its job, which is found in the beginning
//! of the response instead (`idempotency::ID_WITHIN_CHARS`); a response that has the id later, or the id of another job
//! within it, would be missed or forgotten by mistake. `a_deleted_job_is_gone_and_what_it_used_stays_counted` (stories,
//! `deletion`) fails when any of this is wrong.

use chrono::{DateTime, Utc};
use protocol::{JobId, JobState};
use sqlx::FromRow;

use super::{
    AuditEntry, Connection, Store, StoreError, audit,
    idempotency::{self, DELETED_STATUS},
    job_tree::state_of,
};

/// Adds up what a job used. The cost is unknown as soon as one is.
const KEEP_USAGE: [&str; 3] = [
    "INSERT INTO deleted_usage (user_id, day, model, input_tokens, output_tokens, cache_read_tokens, cache_write_tokens, \
     cost_micro_usd, tries) SELECT j.user_id, substr(c.at, 1, 10), c.model, SUM(c.input_tokens), SUM(c.output_tokens), \
     SUM(c.cache_read_tokens), SUM(c.cache_write_tokens), \
     CASE WHEN COUNT(c.cost_micro_usd) = COUNT(*) THEN SUM(c.cost_micro_usd) END, SUM(c.tries) \
     FROM model_calls AS c JOIN jobs AS j ON j.id = c.work_id WHERE c.work_id = $1 GROUP BY 1, 2, 3 \
     ON CONFLICT (user_id, day, model) DO UPDATE SET input_tokens = input_tokens + excluded.input_tokens, \
     output_tokens = output_tokens + excluded.output_tokens, \
     cache_read_tokens = cache_read_tokens + excluded.cache_read_tokens, \
     cache_write_tokens = cache_write_tokens + excluded.cache_write_tokens, \
     cost_micro_usd = cost_micro_usd + excluded.cost_micro_usd, tries = tries + excluded.tries",
    "INSERT INTO deleted_usage (user_id, day, model, tool_calls) \
     SELECT j.user_id, substr(c.at, 1, 10), '', COUNT(*) FROM tool_calls AS c JOIN jobs AS j ON j.id = c.work_id \
     WHERE c.work_id = $1 GROUP BY 1, 2, 3 \
     ON CONFLICT (user_id, day, model) DO UPDATE SET tool_calls = tool_calls + excluded.tool_calls",
    "INSERT INTO deleted_job_counts (state, reason, jobs) SELECT state, COALESCE(reason, ''), 1 FROM jobs WHERE id = $1 \
     ON CONFLICT (state, reason) DO UPDATE SET jobs = jobs + 1",
];

/// Deletes a job and what belongs to it alone.
const DELETE: [&str; 8] = [
    "UPDATE jobs SET parent_id = NULL WHERE parent_id = $1",
    "UPDATE notifications SET job_id = NULL WHERE job_id = $1",
    "DELETE FROM events WHERE job_id = $1",
    "DELETE FROM model_calls WHERE work_id = $1",
    "DELETE FROM tool_calls WHERE work_id = $1",
    "DELETE FROM prompts WHERE job_id = $1",
    "DELETE FROM job_texts WHERE job_id = $1",
    "DELETE FROM jobs WHERE id = $1",
];

/// The number of child jobs of a job ($1), at any depth, that have not finished.
const UNFINISHED_CHILDREN: &str = "WITH RECURSIVE below (id) AS (SELECT id FROM jobs WHERE parent_id = $1 UNION ALL \
     SELECT j.id FROM jobs AS j JOIN below AS b ON j.parent_id = b.id) \
     SELECT COUNT(*) FROM jobs WHERE id IN (SELECT id FROM below) AND finished_at IS NULL";

/// What became of a request to delete a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobDeletion {
    /// The job is gone; its files are to be removed.
    Deleted,
    NotFinished(JobState),
    /// A model call of the job has not ended.
    CallInFlight,
    /// A child job, at any depth, has not finished.
    UnfinishedChild,
    /// There is no such job.
    Missing,
}

#[derive(FromRow)]
struct Deletable {
    user_id: String,
    state: String,
    is_finished: bool,
    has_open_call: bool,
}

impl Store {
    /// Deletes a finished job.
    pub async fn delete_job(&self, job: JobId, entry: AuditEntry) -> Result<JobDeletion, StoreError> {
        let now = entry.at;
        self.write(transaction!(|tx| {
            let id = *job.as_uuid();
            let found: Option<Deletable> = sqlx::query_as(
                "SELECT user_id, state, finished_at IS NOT NULL AS is_finished, \
                 EXISTS (SELECT 1 FROM model_calls WHERE work_id = $1 AND is_open) AS has_open_call FROM jobs WHERE id = $1",
            )
            .bind(id)
            .fetch_optional(&mut tx.db)
            .await?;
            let Some(found) = found else { return Ok(JobDeletion::Missing) };
            if !found.is_finished {
                return Ok(JobDeletion::NotFinished(state_of(id, &found.state)?));
            }
            if found.has_open_call {
                return Ok(JobDeletion::CallInFlight);
            }
            let unfinished: i64 = sqlx::query_scalar(UNFINISHED_CHILDREN).bind(id).fetch_one(&mut tx.db).await?;
            if unfinished > 0 {
                return Ok(JobDeletion::UnfinishedChild);
            }
            for statement in KEEP_USAGE {
                sqlx::query(statement).bind(id).execute(&mut tx.db).await?;
            }
            forget_responses(&mut tx.db, &found.user_id, job).await?;
            for statement in DELETE {
                sqlx::query(statement).bind(id).execute(&mut tx.db).await?;
            }
            sqlx::query("INSERT INTO deleted_jobs (job_id, deleted_at) VALUES ($1, $2)")
                .bind(id)
                .bind(now)
                .execute(&mut tx.db)
                .await?;
            audit::record(&mut tx.db, Some(&entry), job).await?;
            Ok(JobDeletion::Deleted)
        }))
        .await
    }

    /// Deleted jobs whose files may not be removed yet, with the time of their deletion.
    pub async fn deleted_jobs(&self) -> Result<Vec<(JobId, DateTime<Utc>)>, StoreError> {
        Ok(sqlx::query_as("SELECT job_id, deleted_at FROM deleted_jobs").fetch_all(&self.read).await?)
    }

    /// The files of a deleted job are removed.
    pub async fn forget_deleted_job(&self, job: JobId) -> Result<(), StoreError> {
        self.write_one(transaction!(|tx| {
            let delete = sqlx::query("DELETE FROM deleted_jobs WHERE job_id = $1").bind(job);
            delete.execute(&mut tx.db).await?;
            Ok(())
        }))
        .await
    }

    /// Deletes what is known of the usage of deleted jobs before a day.
    pub(super) async fn trim_deleted_usage(&self, before: DateTime<Utc>) -> Result<(), StoreError> {
        let before = before.date_naive().to_string();
        self.write_one(transaction!(|tx| {
            sqlx::query("DELETE FROM deleted_usage WHERE day < $1").bind(before).execute(&mut tx.db).await?;
            Ok(())
        }))
        .await
    }
}

/// A repeated create or restart is told that the job was deleted; the key does not create it again. A recorded response
/// begins with the job's id.
async fn forget_responses(tx: &mut Connection, owner: &str, job: JobId) -> Result<(), StoreError> {
    sqlx::query(
        "UPDATE idempotency_keys SET status = $1, body = '' WHERE user_id = $2 AND instr(substr(body, 1, $3), $4) > 0",
    )
    .bind(i64::from(DELETED_STATUS))
    .bind(owner)
    .bind(idempotency::ID_WITHIN_CHARS)
    .bind(job.to_string())
    .execute(tx)
    .await?;
    Ok(())
}
