//! Totals for the metrics.

use protocol::{JobReason, JobState};

use super::rows::count;
use crate::{Store, StoreError};
use telemetry::metrics::{DbCounts, JobCount, UNKNOWN};

impl Store {
    /// Jobs and deleted jobs by state and reason, and the number of events ever written.
    pub async fn counts(&self) -> Result<DbCounts, StoreError> {
        let jobs = self.count_jobs("SELECT state, NULLIF(reason, ''), SUM(jobs) FROM job_counts GROUP BY state, reason HAVING SUM(jobs) > 0").await?;
        let deleted = self.count_jobs("SELECT state, NULLIF(reason, ''), jobs FROM deleted_job_counts").await?;
        // Each event gets one cursor, also if it is deleted later.
        let last: Option<i64> = sqlx::query_scalar("SELECT seq FROM sqlite_sequence WHERE name = 'events'")
            .fetch_optional(&self.read)
            .await?;
        Ok(DbCounts { jobs, deleted, events: count(last.unwrap_or(0)) })
    }

    async fn count_jobs(&self, query: &'static str) -> Result<Vec<JobCount>, StoreError> {
        let counted: Vec<(String, Option<String>, i64)> = sqlx::query_as(query).fetch_all(&self.read).await?;
        let jobs = counted.into_iter().map(|(state, reason, jobs)| JobCount {
            state: JobState::parse(&state),
            // Label values come from a fixed set, also if a row has another one.
            reason: reason.map_or("none", |reason| JobReason::parse(&reason).map_or(UNKNOWN, JobReason::as_str)),
            jobs: count(jobs),
        });
        Ok(jobs.collect())
    }
}
