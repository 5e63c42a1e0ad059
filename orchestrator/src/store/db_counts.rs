//! Totals for the metrics.

use protocol::{JobReason, JobState};
use uuid::Uuid;

use super::{
    Store, StoreError,
    rows::{Place, count},
};
use crate::telemetry::metrics::DbCounts;

impl Store {
    /// Jobs by state and reason, and the number of events ever written.
    pub async fn counts(&self) -> Result<DbCounts, StoreError> {
        let counted: Vec<(String, Option<String>, i64)> =
            sqlx::query_as("SELECT state, reason, COUNT(*) FROM jobs GROUP BY state, reason")
                .fetch_all(&self.read)
                .await?;
        let place = Place { table: "jobs", id: Uuid::nil() };
        let mut jobs = Vec::with_capacity(counted.len());
        for (state, reason, counted) in counted {
            let state = JobState::parse(&state).ok_or_else(|| place.wrong("state"))?;
            let reason =
                reason.map(|reason| JobReason::parse(&reason).ok_or_else(|| place.wrong("reason"))).transpose()?;
            jobs.push((state, reason, count(counted)));
        }
        // Each event gets one cursor, also if it is deleted later.
        let last: Option<i64> = sqlx::query_scalar("SELECT MAX(cursor) FROM events").fetch_one(&self.read).await?;
        Ok(DbCounts { jobs, events: count(last.unwrap_or(0)) })
    }
}
