//! What runs put into their owner's main session.

use chrono::{DateTime, Utc};
use protocol::{Routine, RoutineAction, RoutineId, TriggerType, WakeMode};

use super::{
    super::{
        StoreError,
        chat::system_lines::{self, LineOrigin, NewSystemLine},
        sqlite::{rows::RowRef, write_tx::WriteTx},
    },
    problems,
    runs::startable::RunAttempt,
};
use domain::routine::{
    attempt::{AttemptEnd, AttemptResult},
    problem::AutomationProblem,
};

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
        append(tx, run.routine, &run.user, &line, now).await?;
    }
    let line = NewSystemLine { text: text.clone(), origin: LineOrigin::Owner, wake: run.wake_mode, depth: run.depth };
    append(tx, run.routine, &run.user, &line, now).await?;
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

/// Puts a summary of an isolated run into the main session.
pub(super) async fn post_summary(
    tx: &mut WriteTx,
    routine: &Routine,
    text: String,
    depth: u32,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    // A model wrote it, from what it read.
    let line = NewSystemLine { text, origin: LineOrigin::External, wake: routine.wake_mode, depth };
    append(tx, routine.id, &routine.user_id, &line, now).await
}

/// Queues a line of a routine, whose owner is told if it pushed older lines out.
async fn append(
    tx: &mut WriteTx,
    routine: RoutineId,
    user: &str,
    line: &NewSystemLine,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    if system_lines::append(tx, user, line, now).await? {
        return Ok(());
    }
    problems::report(tx, routine, &AutomationProblem::LinesDropped, now).await
}
