//! What runs put into their owner's main session.

use chrono::{DateTime, Utc};
use protocol::{Routine, RoutineId, TriggerType, WakeMode};

use super::{
    super::{
        StoreError,
        chat::system_lines::{self, LineOrigin, NewSystemLine},
        sqlite::write_tx::WriteTx,
    },
    problems,
    runs::startable::RunAttempt,
};
use domain::routine::problem::AutomationProblem;

/// A line, and the routine that it is of.
type RoutineLine = (RoutineId, NewSystemLine);

/// Puts the lines of runs into the main sessions, each with what fired the run as a separate line, which is data.
pub(super) async fn deliver<'a>(
    tx: &mut WriteTx,
    runs: impl Iterator<Item = &'a RunAttempt>,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    append(tx, runs.flat_map(lines_of).collect(), now).await
}

fn lines_of(run: &RunAttempt) -> Vec<RoutineLine> {
    let Some(text) = run.line() else { return Vec::new() };
    let line = |text, origin, wake| {
        (run.routine, NewSystemLine { user: run.user.clone(), text, origin, wake, depth: run.depth })
    };
    let payload = run.payload.as_ref().map(|payload| {
        let text = format!("{} of routine \"{}\": {payload}", trigger_label(run.trigger), run.routine_name);
        line(text, LineOrigin::External, WakeMode::NextHeartbeat)
    });
    payload.into_iter().chain([line(text.to_owned(), LineOrigin::Owner, run.wake_mode)]).collect()
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
    let (user, wake) = (routine.user_id.clone(), routine.wake_mode);
    append(tx, vec![(routine.id, NewSystemLine { user, text, origin: LineOrigin::External, wake, depth })], now).await
}

/// Queues lines of routines. The owner is told of the routines whose lines pushed older ones out.
async fn append(tx: &mut WriteTx, lines: Vec<RoutineLine>, now: DateTime<Utc>) -> Result<(), StoreError> {
    let (routines, lines): (Vec<RoutineId>, Vec<NewSystemLine>) = lines.into_iter().unzip();
    let mut dropped = system_lines::append(tx, &lines, now).await?;
    let mut full = Vec::new();
    for (routine, line) in routines.into_iter().zip(&lines).rev() {
        if let Some(left @ 1..) = dropped.get_mut(&line.user) {
            *left -= 1;
            full.push(routine);
        }
    }
    problems::report_all(tx, &full, &AutomationProblem::LinesDropped, now).await
}
