//! Old runs and old entries of firings that led to none are deleted: after 90 days, and beyond 2,000 of each of a routine.

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::AssertSqlSafe;
use uuid::Uuid;

use crate::{Store, StoreError, sqlite::key_walk::KeyWalk};

/// How long they are kept.
const LIFETIME: TimeDelta = TimeDelta::days(90);
/// Runs of one routine, and entries of one routine.
const MAX_PER_ROUTINE: i64 = 2_000;

/// The tables, each counted by itself, with the condition for what may be deleted.
const TABLES: [(&str, &str); 2] = [("routine_runs", "status NOT IN ('queued', 'running')"), ("firings", "TRUE")];

impl Store {
    /// Deletes a batch of what has ended long ago, and one of each routine that has too many. Returns how many.
    pub(crate) async fn trim_runs(&self, now: DateTime<Utc>) -> Result<u64, StoreError> {
        let mut trimmed = 0;
        for (table, condition) in TABLES {
            let expired = format!(
                "DELETE FROM {table} WHERE id IN (SELECT id FROM {table} WHERE created_at < $1 AND {condition} \
                 ORDER BY created_at LIMIT $2)"
            );
            trimmed += self.delete_batch(AssertSqlSafe(expired), now - LIFETIME).await?;
            let full = KeyWalk::over(table, "routine_id", MAX_PER_ROUTINE);
            let routines: Vec<Uuid> = self.keys(&full, Uuid::nil()).await?;
            let oldest = format!(
                "DELETE FROM {table} WHERE id IN (SELECT id FROM (SELECT id, status FROM {table} WHERE routine_id = $1 \
                 ORDER BY id DESC LIMIT $2 OFFSET {MAX_PER_ROUTINE}) WHERE {condition})"
            );
            for routine in routines {
                trimmed += self.delete_batch(AssertSqlSafe(oldest.clone()), routine).await?;
            }
        }
        Ok(trimmed)
    }
}
