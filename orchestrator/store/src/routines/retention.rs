//! Old runs are deleted: after 90 days, and beyond 2,000 of a routine.

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use super::super::{Store, StoreError};

/// How long runs are kept.
const LIFETIME: TimeDelta = TimeDelta::days(90);
/// Runs of one routine.
const MAX_PER_ROUTINE: i64 = 2_000;
/// Rows in one transaction, so that other writes do not wait long.
const ROWS_PER_BATCH: i64 = 1_000;

impl Store {
    /// Deletes runs that have ended long ago, and the oldest of routines that have too many. Returns how many.
    pub(crate) async fn trim_runs(&self, now: DateTime<Utc>) -> Result<u64, StoreError> {
        let mut trimmed = 0;
        while let rows @ 1.. = self.trim_expired_runs(now - LIFETIME).await? {
            trimmed += rows;
        }
        let routines: Vec<Uuid> =
            sqlx::query_scalar("SELECT routine_id FROM routine_runs GROUP BY routine_id HAVING COUNT(*) > $1")
                .bind(MAX_PER_ROUTINE)
                .fetch_all(&self.read)
                .await?;
        for routine in routines {
            while let rows @ 1.. = self.trim_runs_of(routine).await? {
                trimmed += rows;
            }
        }
        Ok(trimmed)
    }

    async fn trim_expired_runs(&self, before: DateTime<Utc>) -> Result<u64, StoreError> {
        self.write_one(transaction!(|tx| {
            let rows = sqlx::query(
                "DELETE FROM routine_runs WHERE id IN (SELECT id FROM routine_runs WHERE created_at < $1 \
                 AND status NOT IN ('queued', 'running') ORDER BY created_at LIMIT $2)",
            )
            .bind(before)
            .bind(ROWS_PER_BATCH);
            Ok(rows.execute(&mut tx.db).await?.rows_affected())
        }))
        .await
    }

    async fn trim_runs_of(&self, routine: Uuid) -> Result<u64, StoreError> {
        self.write_one(transaction!(|tx| {
            let rows = sqlx::query(
                "DELETE FROM routine_runs WHERE id IN (SELECT id FROM (SELECT id, status FROM routine_runs \
                 WHERE routine_id = $1 ORDER BY id DESC LIMIT $2 OFFSET $3) WHERE status NOT IN ('queued', 'running'))",
            )
            .bind(routine)
            .bind(ROWS_PER_BATCH)
            .bind(MAX_PER_ROUTINE);
            Ok(rows.execute(&mut tx.db).await?.rows_affected())
        }))
        .await
    }
}
