//! Notifications about routines and their runs, in the transactions that cause them.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use protocol::{JobId, NotificationId, NotificationKind, Notify, RoutineId, RunId, RunReason};
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
    rows::hex,
};
use domain::routine::outcome::NotifiedFailure;

/// What a notification about a routine says.
pub(super) struct RoutineNotification {
    pub(super) kind: NotificationKind,
    pub(super) title: String,
    pub(super) text: String,
    pub(super) run: Option<RunId>,
    pub(super) job: Option<JobId>,
}

/// Stores a notification of a routine, which is also posted to the routine's webhook.
pub(super) async fn insert(
    tx: &mut WriteTx,
    routine: RoutineId,
    notice: RoutineNotification,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    insert_all(tx, vec![(routine, notice)], now).await
}

/// Like [`insert`], for different routines. A routine that does not exist gets none.
pub(super) async fn insert_all(
    tx: &mut WriteTx,
    notices: Vec<(RoutineId, RoutineNotification)>,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let ids: Vec<String> = notices.iter().map(|(routine, _)| hex(routine.as_uuid())).collect();
    let rows: Vec<(RoutineId, String, String)> = sqlx::query_as(
        "SELECT r.id, r.user_id, r.notify FROM json_each($1) AS j CROSS JOIN routines AS r ON r.id = unhex(j.value)",
    )
    .bind(text(&ids)?)
    .fetch_all(&mut tx.db)
    .await?;
    let mut routines: HashMap<RoutineId, (String, Notify)> = HashMap::with_capacity(rows.len());
    for (routine, user, notify) in rows {
        let row = RowRef { table: "routines", id: *routine.as_uuid() };
        let notify = row.json("notify", &notify).unwrap_or_else(|error| {
            tracing::warn!(%error, "the recipients of a routine cannot be read");
            Notify::default()
        });
        routines.insert(routine, (user, notify));
    }
    let (mut notifications, mut posts) = (Vec::with_capacity(notices.len()), Vec::new());
    for (routine, notice) in notices {
        let Some((user, notify)) = routines.get(&routine) else { continue };
        let id = NotificationId::generate();
        posts.extend(notify.webhook_url.clone().map(|url| (id, routine, user.clone(), url)));
        let notification = NewNotification {
            user: user.clone(),
            kind: notice.kind,
            title: Some(notice.title),
            text: notice.text,
            routine: Some(routine),
            job: notice.job,
            run: notice.run,
            call_id: None,
            channel: notify.channel.clone(),
        };
        notifications.push((id, notification));
    }
    notifications::insert_all(tx, notifications, now).await?;
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
    let name: Option<String> = sqlx::query_scalar(
        "UPDATE routines SET budget_notified = TRUE WHERE id = $1 AND budget_from = $2 AND NOT budget_notified \
         RETURNING name",
    )
    .bind(routine)
    .bind(budget.from)
    .fetch_optional(&mut tx.db)
    .await?;
    let Some(name) = name else { return Ok(()) };
    let notice = RoutineNotification {
        kind: NotificationKind::BudgetSpent,
        title: format!("Budget spent: {name}"),
        text: format!("The routine does not run until the next {}, unless you raise its budget.", budget.per),
        run: None,
        job: None,
    };
    insert(tx, routine, notice, now).await
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
