//! Notifications about routines and their runs, in the transactions that cause them.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use protocol::{NotificationId, NotificationKind, Notify, RoutineId, RunReason};
use uuid::Uuid;

use super::{
    super::{
        NewNotification, StoreError,
        notifications::{self, deliveries},
        sqlite::{
            rows::{RowRef, text},
            write_tx::WriteTx,
        },
    },
    firings::admit::SpentBudget,
};
use domain::routine::outcome::NotifiedFailure;

/// Stores a notification of a routine, for the recipients that the routine names: its channel and its webhook.
pub(super) async fn insert(
    tx: &mut WriteTx,
    routine: RoutineId,
    notification: NewNotification,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    insert_all(tx, vec![(routine, notification)], now).await
}

/// Like [`insert`], for different routines.
pub(super) async fn insert_all(
    tx: &mut WriteTx,
    notifications: Vec<(RoutineId, NewNotification)>,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let ids: Vec<RoutineId> = notifications.iter().map(|(routine, _)| *routine).collect();
    let rows: Vec<(RoutineId, String)> = sqlx::query_as(
        "SELECT r.id, r.notify FROM json_each($1) AS j CROSS JOIN routines AS r ON r.id = unhex(j.value, '-')",
    )
    .bind(text(&ids)?)
    .fetch_all(&mut tx.db)
    .await?;
    let mut routines: HashMap<RoutineId, Notify> = HashMap::with_capacity(rows.len());
    for (routine, notify) in rows {
        let row = RowRef { table: "routines", id: *routine.as_uuid() };
        let notify = row.json("notify", &notify).unwrap_or_else(|error| {
            tracing::warn!(%error, "the recipients of a routine cannot be read");
            Notify::default()
        });
        routines.insert(routine, notify);
    }
    let (mut stored, mut posts) = (Vec::with_capacity(notifications.len()), Vec::new());
    for (routine, notification) in notifications {
        let (id, notify) = (NotificationId::generate(), routines.get(&routine).cloned().unwrap_or_default());
        posts.extend(notify.webhook_url.map(|url| (id, routine, notification.user.clone(), url)));
        stored.push((id, NewNotification { routine: Some(routine), channel: notify.channel, ..notification }));
    }
    notifications::insert_all(tx, stored, now).await?;
    for (id, routine, user, url) in posts {
        deliveries::insert(tx, id, (routine, &user), &url, now).await?;
    }
    Ok(())
}

/// Tells the owner once that the budget of a period is spent.
pub(super) async fn budget_spent(
    tx: &mut WriteTx,
    routine: RoutineId,
    budget: &SpentBudget,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let named: Option<(String, String)> = sqlx::query_as(
        "UPDATE routines SET budget_notified = TRUE WHERE id = $1 AND budget_from = $2 AND NOT budget_notified \
         RETURNING user_id, name",
    )
    .bind(routine)
    .bind(budget.from)
    .fetch_optional(&mut tx.db)
    .await?;
    let Some((user, name)) = named else { return Ok(()) };
    let (title, per) = (format!("Budget spent: {name}"), budget.per);
    let text = format!("The routine does not run until the next {per}, unless you raise its budget.");
    insert(tx, routine, NewNotification::new(&user, NotificationKind::BudgetSpent, title, text), now).await
}

/// The failures of which the owner has been notified since the last successful run.
pub(super) async fn known_alerts(tx: &mut WriteTx, routine: Uuid) -> Result<Vec<NotifiedFailure>, StoreError> {
    let rows: Vec<(String, DateTime<Utc>)> =
        sqlx::query_as("SELECT reason, notified_at FROM routine_alerts WHERE routine_id = $1")
            .bind(routine)
            .fetch_all(&mut tx.db)
            .await?;
    let row = RowRef { table: "routine_alerts", id: routine };
    rows.into_iter()
        .map(|(reason, notified_at)| {
            Ok(NotifiedFailure { reason: row.known("reason", RunReason::parse(&reason))?, notified_at })
        })
        .collect()
}

/// Notes that the owner is told of a failure.
pub(super) async fn note_alert(
    tx: &mut WriteTx,
    routine: RoutineId,
    reason: RunReason,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    sqlx::query("INSERT OR REPLACE INTO routine_alerts (routine_id, reason, notified_at) VALUES ($1, $2, $3)")
        .bind(routine)
        .bind(reason.as_str())
        .bind(now)
        .execute(&mut tx.db)
        .await?;
    Ok(())
}
