//! What runs put into their owner's main session, and the event that other routines can fire on.

use chrono::{DateTime, Utc};
use protocol::{Routine, RoutineAction, RoutineRun, RunReason, RunStatus, TriggerType, WakeMode};

use super::{
    super::{
        StoreError,
        rows::RowRef,
        system_lines::{self, LineOrigin, NewSystemLine},
        write_tx::WriteTx,
    },
    finish::{AttemptEnd, AttemptResult},
    start::RunAttempt,
};

/// The first word of a summary.
const DEFAULT_PREFIX: &str = "Cron";

/// Puts the line of a run into the main session, and what fired the run as a separate line, which is data.
pub(super) async fn deliver(
    tx: &mut WriteTx,
    run: &RunAttempt,
    now: DateTime<Utc>,
) -> Result<AttemptResult, StoreError> {
    let RoutineAction::SystemEventText { text } = &run.action else {
        let row = RowRef { table: "routines", id: *run.routine.as_uuid() };
        return Err(row.invalid("action"));
    };
    if let Some(payload) = &run.payload {
        let text = format!("{} of routine \"{}\": {payload}", trigger_label(run.trigger), run.routine_name);
        let line =
            NewSystemLine { text, origin: LineOrigin::External, wake: WakeMode::NextHeartbeat, depth: run.depth };
        system_lines::append(tx, &run.user, &line, now).await?;
    }
    let line = NewSystemLine { text: text.clone(), origin: LineOrigin::Owner, wake: run.wake_mode, depth: run.depth };
    system_lines::append(tx, &run.user, &line, now).await?;
    Ok(AttemptResult::unused(AttemptEnd::Ok))
}

const fn trigger_label(trigger: TriggerType) -> &'static str {
    match trigger {
        TriggerType::Event => "Message",
        TriggerType::SystemEvent => "Event",
        TriggerType::Webhook => "Webhook",
        TriggerType::Manual | TriggerType::Cron | TriggerType::Every | TriggerType::At => "Input",
    }
}

/// Puts a summary of an isolated run into the main session, if `post_to_main` is set and the run has something to
/// report.
pub(super) async fn post_summary(
    tx: &mut WriteTx,
    routine: &Routine,
    run: &RoutineRun,
    depth: u32,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    if !routine.post_to_main || matches!(routine.action, RoutineAction::SystemEventText { .. }) {
        return Ok(());
    }
    let text = match run.status {
        RunStatus::Attention => run.result_summary.clone().unwrap_or_default(),
        RunStatus::Failed => {
            let reason = run.reason.map(RunReason::as_str).unwrap_or_default();
            format!("failed ({reason}): {}", run.message.as_deref().unwrap_or_default())
        }
        _ => return Ok(()),
    };
    let prefix = routine.post_to_main_prefix.as_deref().unwrap_or(DEFAULT_PREFIX);
    let text = format!("{prefix}: {}: {text}", routine.name);
    // A model wrote it, from what it read.
    let line = NewSystemLine { text, origin: LineOrigin::External, wake: routine.wake_mode, depth };
    system_lines::append(tx, &routine.user_id, &line, now).await.map(drop)
}
