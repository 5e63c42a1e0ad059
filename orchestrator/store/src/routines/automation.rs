//! The switches of automation that an administrator sets, beside the environment's.

use chrono::{DateTime, Utc};
use protocol::AuditOutcome;
use sqlx::{Executor, FromRow, Sqlite};

use super::super::{AuditEntry, Store, StoreError, access::audit};

/// The switches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromRow)]
pub struct Automation {
    /// Whether triggers are switched on by an administrator.
    pub cron_enabled: bool,
    /// Whether triggers fire: they are switched on, and so they are in the environment.
    pub is_on: bool,
    /// Whether main sessions have heartbeats.
    pub heartbeats_enabled: bool,
    /// When triggers were last switched on: times of schedules before it that have no outcome are missed, and not
    /// caught up.
    pub resumed_at: Option<DateTime<Utc>>,
}

impl Store {
    /// The switches.
    pub async fn automation(&self) -> Result<Automation, StoreError> {
        load(&self.read).await
    }

    /// Switches triggers on or off, for all users. `by_environment` is the other switch.
    pub async fn set_cron_enabled(
        &self,
        enabled: bool,
        by_environment: bool,
        entry: &AuditEntry,
    ) -> Result<(), StoreError> {
        let entry = entry.clone();
        self.write(transaction!(|tx| {
            sqlx::query("UPDATE automation SET cron_enabled = $1").bind(enabled).execute(&mut tx.db).await?;
            note(&mut tx.db, by_environment, entry.at).await?;
            audit::insert(&mut tx.db, &entry, AuditOutcome::Done, None).await
        }))
        .await
    }

    /// Switches heartbeats on or off, for all users.
    pub async fn set_heartbeats_enabled(&self, enabled: bool, entry: &AuditEntry) -> Result<(), StoreError> {
        let entry = entry.clone();
        self.write(transaction!(|tx| {
            sqlx::query("UPDATE automation SET heartbeats_enabled = $1").bind(enabled).execute(&mut tx.db).await?;
            audit::insert(&mut tx.db, &entry, AuditOutcome::Done, None).await
        }))
        .await
    }

    /// Moves a time of switching on that is in the future to now: it was taken from a clock that has been set back since,
    /// and no time of a schedule would fire until then.
    pub async fn limit_resumed_at(&self, now: DateTime<Utc>) -> Result<(), StoreError> {
        self.write_one(transaction!(|tx| {
            sqlx::query("UPDATE automation SET resumed_at = $1 WHERE resumed_at > $1")
                .bind(now)
                .execute(&mut tx.db)
                .await?;
            Ok(())
        }))
        .await
    }

    /// Takes note of the environment's switch at the start: triggers that were off until now have missed their times.
    pub async fn sync_cron_setting(&self, by_environment: bool, now: DateTime<Utc>) -> Result<(), StoreError> {
        self.write_one(transaction!(|tx| note(&mut tx.db, by_environment, now).await)).await
    }
}

pub(super) async fn load<'c>(db: impl Executor<'c, Database = Sqlite>) -> Result<Automation, StoreError> {
    Ok(sqlx::query_as("SELECT cron_enabled, is_on, heartbeats_enabled, resumed_at FROM automation")
        .fetch_one(db)
        .await?)
}

async fn note<'c>(
    db: impl Executor<'c, Database = Sqlite>,
    by_environment: bool,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    sqlx::query(
        "UPDATE automation SET is_on = cron_enabled AND $1, \
         resumed_at = CASE WHEN cron_enabled AND $1 AND NOT is_on THEN $2 ELSE resumed_at END",
    )
    .bind(by_environment)
    .bind(now)
    .execute(db)
    .await?;
    Ok(())
}
