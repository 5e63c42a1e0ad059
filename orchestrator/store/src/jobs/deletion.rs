//! Deletion of a finished job on request: its row, and all rows that belong to it alone.
//!
//! What it used stays counted (`daily_usage`), and so does how it ended (`deleted_job_counts`). Other objects outlive it: a child's parent
//! and a notification's job become null; a restarted job and a run keep the id, which names no job then. Never deletes
//! files: it records that they are to be removed.
//!
//! The first transaction marks the job (`deleted_jobs`); further ones delete a bounded number of rows each. The
//! idempotency key that created the job stays without its response: without the key a repeated request would create
//! the job again, and with the response it would show what was deleted.
//! `a_deleted_job_is_gone_and_what_it_used_stays_counted` (stories, `deletion`) fails when any of this is wrong.

use chrono::{DateTime, Utc};
use protocol::{InstanceEventData, JobId, JobState};
use sqlx::FromRow;
use uuid::Uuid;

use super::tree::state_of;
use crate::{
    AuditEntry, Store, StoreError,
    access::audit,
    events::instance_events,
    retention::{RECORDS, ROWS_PER_STEP},
    sqlite::write_tx::WriteTx,
};

/// The events of a job, deleted before its [`RECORDS`], at most `$2` at once.
const EVENTS: &str = "DELETE FROM events WHERE cursor IN (SELECT cursor FROM events WHERE job_id = $1 LIMIT $2)";

/// The events `job` of a job, which have its title and the beginning of its prompt.
const SUMMARIES: &str = "DELETE FROM instance_events WHERE cursor IN \
     (SELECT cursor FROM instance_events WHERE job_id = $1 AND kind = 'job' LIMIT $2)";

/// Deletes a job that has no other rows, and counts how it ended.
const DELETE_JOB: [&str; 5] = [
    "INSERT INTO deleted_job_counts (state, reason, jobs) SELECT state, COALESCE(reason, ''), 1 FROM jobs WHERE id = $1 \
     ON CONFLICT (state, reason) DO UPDATE SET jobs = jobs + 1",
    "UPDATE jobs SET parent_id = NULL WHERE parent_id = $1",
    "UPDATE notifications SET job_id = NULL WHERE job_id = $1",
    "DELETE FROM job_texts WHERE job_id = $1",
    "DELETE FROM jobs WHERE id = $1",
];

/// Deleted jobs that one statement reads.
const DELETED_PER_PAGE: i64 = 100;

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
    state: String,
    is_finished: bool,
    has_open_call: bool,
}

impl Store {
    /// Deletes a finished job: marks it, and then deletes its rows in steps, so that other writes do not wait long. A
    /// deletion that is cut off is finished by the retention sweep.
    pub async fn delete_job(&self, job: JobId, entry: AuditEntry) -> Result<JobDeletion, StoreError> {
        let marked = self.write(transaction!(|tx| mark(tx, job, &entry).await)).await?;
        if marked == JobDeletion::Deleted {
            self.finish_deletion(job).await?;
        }
        Ok(marked)
    }

    /// Deletes the rows of a job that is marked as deleted, and then the job.
    pub async fn finish_deletion(&self, job: JobId) -> Result<(), StoreError> {
        while !self.write(transaction!(|tx| delete_some(tx, job).await)).await? {}
        Ok(())
    }

    /// The next deleted jobs whose files may not be removed yet, with the time of their deletion. None after the last
    /// one.
    pub async fn deleted_jobs(&self, after: Option<JobId>) -> Result<Vec<(JobId, DateTime<Utc>)>, StoreError> {
        let next = "SELECT job_id, deleted_at FROM deleted_jobs WHERE job_id > $1 ORDER BY job_id LIMIT $2";
        Ok(sqlx::query_as(next)
            .bind(after.map_or(Uuid::nil(), |job| *job.as_uuid()))
            .bind(DELETED_PER_PAGE)
            .fetch_all(&self.read)
            .await?)
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
}

/// Marks a job as deleted, with the audit entry.
async fn mark(tx: &mut WriteTx, job: JobId, entry: &AuditEntry) -> Result<JobDeletion, StoreError> {
    let id = *job.as_uuid();
    let found: Option<Deletable> = sqlx::query_as(
        "SELECT state, finished_at IS NOT NULL AS is_finished, \
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
    // A repeated create or restart is told that the job was deleted; the key does not create it again.
    sqlx::query("UPDATE accepted SET body = NULL WHERE job_id = $1").bind(id).execute(&mut tx.db).await?;
    sqlx::query("INSERT INTO deleted_jobs (job_id, deleted_at) VALUES ($1, $2) ON CONFLICT DO NOTHING")
        .bind(id)
        .bind(entry.at)
        .execute(&mut tx.db)
        .await?;
    audit::record(&mut tx.db, Some(entry), job).await?;
    Ok(JobDeletion::Deleted)
}

/// Deletes at most [`ROWS_PER_STEP`] rows of a job, and the job itself if these were the last. Returns whether the job
/// is gone.
async fn delete_some(tx: &mut WriteTx, job: JobId) -> Result<bool, StoreError> {
    let mut left = ROWS_PER_STEP;
    for statement in [EVENTS, SUMMARIES].into_iter().chain(RECORDS) {
        let deleted = sqlx::query(statement).bind(job).bind(left.cast_signed()).execute(&mut tx.db).await?;
        left = left.saturating_sub(deleted.rows_affected());
        if left == 0 {
            return Ok(false);
        }
    }
    announce(tx, job).await?;
    for statement in DELETE_JOB {
        sqlx::query(statement).bind(job).execute(&mut tx.db).await?;
    }
    Ok(true)
}

/// Appends the event of a deletion that ends with this transaction.
async fn announce(tx: &mut WriteTx, job: JobId) -> Result<(), StoreError> {
    let marked = "SELECT user_id, deleted_at FROM jobs JOIN deleted_jobs ON job_id = jobs.id WHERE jobs.id = $1";
    let marked: Option<(String, DateTime<Utc>)> = sqlx::query_as(marked).bind(job).fetch_optional(&mut tx.db).await?;
    let Some((user, at)) = marked else { return Ok(()) };
    instance_events::append(tx, &user, at, &InstanceEventData::JobDeleted { id: job }).await.map(drop)
}
