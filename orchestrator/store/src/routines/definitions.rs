//! Routines as their owners define them: created, changed, enabled, disabled and deleted.
//!
//! Secrets of a routine are stored with their owner's, sealed, in the transaction of the definition.

pub(super) mod cron_jobs;
pub(super) mod disable;
mod write;

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use protocol::{CreateRoutine, Routine, RoutineId, RoutineSession};
use sqlx::{Executor, Sqlite};

use self::write::{change, create, delete, switch};
use super::{
    super::{
        AuditEntry, IdempotencyKey, Lookup, SealedSecret, Store, StoreError,
        sqlite::{rows::text, write_tx::WriteTx},
    },
    rows::{RoutineRow, routine_columns},
};
use domain::routine::secret::RoutineSecret;

/// A checked definition, with what is stored beside it.
#[derive(Debug, Clone, PartialEq)]
pub struct RoutineDefinition {
    /// The definition, without its secrets. Its trigger is normalized, and the path of a webhook is set.
    pub request: CreateRoutine,
    pub session: RoutineSession,
    /// Whether payloads are kept.
    pub persist_payload: bool,
    /// When it fires next by its schedule.
    pub next_fire_at: Option<DateTime<Utc>>,
    /// Secrets that are set with it. A secret that the definition has no use for is deleted.
    pub secrets: Vec<(RoutineSecret, SealedSecret)>,
}

/// A routine to create.
#[derive(Debug, Clone, PartialEq)]
pub struct NewRoutine {
    pub id: RoutineId,
    pub definition: RoutineDefinition,
    /// How many the user may have.
    pub max_of_user: u32,
    /// The key of the request, for which the id is recorded.
    pub key: Option<IdempotencyKey>,
}

/// A change of a routine.
#[derive(Debug, Clone, PartialEq)]
pub struct RoutineUpdate {
    pub routine: RoutineId,
    /// The revision that the change was made from.
    pub rev: u64,
    pub definition: RoutineDefinition,
    /// Whether `next_fire_at` is written: it is not where the schedule is unchanged, so that no time is lost or
    /// repeated.
    pub is_rescheduled: bool,
    /// Whether it needs a successful run again.
    pub clears_verified: bool,
}

/// The outcome of storing a routine.
#[derive(Debug, Clone, PartialEq)]
pub enum RoutineStored {
    Done(Box<Routine>),
    /// Nothing is stored: the user has a routine with this name.
    NameTaken,
    /// Nothing is stored: another routine has this path.
    PathTaken,
    /// Nothing is stored: the user has as many as are allowed.
    TooMany {
        max: u32,
    },
    /// Nothing is stored: the routine has another revision now.
    Changed,
    NotFound,
    /// Nothing is stored: a request with this key was accepted before.
    Known(Lookup),
}

impl Store {
    pub async fn routine(&self, routine: RoutineId) -> Result<Option<Routine>, StoreError> {
        load(&self.read, routine).await
    }

    pub async fn routine_by_name(&self, user: &str, name: &str) -> Result<Option<Routine>, StoreError> {
        let row: Option<RoutineRow> =
            sqlx::query_as(concat!("SELECT ", routine_columns!(), " FROM routines WHERE user_id = $1 AND name = $2"))
                .bind(user)
                .bind(name)
                .fetch_optional(&self.read)
                .await?;
        row.map(RoutineRow::into_routine).transpose()
    }

    /// Stores a new routine, and calls `committed` once that is committed.
    pub async fn create_routine(
        &self,
        new: NewRoutine,
        entry: &AuditEntry,
        committed: impl FnOnce() + Send + 'static,
    ) -> Result<RoutineStored, StoreError> {
        let entry = entry.clone();
        let stored = self
            .write(transaction!(|tx| {
                let stored = create(tx, new, &entry).await?;
                tx.after_commit(move |_| committed());
                Ok(stored)
            }))
            .await;
        taken(stored)
    }

    /// Stores a change, unless the routine has changed since, and calls `committed` once that is committed.
    pub async fn update_routine(
        &self,
        update: RoutineUpdate,
        entry: &AuditEntry,
        committed: impl FnOnce() + Send + 'static,
    ) -> Result<RoutineStored, StoreError> {
        let entry = entry.clone();
        let stored = self
            .write(transaction!(|tx| {
                let stored = change(tx, update, &entry).await?;
                tx.after_commit(move |_| committed());
                Ok(stored)
            }))
            .await;
        taken(stored)
    }

    /// Enables or disables a routine at a user's request. One that is so already is unchanged.
    pub async fn set_routine_enabled(
        &self,
        routine: RoutineId,
        rev: u64,
        enabled: bool,
        next_fire_at: Option<DateTime<Utc>>,
        entry: &AuditEntry,
    ) -> Result<RoutineStored, StoreError> {
        let entry = entry.clone();
        self.write(transaction!(|tx| switch(tx, routine, rev, (enabled, next_fire_at), &entry).await)).await
    }

    /// Deletes a routine, and calls `committed` once that is committed. Its runs stay; those that wait end. False: no
    /// such routine.
    pub async fn delete_routine(
        &self,
        routine: RoutineId,
        entry: &AuditEntry,
        committed: impl FnOnce() + Send + 'static,
    ) -> Result<bool, StoreError> {
        let entry = entry.clone();
        self.write(transaction!(|tx| {
            let deleted = delete(tx, routine, &entry).await?;
            tx.after_commit(move |_| committed());
            Ok(deleted)
        }))
        .await
    }
}

pub(super) async fn load<'c>(
    db: impl Executor<'c, Database = Sqlite>,
    routine: RoutineId,
) -> Result<Option<Routine>, StoreError> {
    let row: Option<RoutineRow> =
        sqlx::query_as(concat!("SELECT ", routine_columns!(), " FROM routines WHERE id = $1"))
            .bind(routine)
            .fetch_optional(db)
            .await?;
    row.map(RoutineRow::into_routine).transpose()
}

/// Routines by their ids. One that cannot be read is logged and left out.
pub(super) async fn load_all(
    tx: &mut WriteTx,
    routines: &[RoutineId],
) -> Result<HashMap<RoutineId, Routine>, StoreError> {
    let rows: Vec<RoutineRow> = sqlx::query_as(concat!(
        "SELECT ",
        routine_columns!(),
        " FROM routines WHERE id IN (SELECT unhex(value, '-') FROM json_each($1))"
    ))
    .bind(text(&routines)?)
    .fetch_all(&mut tx.db)
    .await?;
    let mut known = HashMap::with_capacity(rows.len());
    for row in rows {
        match row.into_routine() {
            Ok(routine) => {
                known.insert(routine.id, routine);
            }
            Err(error) => {
                tracing::error!(error = &error as &dyn std::error::Error, "a routine cannot be read");
            }
        }
    }
    Ok(known)
}

/// A violated index says which value is taken.
fn taken(stored: Result<RoutineStored, StoreError>) -> Result<RoutineStored, StoreError> {
    let Err(StoreError::Database(sqlx::Error::Database(error))) = &stored else { return stored };
    if !error.is_unique_violation() {
        return stored;
    }
    let is_path = error.message().contains("webhook_path");
    Ok(if is_path { RoutineStored::PathTaken } else { RoutineStored::NameTaken })
}
