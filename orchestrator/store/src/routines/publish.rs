//! The events about routines and runs, in the transactions that change them.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use protocol::{
    InstanceEventData, Routine, RoutineAction, RoutineChange, RoutineCronAction, RoutineCronEvent, RoutineRun,
    RunStatus,
};
use uuid::Uuid;

use super::super::{
    StoreError,
    events::instance_events::{self, NewInstanceEvent},
    sqlite::{rows::text, write_tx::WriteTx},
};

/// Characters of a prompt, a description or a line in an event; the whole is in the routine.
const MAX_TEXT_CHARS: usize = 200;

/// Appends the event of a change, and for a scheduled routine the one in the shape of the `cron.*` calls.
pub(super) async fn routine(
    tx: &mut WriteTx,
    change: RoutineChange,
    routine: &Routine,
    at: DateTime<Utc>,
) -> Result<(), StoreError> {
    let mut events = vec![NewInstanceEvent {
        user: routine.user_id.clone(),
        data: InstanceEventData::Routine { change, routine: Box::new(shortened(routine)) },
    }];
    if routine.trigger.kind().is_schedule() {
        let action = match change {
            RoutineChange::Created => RoutineCronAction::Added,
            RoutineChange::Deleted => RoutineCronAction::Removed,
            RoutineChange::Updated | RoutineChange::Enabled | RoutineChange::Disabled => RoutineCronAction::Updated,
        };
        events.push(NewInstanceEvent {
            user: routine.user_id.clone(),
            data: InstanceEventData::Cron(Box::new(RoutineCronEvent {
                job_id: routine.id,
                action,
                status: None,
                error: None,
                next_run_at_ms: routine.next_fire_at.map(|at| at.timestamp_millis()),
            })),
        });
    }
    instance_events::append_all(tx, at, &events).await
}

/// Appends the events of runs that have started or have ended.
pub(super) async fn runs(tx: &mut WriteTx, runs: &[&RoutineRun], at: DateTime<Utc>) -> Result<(), StoreError> {
    let ids: Vec<_> = runs.iter().map(|run| run.routine_id).collect();
    let scheduled: HashMap<Uuid, Option<DateTime<Utc>>> = sqlx::query_as(
        "SELECT id, next_fire_at FROM routines WHERE id IN (SELECT unhex(value, '-') FROM json_each($1)) \
         AND trigger_type IN ('cron', 'every', 'at')",
    )
    .bind(text(&ids)?)
    .fetch_all(&mut tx.db)
    .await?
    .into_iter()
    .collect();
    let events_of = |run: &&RoutineRun| {
        let scheduled = scheduled.get(run.routine_id.as_uuid());
        events_of_run(run, scheduled.is_some(), scheduled.copied().flatten())
    };
    let events: Vec<_> = runs.iter().flat_map(events_of).collect();
    instance_events::append_all(tx, at, &events).await
}

/// The events of a run that was recorded. `next` is when its routine fires next: only one with a schedule does.
pub(super) fn of_run(run: &RoutineRun, next: Option<DateTime<Utc>>) -> Vec<NewInstanceEvent> {
    events_of_run(run, next.is_some(), next)
}

/// A run of a routine with a schedule is also told in the shape of the `cron.*` calls, whatever fired it.
fn events_of_run(run: &RoutineRun, is_scheduled: bool, next: Option<DateTime<Utc>>) -> Vec<NewInstanceEvent> {
    let is_scheduled = is_scheduled || run.trigger_type.is_schedule();
    let cron = is_scheduled.then(|| cron_event(run, next)).flatten();
    let run_event = InstanceEventData::Run(Box::new(run.clone()));
    [Some(run_event), cron]
        .into_iter()
        .flatten()
        .map(|data| NewInstanceEvent { user: run.user_id.clone(), data })
        .collect()
}

fn cron_event(run: &RoutineRun, next: Option<DateTime<Utc>>) -> Option<InstanceEventData> {
    let (action, status) = match run.status {
        RunStatus::Queued => return None,
        RunStatus::Running => (RoutineCronAction::Started, None),
        RunStatus::Ok | RunStatus::Attention => (RoutineCronAction::Finished, Some("ok")),
        RunStatus::Failed => (RoutineCronAction::Finished, Some("error")),
        RunStatus::Skipped | RunStatus::Missed => (RoutineCronAction::Finished, Some("skipped")),
    };
    Some(InstanceEventData::Cron(Box::new(RoutineCronEvent {
        job_id: run.routine_id,
        action,
        status: status.map(str::to_owned),
        error: run.reason.map(|reason| run.message.clone().unwrap_or_else(|| reason.to_string())),
        next_run_at_ms: next.map(|at| at.timestamp_millis()),
    })))
}

fn shortened(routine: &Routine) -> Routine {
    let mut routine = routine.clone();
    let text = match &mut routine.action {
        RoutineAction::Lightweight(action) => &mut action.prompt,
        RoutineAction::FullJob(action) => &mut action.description,
        RoutineAction::SystemEventText { text } => text,
    };
    if let Some((end, _)) = text.char_indices().nth(MAX_TEXT_CHARS) {
        text.truncate(end);
    }
    routine
}
