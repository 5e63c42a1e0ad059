//! Notifications about routines and their runs, in the transactions that cause them.

use chrono::{DateTime, Utc};
use protocol::{
    JobId, NotificationId, NotificationKind, Notify, Routine, RoutineId, RoutineRun, RunId, RunReason, RunStatus,
};
use uuid::Uuid;

use super::{
    super::{NewNotification, StoreError, notification_deliveries, notifications, rows::RowRef, write_tx::WriteTx},
    admit::SpentBudget,
};
use domain::routine::outcome::{NotifiedFailure, counts_as_failure, should_notify};

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
    user: &str,
    notice: RoutineNotification,
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
    let notification = NewNotification {
        user: user.to_owned(),
        kind: notice.kind,
        title: Some(notice.title),
        text: notice.text,
        routine: Some(routine),
        job: notice.job,
        run: notice.run,
        call_id: None,
        channel: notify.channel,
    };
    let id = NotificationId::generate();
    notifications::insert_as(tx, id, &notification, now).await?;
    if let Some(url) = &notify.webhook_url {
        notification_deliveries::insert(tx, id, (routine, user), url, now).await?;
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
    let notice = RoutineNotification {
        kind: NotificationKind::BudgetSpent,
        title: format!("Budget spent: {name}"),
        text: format!("The routine does not run until the next {}, unless you raise its budget.", budget.per),
        run: None,
        job: None,
    };
    insert(tx, routine, &user, notice, now).await
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

/// Notifies the owner of a run, as the routine says. A failure that disables the routine has the notification of that.
pub(super) async fn run_ended(
    tx: &mut WriteTx,
    routine: &Routine,
    run: &RoutineRun,
    is_disabled: bool,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let notify: &Notify = &routine.notify;
    let (kind, verb) = match run.status {
        RunStatus::Attention if notify.on_attention || routine.deliver => (NotificationKind::RunAttention, "Attention"),
        RunStatus::Ok if notify.on_success => (NotificationKind::RunOk, "Done"),
        RunStatus::Failed if notify.on_failure && !is_disabled && run.reason.is_none_or(counts_as_failure) => {
            if !is_new_failure(tx, routine, run, now).await? {
                return Ok(());
            }
            (NotificationKind::RunFailed, "Failed")
        }
        _ => return Ok(()),
    };
    let failure = || {
        let reason = run.reason.map(RunReason::as_str).unwrap_or_default();
        run.message.as_ref().map_or_else(|| reason.to_owned(), |message| format!("{reason}: {message}"))
    };
    let text = match run.status {
        RunStatus::Failed => failure(),
        _ => run.result_summary.clone().unwrap_or_else(|| "The run had nothing to report.".to_owned()),
    };
    let title = format!("{verb}: {}", routine.name);
    let notice = RoutineNotification { kind, title, text, run: Some(run.id), job: run.job_id };
    insert(tx, routine.id, &routine.user_id, notice, now).await
}

/// Whether the owner does not know of this failure yet. If so, it is noted as known.
async fn is_new_failure(
    tx: &mut WriteTx,
    routine: &Routine,
    run: &RoutineRun,
    now: DateTime<Utc>,
) -> Result<bool, StoreError> {
    let Some(reason) = run.reason else { return Ok(true) };
    let known = known_alerts(tx, *routine.id.as_uuid()).await?;
    if !should_notify(reason, &known, now) {
        return Ok(false);
    }
    sqlx::query("INSERT OR REPLACE INTO routine_alerts (routine_id, reason, notified_at) VALUES ($1, $2, $3)")
        .bind(routine.id)
        .bind(reason.as_str())
        .bind(now)
        .execute(&mut tx.db)
        .await?;
    Ok(true)
}
