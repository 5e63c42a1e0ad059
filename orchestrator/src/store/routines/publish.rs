//! The events about routines and runs, in the transactions that change them.

use chrono::{DateTime, Utc};
use protocol::{
    InstanceEventData, Routine, RoutineAction, RoutineChange, RoutineCronAction, RoutineCronEvent, RoutineRun,
    RunStatus,
};

use super::super::{
    StoreError,
    instance_events::{self, NewInstanceEvent},
    write_tx::WriteTx,
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
        data: InstanceEventData::Routine { action: change, routine: Box::new(shortened(routine)) },
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

/// The events of a run that was recorded, has started or has ended. `next` is when its routine fires next.
pub(super) fn of_run(run: &RoutineRun, next: Option<DateTime<Utc>>) -> Vec<NewInstanceEvent> {
    let cron = run.trigger_type.is_schedule().then(|| cron_event(run, next)).flatten();
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
