//! How long workspaces and records are kept after their jobs' end: the sweep that removes them, at the start and every hour.
//!
//! Only of jobs that the database says are over: a folder that no job of ours has is somebody else's. What containers printed
//! goes with the records.

use std::{io, path::PathBuf, time::Duration};

use chrono::{DateTime, TimeDelta, Utc};
use protocol::{ContainerName, JobId};
use tokio_util::sync::CancellationToken;

use super::Workspaces;
use crate::{
    clock::Clock,
    domain::job::JobRecord,
    store::{Kept, Store, StoreError, Trimmed},
};

/// Between sweeps.
const EVERY: Duration = Duration::from_hours(1);
/// A workspace that has not got its job for so long never will: copying the largest takes minutes.
const UNBORN_AGE: Duration = Duration::from_hours(1);

/// For how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    days: u64,
}

impl Retention {
    /// So many days after the end.
    pub const fn of_days(days: u64) -> Self {
        Self { days }
    }

    /// Whether the files of a job that ended then are still kept now.
    pub fn keeps(self, finished_at: DateTime<Utc>, now: DateTime<Utc>) -> bool {
        let kept = i64::try_from(self.days).ok().and_then(TimeDelta::try_days);
        let until = kept.and_then(|kept| finished_at.checked_add_signed(kept));
        until.is_none_or(|until| now < until)
    }
}

/// The sweep.
pub struct RetentionSweep {
    /// How long.
    pub retention: Retention,
    /// How much of what the database has about them.
    pub records: Kept,
    /// Which jobs are over, and since when.
    pub store: Store,
    /// What is removed.
    pub workspaces: Workspaces,
    /// What containers printed, a file for each.
    pub logs: PathBuf,
    /// Time.
    pub clock: Clock,
}

impl RetentionSweep {
    /// Sweeps until the process drains.
    pub async fn run(self, drain: CancellationToken) {
        loop {
            // What is kept too long does no harm: a database that is busy for a while, or full, ends nothing for that.
            if let Err(error) = self.sweep().await {
                tracing::warn!(error = &error as &dyn std::error::Error, "what is kept no longer could not be removed");
            }
            tokio::select! {
                () = drain.cancelled() => return,
                () = tokio::time::sleep(EVERY) => {}
            }
        }
    }

    async fn sweep(&self) -> Result<(), StoreError> {
        let trimmed = self.store.trim(&self.records, self.clock.now()).await?;
        if trimmed != Trimmed::default() {
            tracing::info!(
                jobs = trimmed.jobs,
                idempotency_keys = trimmed.keys,
                audit_rows = trimmed.audit_rows,
                "records trimmed"
            );
        }
        self.workspaces.clear_unborn(&self.store, UNBORN_AGE).await;
        let jobs = self.workspaces.jobs().unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot list the workspaces");
            vec![]
        });
        for job in jobs {
            let Some(record) = self.readable(job).await? else { continue };
            let finished_at = record.and_then(|job| job.finished_at);
            if finished_at.is_some_and(|at| !self.retention.keeps(at, self.clock.now())) {
                let workspaces = self.workspaces.clone();
                // One that cannot be removed has said so, and is met again.
                if tokio::task::spawn_blocking(move || workspaces.discard(job)).await.unwrap_or(false) {
                    tracing::info!(job.id = %job, "workspace removed: it was kept for {} days", self.retention.days);
                }
            }
        }
        self.sweep_logs().await
    }

    /// A job's record, or that there is no such job; none when its row makes no sense, so that what it has is kept.
    async fn readable(&self, job: JobId) -> Result<Option<Option<JobRecord>>, StoreError> {
        match self.store.job(job).await {
            Ok(record) => Ok(Some(record)),
            Err(error) if error.may_pass() => Err(error),
            Err(error) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(job.id = %job, error, "the row of this job makes no sense; its files are kept");
                Ok(None)
            }
        }
    }

    /// What containers printed is kept as long as a job's events are.
    async fn sweep_logs(&self) -> Result<(), StoreError> {
        let logs = match std::fs::read_dir(&self.logs) {
            Ok(logs) => logs,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => {
                tracing::warn!(%error, "cannot list what containers printed");
                return Ok(());
            }
        };
        let kept_for = Retention::of_days(self.records.days);
        for path in logs.flatten().map(|entry| entry.path()) {
            let Some(job) = path.file_name().and_then(|name| job_of(name.to_str()?)) else { continue };
            let Some(record) = self.readable(job).await? else { continue };
            let kept = match record {
                Some(job) => job.finished_at.is_none_or(|at| kept_for.keeps(at, self.clock.now())),
                None => false,
            };
            if !kept && let Err(error) = std::fs::remove_file(&path) {
                tracing::warn!(job.id = %job, %error, "cannot remove what a container printed");
            }
        }
        Ok(())
    }
}

/// Whose container printed into a file of this name.
fn job_of(file: &str) -> Option<JobId> {
    ContainerName::from_log_file(file)?.job_id()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::just_ended(7, 0, true)]
    #[case::the_last_second(7, 7 * 86_400 - 1, true)]
    #[case::over(7, 7 * 86_400, false)]
    #[case::kept_for_nothing(0, 0, false)]
    #[case::the_clock_went_back(0, -3_600, true)]
    #[case::for_ever(u64::MAX, i64::from(i32::MAX), true)]
    fn files_are_kept_until_then(#[case] days: u64, #[case] seconds: i64, #[case] kept: bool) {
        let end = DateTime::from_timestamp(1_700_000_000, 0).unwrap();
        assert_eq!(Retention::of_days(days).keeps(end, end + TimeDelta::seconds(seconds)), kept);
    }
}
