//! Which runs may start, and which runs in progress no task works on. Only reads.
//!
//! The statements name their indexes: each is a partial one of the few runs that wait or are in progress, and SQLite
//! might otherwise read all runs that there ever were. `queues_are_read_from_their_indexes` (tests) fails when
//! one reads more.

use chrono::{DateTime, Utc};
use protocol::{Guardrails, RoutineAction, RoutineActionKind, RoutineId, RoutineSession, RunId, TriggerType, WakeMode};
use serde_json::Value;
use sqlx::FromRow;
use uuid::Uuid;

use crate::{
    Store, StoreError,
    sqlite::{
        inconsistent_rows::Keyed,
        rows::{RowRef, text},
    },
};

/// An attempt of a run that is to be worked on.
#[derive(Debug, Clone, PartialEq)]
pub struct RunAttempt {
    pub run: RunId,
    pub routine: RoutineId,
    pub user: String,
    pub routine_name: String,
    /// What it does, as the routine has it now.
    pub action: RoutineAction,
    /// Whether the routine has a budget.
    pub has_budget: bool,
    /// Longest time of the attempt, if the guardrails say one.
    pub timeout_seconds: Option<u64>,
    pub trigger: TriggerType,
    /// What is known of what fired it.
    pub detail: Value,
    /// The time of the schedule that it is for.
    pub due_at: Option<DateTime<Utc>>,
    /// What it reads, as untrusted data.
    pub payload: Option<String>,
    /// Whether what it reads is kept.
    pub persist_payload: bool,
    /// The text of the last successful run.
    pub state: Option<String>,
    /// Firings by routines that led to it.
    pub depth: u32,
    /// The number of the attempt.
    pub attempt: u32,
    pub session: RoutineSession,
    /// When the main session processes its line.
    pub wake_mode: WakeMode,
}

impl RunAttempt {
    /// The line that it puts into the main session, if that is all that it does.
    pub(in crate::routines) fn line(&self) -> Option<&str> {
        match &self.action {
            RoutineAction::SystemEventText { text } => Some(text),
            RoutineAction::Lightweight(_) | RoutineAction::FullJob(_) => None,
        }
    }
}

/// A run in progress that no task works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromRow)]
pub struct AbandonedRun {
    #[sqlx(rename = "id")]
    pub run: RunId,
    /// The number of its attempt.
    pub attempt: u32,
}

#[derive(FromRow)]
pub(in crate::routines) struct WaitingRow {
    id: Uuid,
    routine_id: RoutineId,
    user_id: String,
    routine_name: String,
    kind: String,
    action: String,
    guardrails: String,
    trigger_type: String,
    trigger_detail: String,
    due_at: Option<DateTime<Utc>>,
    payload: Option<String>,
    state: Option<String>,
    depth: u32,
    attempt: u32,
    session: String,
    wake_mode: String,
    persist_payload: bool,
}

impl WaitingRow {
    pub(in crate::routines) fn into_attempt(self) -> Result<RunAttempt, StoreError> {
        let run = RowRef { table: "routine_runs", id: self.id };
        let routine = RowRef { table: "routines", id: *self.routine_id.as_uuid() };
        let guardrails: Guardrails = routine.json("guardrails", &self.guardrails)?;
        let action: RoutineAction = routine.json("action", &self.action)?;
        if action.kind().as_str() != self.kind {
            return Err(run.invalid("kind"));
        }
        Ok(RunAttempt {
            run: RunId::from_uuid(self.id),
            routine: self.routine_id,
            user: self.user_id,
            routine_name: self.routine_name,
            action,
            has_budget: guardrails.budget.is_some(),
            timeout_seconds: guardrails.timeout_seconds,
            trigger: run.known("trigger_type", TriggerType::parse(&self.trigger_type))?,
            detail: run.json("trigger_detail", &self.trigger_detail)?,
            due_at: self.due_at,
            payload: self.payload,
            persist_payload: self.persist_payload,
            state: self.state,
            depth: self.depth,
            attempt: self.attempt,
            session: routine.known("session", RoutineSession::parse(&self.session))?,
            wake_mode: routine.known("wake_mode", WakeMode::parse(&self.wake_mode))?,
        })
    }
}

/// The number of runs in progress of the routine of a run.
macro_rules! running {
    ($run:literal) => {
        concat!(
            "(SELECT COUNT(*) FROM routine_runs AS live INDEXED BY routine_runs_running WHERE live.routine_id = ",
            $run,
            ".routine_id AND live.status = 'running')"
        )
    };
}

/// The waiting runs of a kind ($1) of a user that may start at a time ($2), in their order: past those whose routine has
/// as many in progress as it allows.
macro_rules! may_start {
    ($columns:literal, $user:literal) => {
        concat!(
            "SELECT ",
            $columns,
            " FROM routine_runs AS q INDEXED BY routine_runs_waiting CROSS JOIN routines AS r ON r.id = q.routine_id \
             WHERE q.status = 'queued' AND q.kind = $1 AND q.user_id = ",
            $user,
            " AND q.ready_at <= $2 AND ",
            running!("q"),
            " < r.max_concurrent ORDER BY q.ready_at, q.id LIMIT "
        )
    };
}

