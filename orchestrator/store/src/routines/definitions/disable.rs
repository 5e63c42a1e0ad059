//! Routines that Gantry disables, and the notifications of their owners.

use chrono::{DateTime, Utc};
use protocol::{DisabledReason, NotificationKind, RoutineChange, RoutineId, RunReason};

use crate::{
    NewNotification, StoreError,
    routines::{definitions, notifications, publish, runs::cancel},
    sqlite::write_tx::WriteTx,
};

/// Disables a routine. One that is disabled already, or deleted, is unchanged.
pub(in crate::routines) async fn disable(
    tx: &mut WriteTx,
    routine: RoutineId,
    reason: DisabledReason,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let named: Option<(String, String)> = sqlx::query_as(
        "UPDATE routines SET enabled = FALSE, disabled_reason = $2, disabled_at = $3, next_fire_at = NULL, rev = rev + 1, \
         updated_at = $3 WHERE id = $1 AND enabled RETURNING user_id, name",
    )
    .bind(routine)
    .bind(reason.as_str())
    .bind(now)
    .fetch_optional(&mut tx.db)
    .await?;
    let Some((user, name)) = named else { return Ok(()) };
    tracing::info!(routine.id = %routine, %reason, "routine disabled");
    match definitions::load(&mut tx.db, routine).await {
        Ok(Some(changed)) => publish::routine(tx, RoutineChange::Disabled, &changed, now).await?,
        Err(error) if !error.concerns_one_row() => return Err(error),
        Ok(None) | Err(_) => {}
    }
    if !reason.is_end_of_schedule() {
        let why = if reason == DisabledReason::FireRate { RunReason::FireRate } else { RunReason::RoutineChanged };
        Box::pin(cancel::cancel_queued(tx, routine, why, now)).await?;
    }
    let Some(text) = explanation(reason) else { return Ok(()) };
    let title = format!("Routine disabled: {name}");
    let notice = NewNotification::new(&user, NotificationKind::RoutineDisabled, title, text.to_owned());
    notifications::insert(tx, routine, notice, now).await
}

/// The text of the notification; none where the routine ends as its owner has determined.
const fn explanation(reason: DisabledReason) -> Option<&'static str> {
    match reason {
        DisabledReason::User | DisabledReason::Completed | DisabledReason::Until | DisabledReason::MaxRuns => None,
        DisabledReason::ScheduleEnded => Some("Its schedule has no further time. Change the schedule to use it again."),
        DisabledReason::Failures => Some(
            "It failed as many times in a row as guardrails.disable_after_failures allows. Find the cause in its runs, then enable it.",
        ),
        DisabledReason::FireRate => {
            Some("It started more than 60 runs within 60 seconds. Check what fires it, then enable it.")
        }
        DisabledReason::ProviderAccount => Some(
            "The model's provider refused the key, or the account has no credit. Ask the operator, then enable it.",
        ),
        DisabledReason::Unreadable => {
            Some("Its stored definition cannot be read. Replace its trigger, action and guardrails.")
        }
    }
}
