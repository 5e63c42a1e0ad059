//! The open jobs as the dispatcher keeps them in memory, read at one point in the order of commits, and what the store
//! tells of each later change.

use std::{collections::HashSet, sync::Arc};

use chrono::{DateTime, Utc};
use protocol::{ContainerInfo, JobId, JobState, Limits};
use sqlx::{FromRow, Row as _, SqliteConnection, sqlite::SqliteRow};
use uuid::Uuid;

use crate::{
    Store, StoreError,
    sqlite::rows::{RowRef, placement},
};
use domain::job::{AttemptContainer, JobRecord, OpenActivity, OpenJob, OpenStage};

/// A committed change, in the order of commits.
#[derive(Debug, Clone, Copy)]
pub enum JobChange<'a> {
    Created(&'a JobRecord),
    Transitioned {
        /// The revision before it.
        from: i64,
        /// As it left the job.
        job: &'a JobRecord,
    },
    /// What is known of the container of a job's attempt was recorded.
    ContainerRecorded {
        job: JobId,
        attempt: u32,
        container: &'a ContainerInfo,
    },
    /// The worker of a job's attempt has called for the first time.
    WorkerCalled {
        job: JobId,
        attempt: u32,
    },
    /// A prompt for the job's worker.
    PromptAdded(JobId),
    /// The open jobs were read: all changes before this one are in them, and none after it.
    Read(&'a OpenJobs),
    /// The revisions of the open jobs were summed, at this point in the order of changes.
    Summed(RevisionSum),
    /// A write failed, and may be committed nevertheless.
    Uncertain,
}

/// The open jobs.
#[derive(Debug, Default)]
pub struct OpenJobs {
    /// Jobs with valid rows.
    pub jobs: Vec<OpenJob>,
    /// Jobs with inconsistent rows, each with its error.
    pub unreadable: Vec<(JobId, StoreError)>,
    /// Of both.
    pub sum: RevisionSum,
}

/// A number of jobs and the sum of their revisions: another one once any of them has changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, FromRow)]
pub struct RevisionSum {
    pub jobs: i64,
    pub revisions: i64,
}

#[derive(FromRow)]
struct OpenJobRow {
    id: Uuid,
    rev: i64,
    user_id: String,
    placement: String,
    priority: i64,
    parent_id: Option<JobId>,
    limits: String,
    attempt: i64,
    repair_attempts: i64,
    state: String,
    message: Option<String>,
    held: bool,
    not_before: Option<DateTime<Utc>>,
    cancel_requested_at: Option<DateTime<Utc>>,
    worker_seen_at: Option<DateTime<Utc>>,
    container: Option<String>,
}

impl OpenJobRow {
    fn into_job(self) -> Result<OpenJob, StoreError> {
        let row = RowRef { table: "jobs", id: self.id };
        let container = self.container.map(|json| row.json::<ContainerInfo>("container", &json)).transpose()?;
        let has_worker_called = self.worker_seen_at.is_some();
        let activity = match (row.known("state", JobState::parse(&self.state))?, self.cancel_requested_at) {
            (JobState::InProgress | JobState::Stuck, Some(_)) => Some(OpenActivity::Stopping),
            (JobState::InProgress, None) => Some(OpenActivity::Working),
            (JobState::Stuck, None) => Some(OpenActivity::Stuck { message: self.message.unwrap_or_default() }),
            _ => None,
        };
        Ok(OpenJob {
            id: JobId::from_uuid(self.id),
            rev: self.rev,
            user: self.user_id.into(),
            placement: row.known("placement", placement(&self.placement))?,
            priority: row.number("priority", self.priority)?,
            parent: self.parent_id,
            timeout_seconds: row.json::<Limits>("limits", &self.limits)?.timeout_seconds,
            attempt: row.number("attempt", self.attempt)?,
            repair_attempts: row.number("repair_attempts", self.repair_attempts)?,
            stage: match activity {
                Some(activity) => OpenStage::Running { has_worker_called, activity },
                None => OpenStage::Queued { held: self.held, not_before: self.not_before },
            },
            container: container.as_ref().map(AttemptContainer::of),
        })
    }
}

impl OpenJobs {
    fn decode(rows: &[SqliteRow], sum: RevisionSum) -> Self {
        let mut found = Self { sum, ..Self::default() };
        for row in rows {
            match OpenJobRow::from_row(row).map_err(StoreError::from).and_then(OpenJobRow::into_job) {
                Ok(job) => found.jobs.push(job),
                Err(error) => {
                    // The id may be unreadable as well.
                    let id = row.try_get("id").map_or_else(|_| JobId::nil(), JobId::from_uuid);
                    found.unreadable.push((id, error));
                }
            }
        }
        found
    }

    /// The ids of the jobs with inconsistent rows.
    pub fn unreadable_ids(&self) -> HashSet<JobId> {
        self.unreadable.iter().map(|(id, _)| *id).collect()
    }
}

impl Store {
    /// Has the observer told of all open jobs ([`JobChange::Read`]). They are read on the connection that writes, so
    /// that no commit comes in between.
    pub async fn read_open_jobs(&self) -> Result<(), StoreError> {
        let inconsistent = Arc::clone(&self.inconsistent);
        self.write(transaction!(|tx| {
            let rows = sqlx::query(
                "SELECT id, rev, user_id, placement, priority, parent_id, limits, attempt, repair_attempts, state, message, \
                 held, not_before, cancel_requested_at, worker_seen_at, container FROM jobs \
                 WHERE state IN ('pending', 'in_progress', 'stuck')",
            )
            .fetch_all(&mut tx.db)
            .await?;
            let sum = sum_of_open_jobs(&mut tx.db).await?;
            tx.after_commit(move |committed| {
                let open = OpenJobs::decode(&rows, sum);
                open.unreadable.iter().for_each(|(_, error)| inconsistent.report(error));
                (committed.observer)(JobChange::Read(&open));
            });
            Ok(())
        }))
        .await
    }

    /// Has the observer told of the sum of the open jobs ([`JobChange::Summed`]). Takes a fraction of the time of
    /// reading them, so that other writes do not wait for it.
    pub async fn sum_open_jobs(&self) -> Result<(), StoreError> {
        self.write(transaction!(|tx| {
            let sum = sum_of_open_jobs(&mut tx.db).await?;
            tx.after_commit(move |committed| (committed.observer)(JobChange::Summed(sum)));
            Ok(())
        }))
        .await
    }

    /// Logs and counts a row that makes no sense, once.
    pub fn report_inconsistent(&self, error: &StoreError) {
        self.inconsistent.report(error);
    }

    /// A number that is another one once a program other than this process has written to the database.
    pub async fn data_version(&self) -> Result<i64, StoreError> {
        // Only the connection that writes does not see this process's own writes as another's.
        self.write_one(transaction!(|tx| {
            Ok(sqlx::query_scalar("PRAGMA data_version").fetch_one(&mut tx.db).await?)
        }))
        .await
    }
}

async fn sum_of_open_jobs(db: &mut SqliteConnection) -> Result<RevisionSum, StoreError> {
    let sum = sqlx::query_as(
        "SELECT COUNT(*) AS jobs, CAST(TOTAL(rev) AS INTEGER) AS revisions FROM jobs \
         WHERE state IN ('pending', 'in_progress', 'stuck')",
    );
    Ok(sum.fetch_one(db).await?)
}
