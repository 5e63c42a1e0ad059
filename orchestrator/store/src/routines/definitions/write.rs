//! The statements that write definitions, each in the transaction of its change: the routine, its secrets, its waiting
//! runs, the audit entry and the event.

use chrono::{DateTime, Utc};
use protocol::{
    AuditOutcome, CreateRoutine, DisabledReason, Notify, RoutineChange, RoutineId, RoutineTrigger, RunReason,
};

use super::{NewRoutine, RoutineDefinition, RoutineStored, RoutineUpdate, load};
use crate::{
    AuditEntry, StoreError, accepted,
    access::{audit, secrets},
    routines::{
        publish,
        runs::{budgets, cancel},
    },
    sqlite::{
        rows::{column, text},
        write_tx::WriteTx,
    },
    users::user_storage,
};
use domain::routine::{matching::folded, secret::RoutineSecret};

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

pub(super) async fn create(
    tx: &mut WriteTx,
    NewRoutine { id, definition, max_of_user, key }: NewRoutine,
    entry: &AuditEntry,
) -> Result<RoutineStored, StoreError> {
    let user = &entry.user;
    if let Some(known) = accepted::lookup(&mut tx.db, key.as_ref(), entry.at).await? {
        return Ok(RoutineStored::Known(known));
    }
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
    if let Some(key) = &key {
        accepted::answer(&mut tx.db, key, (201, id.to_string()), None, entry.at).await?;
    }
    published(tx, id, RoutineChange::Created, entry.at).await
}

pub(super) async fn change(
    tx: &mut WriteTx,
    update: RoutineUpdate,
    entry: &AuditEntry,
) -> Result<RoutineStored, StoreError> {
    let id = update.routine;
    let Some(before) = load(&mut tx.db, id).await? else { return Ok(RoutineStored::NotFound) };
    if before.rev != update.rev {
        return Ok(RoutineStored::Changed);
    }
    user_storage::ensure_room(tx, &before.user_id).await?;
    let request = &update.definition.request;
    let columns = Columns::of(request)?;
    sqlx::query(
        "UPDATE routines SET rev = rev + 1, name = $2, description = $3, \
         state = CASE WHEN trigger_type = $4 THEN state END, trigger_type = $4, trigger = $5, action_type = $6, \
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

pub(super) async fn switch(
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

pub(super) async fn delete(tx: &mut WriteTx, id: RoutineId, entry: &AuditEntry) -> Result<bool, StoreError> {
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

/// Forgets the failures that the owner was notified of: the next one notifies again.
async fn forget_alerts(tx: &mut WriteTx, routine: RoutineId) -> Result<(), StoreError> {
    let forget = sqlx::query("DELETE FROM routine_alerts WHERE routine_id = $1").bind(routine);
    forget.execute(&mut tx.db).await?;
    Ok(())
}
