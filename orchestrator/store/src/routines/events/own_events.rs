//! Gantry's own events, which routines can fire on. They are enqueued in the transaction of what they tell about.

use chrono::{DateTime, Utc};
use protocol::{JobState, MemoryAuthor, RoutineRun, WorkId};
use serde_json::{Value, json};

use super::{EventName, NewRoutineEvent, enqueue, users_listening};
use crate::{StoreError, sqlite::write_tx::WriteTx};
use domain::job::JobRecord;

/// The source of Gantry's own events.
const GANTRY: &str = "gantry";
/// The type of the event of a run.
const RUN: &str = "routine.run";
/// The channel of messages in chats.
const CHAT: &str = "chat";

/// Enqueues the event `memory.write`.
pub(crate) async fn memory_written(
    tx: &mut WriteTx,
    user: &str,
    (path, version): (&str, u64),
    author: &MemoryAuthor,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let payload = json!({"path": path, "version": version, "author": author.to_string()});
    enqueue(tx, &gantry_event(user, "memory.write", payload, author.work()), now).await.map(drop)
}

/// Enqueues the event `job.completed` or `job.failed` of a job that has ended.
pub(crate) async fn job_ended(tx: &mut WriteTx, job: &JobRecord, now: DateTime<Utc>) -> Result<(), StoreError> {
    let event_type = match job.state() {
        JobState::Completed | JobState::Accepted => "job.completed",
        JobState::Failed | JobState::Cancelled => "job.failed",
        _ => return Ok(()),
    };
    let brief = &job.brief;
    let payload = json!({
        "job_id": job.id,
        "title": brief.title,
        "state": job.state(),
        "reason": job.reason(),
        "message": job.message(),
        "source": brief.source,
        "labels": brief.labels,
    });
    enqueue(tx, &gantry_event(&brief.user_id, event_type, payload, Some(job.id.into())), now).await.map(drop)
}

/// Enqueues the events `routine.run` of runs that have ended.
pub(crate) async fn runs_ended(tx: &mut WriteTx, runs: &[&RoutineRun], now: DateTime<Utc>) -> Result<(), StoreError> {
    if runs.is_empty() {
        return Ok(());
    }
    let users: Vec<&str> = runs.iter().map(|run| run.user_id.as_str()).collect();
    let name = EventName::System { source: GANTRY.to_owned(), event_type: RUN.to_owned() };
    let listening = users_listening(tx, &users, &name).await?;
    for run in runs.iter().filter(|run| listening.contains(&run.user_id)) {
        let payload = json!({
            "run_id": run.id,
            "routine_id": run.routine_id,
            "routine_name": run.routine_name,
            "trigger_type": run.trigger_type,
            "status": run.status,
            "reason": run.reason,
            "job_id": run.job_id,
        });
        enqueue(tx, &gantry_event(&run.user_id, RUN, payload, Some(run.id.into())), now).await?;
    }
    Ok(())
}

/// Enqueues a message in a chat.
pub(crate) async fn chat_message_sent(
    tx: &mut WriteTx,
    user: &str,
    content: &str,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let name = EventName::Message { channel: Some(CHAT.to_owned()) };
    let payload = json!({"content": content});
    enqueue(tx, &NewRoutineEvent { user: user.to_owned(), name, payload, cause: None }, now).await.map(drop)
}

fn gantry_event(user: &str, event_type: &str, payload: Value, cause: Option<WorkId>) -> NewRoutineEvent {
    let name = EventName::System { source: GANTRY.to_owned(), event_type: event_type.to_owned() };
    NewRoutineEvent { user: user.to_owned(), name, payload, cause }
}
