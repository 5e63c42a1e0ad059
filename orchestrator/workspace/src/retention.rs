//! The hourly retention sweep: removes workspaces, records and container logs some days after their job has finished.
//!
//! Removes nothing of a job that the database does not report as finished: a directory without a job's row may belong
//! to someone else. Container logs are kept as long as the records.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use chrono::{DateTime, TimeDelta, Utc};
use protocol::{ContainerName, JobId};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::Workspaces;
use base::clock::Clock;
use domain::job::JobRecord;
use store::{RetentionLimits, Store, StoreError, Trimmed};

/// Age at which a provisional workspace counts as abandoned: copying the largest one takes minutes.
const MAX_PROVISIONAL_AGE: Duration = Duration::from_hours(1);

/// Time after which no container of a deleted job runs any more.
const MAX_CONTAINER_END: TimeDelta = TimeDelta::hours(1);

/// How long something is kept after its job has finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetentionPeriod {
    days: u64,
}

impl RetentionPeriod {
    /// A period of whole days; 0 keeps nothing.
    pub const fn from_days(days: u64) -> Self {
        Self { days }
    }

    /// Whether what belongs to a job that finished at `finished_at` is still kept at `now`.
    pub fn contains(self, finished_at: DateTime<Utc>, now: DateTime<Utc>) -> bool {
        let period = i64::try_from(self.days).ok().and_then(TimeDelta::try_days);
        let end = period.and_then(|period| finished_at.checked_add_signed(period));
        end.is_none_or(|end| now < end)
    }
}

pub struct RetentionSweep {
    pub retention: RetentionPeriod,
    /// For records and container logs.
    pub records: RetentionLimits,
    /// Says which jobs have finished, and when.
    pub store: Store,
    pub workspaces: Workspaces,
    /// The directory of container logs, one file per container.
    pub logs: PathBuf,
    /// The current time.
    pub clock: Clock,
}

impl RetentionSweep {
    /// Sweeps at once and then at each tick until `drain` fires. A sweep that is cut off is continued by the next one.
    pub async fn run(self, tick: Arc<Notify>, drain: CancellationToken) {
        let sweeps = async {
            loop {
                self.sweep().await;
                tick.notified().await;
            }
        };
        drain.run_until_cancelled(sweeps).await;
    }

    /// Removes files first: a write to the database may need the space that they take.
    async fn sweep(&self) {
        self.workspaces.remove_abandoned(&self.store, MAX_PROVISIONAL_AGE).await;
        let parts = [
            ("deleted jobs", self.sweep_deleted().await),
            ("workspaces", self.sweep_workspaces().await),
            ("container logs", self.sweep_logs().await),
        ];
        for (part, result) in parts {
            // Not fatal, since the database may be busy or full: the next sweep retries.
            if let Err(error) = result {
                tracing::warn!(part, error = &error as &dyn std::error::Error, "retention sweep failed");
            }
        }
        self.trim_records().await;
    }

    async fn trim_records(&self) {
        let Trimmed { rows, errors, excess_bytes } = self.store.trim(&self.records, self.clock.now()).await;
        for (part, error) in &errors {
            // Not fatal, since the database may be busy or full: the next sweep retries.
            tracing::warn!(part, error = error as &dyn std::error::Error, "records could not be trimmed");
        }
        if let Some(excess_bytes) = excess_bytes {
            let max_mb = self.records.max_mb;
            tracing::error!(
                excess_bytes,
                max_mb,
                "the records exceed their limit although nothing older than a day is left"
            );
        }
        if !rows.is_empty() {
            tracing::info!(?rows, "records trimmed");
        }
    }

    /// Removes what is left of deleted jobs: a container that had not ended may have written again.
    async fn sweep_deleted(&self) -> Result<(), StoreError> {
        let mut after = None;
        loop {
            let deleted = self.store.deleted_jobs(after).await?;
            let Some((last, _)) = deleted.last() else { return Ok(()) };
            after = Some(*last);
            for (job, deleted_at) in deleted {
                self.store.finish_deletion(job).await?;
                let (workspaces, logs) = (self.workspaces.clone(), self.logs.clone());
                let remove = move || workspaces.remove(job) && remove_container_logs(&logs, job);
                let is_removed = tokio::task::spawn_blocking(remove).await.unwrap_or(false);
                if is_removed && self.clock.now() - deleted_at > MAX_CONTAINER_END {
                    self.store.forget_deleted_job(job).await?;
                }
            }
        }
    }

    async fn sweep_workspaces(&self) -> Result<(), StoreError> {
        let jobs = self.workspaces.jobs().unwrap_or_else(|error| {
            tracing::warn!(%error, "cannot list the workspaces");
            vec![]
        });
        for job in jobs {
            let JobRow::Valid(record) = self.load(job).await? else { continue };
            if record.finished_at().is_none_or(|at| self.retention.contains(at, self.clock.now())) {
                continue;
            }
            let workspaces = self.workspaces.clone();
            // A failure is logged by `remove`; the next sweep retries.
            if tokio::task::spawn_blocking(move || workspaces.remove(job)).await.unwrap_or(false) {
                tracing::info!(job.id = %job, days = self.retention.days, "workspace removed after its retention period");
            }
        }
        Ok(())
    }

