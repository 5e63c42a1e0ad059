//! Routines as their owners define them: created, changed, enabled, disabled and deleted.
//!
//! Secrets of a routine are stored with their owner's, sealed, in the transaction of the definition.

pub(super) mod cron_jobs;
pub(super) mod disable;

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use protocol::{
    AuditOutcome, CreateRoutine, DisabledReason, Notify, Routine, RoutineChange, RoutineId, RoutineSession,
    RoutineTrigger, RunReason,
};
use sqlx::{Executor, Sqlite};

use super::{
    super::{
        AuditEntry, SealedSecret, Store, StoreError,
        access::{audit, secrets},
        sqlite::{
            rows::{column, text},
            write_tx::WriteTx,
        },
        users::user_storage,
    },
    publish,
    rows::{RoutineRow, hex, routine_columns},
    runs::{budgets, cancel},
};
use domain::routine::{matching::folded, secret::RoutineSecret};

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
        id: RoutineId,
        definition: RoutineDefinition,
        max_of_user: u32,
        entry: &AuditEntry,
        committed: impl FnOnce() + Send + 'static,
    ) -> Result<RoutineStored, StoreError> {
        let entry = entry.clone();
        let stored = self
            .write(transaction!(|tx| {
                let stored = create(tx, id, definition, max_of_user, &entry).await?;
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
    let ids: Vec<String> = routines.iter().map(|id| hex(id.as_uuid())).collect();
    let rows: Vec<RoutineRow> = sqlx::query_as(concat!(
        "SELECT ",
        routine_columns!(),
        " FROM routines WHERE id IN (SELECT unhex(value) FROM json_each($1))"
    ))
    .bind(text(&ids)?)
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

/// Forgets the failures that the owner was notified of: the next one notifies again.
async fn forget_alerts(tx: &mut WriteTx, routine: RoutineId) -> Result<(), StoreError> {
    let forget = sqlx::query("DELETE FROM routine_alerts WHERE routine_id = $1").bind(routine);
    forget.execute(&mut tx.db).await?;
    Ok(())
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

/// The columns that a definition sets, in the order of their arguments from `$3`.
struct Columns {
    trigger: String,
    action: String,
    guardrails: String,
    notify: String,
    webhook_path: Option<String>,
    event_source: Option<String>,
    event_type: Option<String>,
}

impl Columns {
    fn of(request: &CreateRoutine) -> Result<Self, StoreError> {
        let mut trigger = request.trigger.clone();
        let (mut webhook_path, mut event) = (None, None);
        match &mut trigger {
            RoutineTrigger::Webhook(webhook) => {
                (webhook.secret, webhook.has_secret) = (None, None);
                webhook_path.clone_from(&webhook.path);
            }
            RoutineTrigger::SystemEvent { source, event_type, .. } => {
                event = Some((folded(source), folded(event_type)));
            }
            _ => {}
        }
        let notify = Notify { webhook_secret: None, has_webhook_secret: None, ..request.notify.clone() };
        let (event_source, event_type) = event.unzip();
        Ok(Self {
            trigger: text(&trigger)?,
            action: text(&request.action)?,
            guardrails: text(&request.guardrails)?,
            notify: text(&notify)?,
            webhook_path,
            event_source,
            event_type,
        })
    }
}

async fn create(
    tx: &mut WriteTx,
    id: RoutineId,
    definition: RoutineDefinition,
    max_of_user: u32,
    entry: &AuditEntry,
) -> Result<RoutineStored, StoreError> {
    let user = &entry.user;
    user_storage::ensure_room(tx, user).await?;
    let count: i64 =
        sqlx::query_scalar("SELECT COUNT(*) FROM routines WHERE user_id = $1").bind(user).fetch_one(&mut tx.db).await?;
    if count >= i64::from(max_of_user) {
        return Ok(RoutineStored::TooMany { max: max_of_user });
    }
    let request = &definition.request;
    let (columns, disabled) = (Columns::of(request)?, (!request.enabled).then_some(DisabledReason::User));
    sqlx::query(
        "INSERT INTO routines (id, user_id, name, description, enabled, disabled_reason, disabled_at, trigger_type, trigger, \
         action_type, action, guardrails, notify, session, wake_mode, deliver, post_to_main, post_to_main_prefix, \
         persist_payload, webhook_path, event_source, event_type, next_fire_at, created_at, updated_at) \
         VALUES ($1, $2, $3, $4, $5, $6, CASE WHEN $5 THEN NULL ELSE $24 END, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, \
         $18, $19, $20, $21, CASE WHEN $5 THEN $22 END, $23, $23)",
    )
    .bind(id)
    .bind(user)
    .bind(&request.name)
    .bind(&request.description)
    .bind(request.enabled)
    .bind(disabled.map(DisabledReason::as_str))
    .bind(request.trigger.kind().as_str())
    .bind(columns.trigger)
    .bind(request.action.kind().as_str())
    .bind(columns.action)
    .bind(columns.guardrails)
    .bind(columns.notify)
    .bind(definition.session.as_str())
    .bind(request.wake_mode.as_str())
    .bind(request.deliver)
    .bind(request.post_to_main)
    .bind(&request.post_to_main_prefix)
    .bind(definition.persist_payload)
    .bind(columns.webhook_path)
    .bind(columns.event_source)
    .bind(columns.event_type)
    .bind(definition.next_fire_at)
    .bind(entry.at)
    .bind(entry.at)
    .execute(&mut tx.db)
    .await?;
    store_secrets(tx, id, user, &definition, entry.at).await?;
    audit::insert(&mut tx.db, entry, AuditOutcome::Done, None).await?;
    published(tx, id, RoutineChange::Created, entry.at).await
}

async fn change(tx: &mut WriteTx, update: RoutineUpdate, entry: &AuditEntry) -> Result<RoutineStored, StoreError> {
    let id = update.routine;
    let Some(before) = load(&mut tx.db, id).await? else { return Ok(RoutineStored::NotFound) };
    if before.rev != update.rev {
        return Ok(RoutineStored::Changed);
    }
    user_storage::ensure_room(tx, &before.user_id).await?;
    let request = &update.definition.request;
    let columns = Columns::of(request)?;
    sqlx::query(
        "UPDATE routines SET rev = rev + 1, name = $2, description = $3, trigger_type = $4, trigger = $5, action_type = $6, \
         action = $7, guardrails = $8, notify = $9, session = $10, wake_mode = $11, deliver = $12, post_to_main = $13, \
         post_to_main_prefix = $14, persist_payload = $15, webhook_path = $16, event_source = $17, event_type = $18, \
         next_fire_at = CASE WHEN NOT $19 THEN NULL WHEN $20 THEN $21 ELSE next_fire_at END, \
         enabled = $19, disabled_reason = CASE WHEN $19 THEN NULL ELSE COALESCE(disabled_reason, 'user') END, \
         disabled_at = CASE WHEN $19 THEN NULL ELSE COALESCE(disabled_at, $22) END, \
         consecutive_failures = CASE WHEN $19 AND NOT enabled THEN 0 ELSE consecutive_failures END, \
         verified = verified AND NOT $23, verify_rev = CASE WHEN $23 THEN rev + 1 ELSE verify_rev END, updated_at = $22 \
         WHERE id = $1",
    )
    .bind(id)
    .bind(&request.name)
    .bind(&request.description)
    .bind(request.trigger.kind().as_str())
    .bind(columns.trigger)
    .bind(request.action.kind().as_str())
    .bind(columns.action)
    .bind(columns.guardrails)
    .bind(columns.notify)
    .bind(update.definition.session.as_str())
    .bind(request.wake_mode.as_str())
    .bind(request.deliver)
    .bind(request.post_to_main)
    .bind(&request.post_to_main_prefix)
    .bind(update.definition.persist_payload)
    .bind(columns.webhook_path)
    .bind(columns.event_source)
    .bind(columns.event_type)
    .bind(request.enabled)
    .bind(update.is_rescheduled)
    .bind(update.definition.next_fire_at)
    .bind(entry.at)
    .bind(update.clears_verified)
    .execute(&mut tx.db)
    .await?;
    store_secrets(tx, id, &before.user_id, &update.definition, entry.at).await?;
    if request.enabled && !before.enabled {
        forget_alerts(tx, id).await?;
    }
    // A run that waits was fired by the old definition.
    if update.clears_verified || (before.enabled && !request.enabled) {
        cancel::cancel_queued(tx, id, RunReason::RoutineChanged, entry.at).await?;
    }
    audit::insert(&mut tx.db, entry, AuditOutcome::Done, None).await?;
    if let Some(routine) = load(&mut tx.db, id).await?
        && routine.guardrails.budget.map(|budget| budget.per) != before.guardrails.budget.map(|budget| budget.per)
    {
        budgets::recount(tx, &routine, entry.at).await?;
    }
    published(tx, id, RoutineChange::Updated, entry.at).await
}

async fn switch(
    tx: &mut WriteTx,
    id: RoutineId,
    rev: u64,
    (enabled, next_fire_at): (bool, Option<DateTime<Utc>>),
    entry: &AuditEntry,
) -> Result<RoutineStored, StoreError> {
    let Some(before) = load(&mut tx.db, id).await? else { return Ok(RoutineStored::NotFound) };
    if before.enabled == enabled {
        return Ok(RoutineStored::Done(Box::new(before)));
    }
    let changed = sqlx::query(
        "UPDATE routines SET rev = rev + 1, enabled = $2, disabled_reason = CASE WHEN $2 THEN NULL ELSE 'user' END, \
         disabled_at = CASE WHEN $2 THEN NULL ELSE $3 END, next_fire_at = CASE WHEN $2 THEN $4 END, updated_at = $3, \
         consecutive_failures = CASE WHEN $2 THEN 0 ELSE consecutive_failures END WHERE id = $1 AND rev = $5",
    )
    .bind(id)
    .bind(enabled)
    .bind(entry.at)
    .bind(next_fire_at)
    .bind(column(rev))
    .execute(&mut tx.db)
    .await?;
    if changed.rows_affected() == 0 {
        return Ok(RoutineStored::Changed);
    }
    if enabled {
        forget_alerts(tx, id).await?;
    } else {
        cancel::cancel_queued(tx, id, RunReason::RoutineChanged, entry.at).await?;
    }
    audit::insert(&mut tx.db, entry, AuditOutcome::Done, None).await?;
    let change = if enabled { RoutineChange::Enabled } else { RoutineChange::Disabled };
    published(tx, id, change, entry.at).await
}

async fn delete(tx: &mut WriteTx, id: RoutineId, entry: &AuditEntry) -> Result<bool, StoreError> {
    cancel::cancel_queued(tx, id, RunReason::RoutineChanged, entry.at).await?;
    match load(&mut tx.db, id).await {
        Ok(None) => return Ok(false),
        Ok(Some(routine)) => publish::routine(tx, RoutineChange::Deleted, &routine, entry.at).await?,
        // An unreadable routine can still be deleted.
        Err(StoreError::Inconsistent { .. }) => {}
        Err(error) => return Err(error),
    }
    for statement in [
        "DELETE FROM secrets WHERE name IN ($2, $3) AND user_id = (SELECT user_id FROM routines WHERE id = $1)",
        "DELETE FROM routine_alerts WHERE routine_id = $1",
        "DELETE FROM webhook_deliveries WHERE routine_id = $1",
        "DELETE FROM routines WHERE id = $1",
    ] {
        let mut query = sqlx::query(statement).bind(id);
        if statement.contains("$2") {
            query = query.bind(RoutineSecret::Webhook.name(id)).bind(RoutineSecret::Notify.name(id));
        }
        query.execute(&mut tx.db).await?;
    }
    audit::insert(&mut tx.db, entry, AuditOutcome::Done, None).await?;
    Ok(true)
}

/// The routine as it is now, with the event of its change.
async fn published(
    tx: &mut WriteTx,
    id: RoutineId,
    change: RoutineChange,
    at: DateTime<Utc>,
) -> Result<RoutineStored, StoreError> {
    let Some(routine) = load(&mut tx.db, id).await? else { return Ok(RoutineStored::NotFound) };
    publish::routine(tx, change, &routine, at).await?;
    Ok(RoutineStored::Done(Box::new(routine)))
}

/// Sets the secrets that come with a definition, and deletes those that it has no use for.
async fn store_secrets(
    tx: &mut WriteTx,
    id: RoutineId,
    user: &str,
    definition: &RoutineDefinition,
    at: DateTime<Utc>,
) -> Result<(), StoreError> {
    for (_, secret) in &definition.secrets {
        secrets::upsert(&mut tx.db, secret, at).await?;
    }
    let is_webhook = matches!(definition.request.trigger, RoutineTrigger::Webhook(_));
    let kinds = [
        (RoutineSecret::Webhook, is_webhook),
        (RoutineSecret::Notify, definition.request.notify.webhook_url.is_some()),
    ];
    for (secret, _) in kinds.into_iter().filter(|(_, is_used)| !is_used) {
        sqlx::query("DELETE FROM secrets WHERE user_id = $1 AND name = $2")
            .bind(user)
            .bind(secret.name(id))
            .execute(&mut tx.db)
            .await?;
    }
    sqlx::query(
        "UPDATE routines SET has_webhook_secret = EXISTS (SELECT 1 FROM secrets WHERE user_id = $2 AND name = $3), \
         has_notify_secret = EXISTS (SELECT 1 FROM secrets WHERE user_id = $2 AND name = $4) WHERE id = $1",
    )
    .bind(id)
    .bind(user)
    .bind(RoutineSecret::Webhook.name(id))
    .bind(RoutineSecret::Notify.name(id))
    .execute(&mut tx.db)
    .await?;
    Ok(())
}
