//! Totals for the metrics.

use protocol::{JobReason, JobState};

use super::{Store, StoreError, rows::count};
use crate::telemetry::metrics::{DbCounts, JobCount, UNKNOWN};

impl Store {
    /// Jobs by state and reason, and the number of events ever written.
    pub async fn counts(&self) -> Result<DbCounts, StoreError> {
        let counted: Vec<(String, Option<String>, i64)> =
            sqlx::query_as("SELECT state, reason, COUNT(*) FROM jobs GROUP BY state, reason")
                .fetch_all(&self.read)
                .await?;
        let jobs = counted.into_iter().map(|(state, reason, jobs)| JobCount {
            state: JobState::parse(&state),
            // Label values come from a fixed set, also if a row has another one.
            reason: reason.map_or("none", |reason| JobReason::parse(&reason).map_or(UNKNOWN, JobReason::as_str)),
            jobs: count(jobs),
        });
        let jobs = jobs.collect();
        // Each event gets one cursor, also if it is deleted later.
        let last: Option<i64> = sqlx::query_scalar("SELECT MAX(cursor) FROM events").fetch_one(&self.read).await?;
        Ok(DbCounts { jobs, events: count(last.unwrap_or(0)) })
    }
}
