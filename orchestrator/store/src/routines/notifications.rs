//! Notifications about routines and their runs, in the transactions that cause them.

use chrono::{DateTime, Utc};
use protocol::{NotificationId, NotificationKind, Notify, RoutineId, RunReason};
use uuid::Uuid;

use super::{
    super::{
        NewNotification, StoreError,
        notifications::{self, deliveries},
        sqlite::{rows::RowRef, write_tx::WriteTx},
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
    let notify: Option<String> = sqlx::query_scalar("SELECT notify FROM routines WHERE id = $1")
        .bind(routine)
        .fetch_optional(&mut tx.db)
        .await?;
    let row = RowRef { table: "routines", id: *routine.as_uuid() };
    let notify: Notify = match notify.map(|text| row.json("notify", &text)).transpose() {
        Ok(notify) => notify.unwrap_or_default(),
        Err(error) => {
            tracing::warn!(%error, "the recipients of a routine cannot be read");
            Notify::default()
        }
    };
    let notification = NewNotification { routine: Some(routine), channel: notify.channel, ..notification };
    let id = NotificationId::generate();
    notifications::insert_as(tx, id, &notification, now).await?;
    if let Some(url) = &notify.webhook_url {
        deliveries::insert(tx, id, (routine, &notification.user), url, now).await?;
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