    async fn sweep_logs(&self) -> Result<(), StoreError> {
        let logs = match std::fs::read_dir(&self.logs) {
            Ok(logs) => logs,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => {
                tracing::warn!(%error, "cannot list the container logs");
                return Ok(());
            }
        };
        let retention = RetentionPeriod::from_days(self.records.days);
        for path in logs.flatten().map(|entry| entry.path()) {
            let Some(job) = path.file_name().and_then(|name| job_of_log(name.to_str()?)) else { continue };
            let is_kept = match self.load(job).await? {
                JobRow::Valid(record) => record.finished_at().is_none_or(|at| retention.contains(at, self.clock.now())),
                JobRow::Missing => false,
                JobRow::Invalid => true,
            };
            if !is_kept && let Err(error) = std::fs::remove_file(&path) {
                tracing::warn!(job.id = %job, %error, "cannot remove a container log");
            }
        }
        Ok(())
    }

    /// Fails only if the database may answer later.
    async fn load(&self, job: JobId) -> Result<JobRow, StoreError> {
        match self.store.job(job).await {
            Ok(Some(record)) => Ok(JobRow::Valid(Box::new(record))),
            Ok(None) => Ok(JobRow::Missing),
            Err(error) if error.is_transient() => Err(error),
            Err(error) => {
                let error: &dyn std::error::Error = &error;
                tracing::warn!(job.id = %job, error, "invalid job row; the job's files are kept");
                Ok(JobRow::Invalid)
            }
        }
    }
}

/// Removes the saved output of a job's containers. A failure is logged; false then.
pub fn remove_container_logs(logs: &Path, job: JobId) -> bool {
    let mut is_removed = true;
    for path in std::fs::read_dir(logs).into_iter().flatten().flatten().map(|entry| entry.path()) {
        let of_job = path.file_name().and_then(|name| job_of_log(name.to_str()?));
        if of_job == Some(job)
            && let Err(error) = std::fs::remove_file(&path)
        {
            tracing::warn!(job.id = %job, %error, "cannot remove a container log");
            is_removed = false;
        }
    }
    is_removed
}

/// A job's row as the sweep sees it.
enum JobRow {
    Valid(Box<JobRecord>),
    Missing,
    /// This version cannot decode it.
    Invalid,
}

/// The job whose container's log has this file name.
fn job_of_log(file_name: &str) -> Option<JobId> {
    ContainerName::from_log_file(file_name)?.job_id()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use protocol::JobState;
    use rstest::rstest;

    use super::*;
    use domain::job::sample;

    #[tokio::test]
    async fn files_are_removed_although_the_database_cannot_be_trimmed() {
        let root = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}/gantry.db", root.path().display());
        let (store, workspaces) = (Store::open(&url).await.unwrap(), Workspaces::new(root.path().join("workspaces")));
        let (finished, logs) = (sample::job(JobState::Pending), root.path().join("logs"));
        let now = Clock::system().now();
        store.create_job(finished.clone(), None, None).await.unwrap();
        store.transition(finished.id, now, None, move |job| job.request_cancel(now, None)).await.unwrap();
        workspaces.create(finished.id, &[]).unwrap();
        fs::create_dir(&logs).unwrap();
        let log = logs.join(format!("{}.log", ContainerName::job(finished.id, 1)));
        fs::write(&log, "printed").unwrap();
        store.execute("ALTER TABLE accepted RENAME TO hidden").await.unwrap();
        let sweep = RetentionSweep {
            retention: RetentionPeriod::from_days(0),
            records: RetentionLimits { days: 0, audit_days: 0, max_mb: 0 },
            store,
            workspaces: workspaces.clone(),
            logs,
            clock: Clock::system(),
        };
        sweep.sweep().await;
        assert!(!workspaces.path(finished.id).exists() && !log.exists());
        sweep.store.close().await;
    }

    #[rstest]
    #[case::just_finished(7, 0, true)]
    #[case::last_second(7, 7 * 86_400 - 1, true)]
    #[case::expired(7, 7 * 86_400, false)]
    #[case::zero_days(0, 0, false)]
    #[case::clock_stepped_back(0, -3_600, true)]
    #[case::unlimited(u64::MAX, i64::from(i32::MAX), true)]
    fn a_period_ends_its_days_after_the_job(#[case] days: u64, #[case] seconds: i64, #[case] is_kept: bool) {
        let end = DateTime::from_timestamp(1_700_000_000, 0).unwrap();
        assert_eq!(RetentionPeriod::from_days(days).contains(end, end + TimeDelta::seconds(seconds)), is_kept);
    }
}
