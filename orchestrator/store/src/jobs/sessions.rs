//! Workers' sessions: opened once per attempt; a rejected call is recorded once per attempt.

use chrono::{DateTime, Utc};
use protocol::{EventData, JobId, LimitName};
use serde_json::Value;

use crate::{
    Store, StoreError,
    events::{self, EventStamp},
};

impl Store {
    /// Opens the session of a live attempt with the SHA-256 of its secret. False when it is already open or the attempt
    /// is over.
    pub async fn open_session(&self, job: JobId, attempt: u32, secret_hash: &str) -> Result<bool, StoreError> {
        let secret_hash = secret_hash.to_owned();
        self.write_one(transaction!(|tx| {
            let opened = sqlx::query(
                "UPDATE jobs SET session_hash = $1 WHERE id = $2 AND attempt = $3 AND session_attempt = $3 \
                 AND session_hash IS NULL AND token_hash IS NOT NULL AND state IN ('in_progress', 'stuck')",
            )
            .bind(secret_hash)
            .bind(job)
            .bind(i64::from(attempt))
            .execute(&mut tx.db)
            .await?;
            Ok(opened.rows_affected() == 1)
        }))
        .await
    }

    /// Records a call that has the attempt's token but not its session secret: one event per attempt.
    pub async fn record_session_rejected(
        &self,
        job: JobId,
        attempt: u32,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        self.write(transaction!(|tx| {
            let recorded = sqlx::query(
                "UPDATE jobs SET session_rejected_attempt = $1 WHERE id = $2 AND attempt = $1 \
                 AND session_rejected_attempt IS DISTINCT FROM $1 AND state IN ('in_progress', 'stuck')",
            )
            .bind(i64::from(attempt))
            .bind(job)
            .execute(&mut tx.db)
            .await?;
            if recorded.rows_affected() == 1 {
                let event = EventData::Limit { limit: LimitName::SessionRejected, value: Value::from(1) };
                events::append(tx, EventStamp { job, attempt, at: now }, &[event]).await?;
            }
            Ok(())
        }))
        .await
    }
}