/// Runs of a kind ($1) that may start at a time ($2), at most $3. Users take turns; the one whose last run of the kind
/// started earliest is first. Each of the first users has an equal share of the number, so there may be more than those
/// that are returned: the caller asks again once they have started.
///
/// The work grows with the number of users, of runs that are returned and of those before them that wait for another run of
/// their routine, and not with that of the other runs that wait. Of users whose turn has not come, only the last start is
/// read: `turns` is materialized in their order, and `next` reads it until it has enough.
pub(in crate::routines) const STARTABLE: &str = concat!(
    "WITH RECURSIVE users (user_id) AS ( \
     SELECT MIN(user_id) FROM routine_runs INDEXED BY routine_runs_waiting WHERE status = 'queued' AND kind = $1 \
     UNION ALL SELECT (SELECT MIN(q.user_id) FROM routine_runs AS q INDEXED BY routine_runs_waiting \
     WHERE q.status = 'queued' AND q.kind = $1 AND q.user_id > users.user_id) FROM users WHERE user_id IS NOT NULL), \
     turns AS MATERIALIZED (SELECT user_id, (SELECT MAX(attempt_started_at) FROM routine_runs AS last INDEXED BY routine_runs_by_start \
     WHERE last.kind = $1 AND last.user_id = users.user_id AND last.attempt_started_at IS NOT NULL) AS last_start \
     FROM users WHERE user_id IS NOT NULL ORDER BY last_start), \
     next AS MATERIALIZED (SELECT user_id, last_start FROM turns WHERE EXISTS (",
    may_start!("1", "turns.user_id"),
    "1) LIMIT $3), \
     firsts AS (SELECT s.id, s.ready_at, next.user_id, next.last_start, r.max_concurrent, ",
    running!("s"),
    " AS running, ROW_NUMBER() OVER (PARTITION BY s.routine_id ORDER BY s.ready_at, s.id) AS nth \
     FROM next CROSS JOIN routine_runs AS s ON s.id IN (",
    may_start!("q.id", "next.user_id"),
    "$3 / (SELECT COUNT(*) FROM next) + 1) CROSS JOIN routines AS r ON r.id = s.routine_id) \
     SELECT id FROM (SELECT id, last_start, ROW_NUMBER() OVER (PARTITION BY user_id ORDER BY ready_at, id) AS turn \
     FROM firsts WHERE nth + running <= max_concurrent) ORDER BY turn, last_start, id LIMIT $3"
);

/// The earliest time at which a waiting run may start, at least $1.
pub(in crate::routines) const EARLIEST: &str =
    "SELECT MAX($1, (SELECT MIN(ready_at) FROM routine_runs INDEXED BY routine_runs_ready WHERE status = 'queued'))";

/// At most $2 runs in progress that neither their job nor the runs of $1 account for.
pub(in crate::routines) const ABANDONED: &str = "SELECT id, attempt \
     FROM routine_runs INDEXED BY routine_runs_running WHERE status = 'running' \
     AND id NOT IN (SELECT unhex(value, '-') FROM json_each($1)) \
     AND (job_id IS NULL OR NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.id = job_id AND finished_at IS NULL)) LIMIT $2";

impl Store {
    /// The earliest time at which a waiting run may start. One that may start already, and waits for another run or for
    /// room, may at `now`.
    pub async fn earliest_queued(&self, now: DateTime<Utc>) -> Result<Option<DateTime<Utc>>, StoreError> {
        Ok(sqlx::query_scalar(EARLIEST).bind(now).fetch_one(&self.read).await?)
    }

    /// Runs in progress whose job has no container.
    pub async fn count_host_runs(&self) -> Result<usize, StoreError> {
        let number: i64 = sqlx::query_scalar(
            "SELECT COUNT(*) FROM routine_runs INDEXED BY routine_runs_running CROSS JOIN jobs ON jobs.id = routine_runs.job_id \
             WHERE routine_runs.status = 'running' AND routine_runs.kind = 'full_job' AND jobs.placement = 'host'",
        )
        .fetch_one(&self.read)
        .await?;
        Ok(usize::try_from(number).unwrap_or_default())
    }

    /// Runs in progress that no job and none of the given runs account for: the process that worked on them has ended.
    pub async fn abandoned_runs(&self, working_on: &[RunId], limit: u32) -> Result<Vec<AbandonedRun>, StoreError> {
        Ok(sqlx::query_as(ABANDONED).bind(text(&working_on)?).bind(limit).fetch_all(&self.read).await?)
    }

    /// Runs of a kind that may start now: users by turns, and each user has a share of `max`.
    pub(in crate::routines) async fn startable(
        &self,
        kind: RoutineActionKind,
        max: usize,
        now: DateTime<Utc>,
    ) -> Result<Vec<Uuid>, StoreError> {
        Ok(sqlx::query_scalar(STARTABLE)
            .bind(kind.as_str())
            .bind(now)
            .bind(i64::try_from(max).unwrap_or(i64::MAX))
            .fetch_all(&self.read)
            .await?)
    }
}

/// Those of the given runs that still may start.
pub(in crate::routines) async fn waiting_rows<'c>(
    db: impl sqlx::Executor<'c, Database = sqlx::Sqlite>,
    ids: &[Uuid],
) -> Result<Vec<Keyed<WaitingRow>>, StoreError> {
    Ok(sqlx::query_as(concat!(
        "SELECT q.id, q.routine_id, q.user_id, q.routine_name, q.kind, r.action, r.guardrails, q.trigger_type, q.trigger_detail, q.due_at, \
         q.payload, r.state, q.depth, q.attempt, r.session, r.wake_mode, r.persist_payload FROM json_each($1) AS j \
         CROSS JOIN routine_runs AS q ON q.id = unhex(j.value, '-') JOIN routines AS r ON r.id = q.routine_id \
         WHERE q.status = 'queued' AND ",
        running!("q"),
        " < r.max_concurrent ORDER BY j.key"
    ))
    .bind(text(&ids)?)
    .fetch_all(db)
    .await?)
}
