//! Runs that wait become runs in progress.
//!
//! Runs in progress are counted by `status = 'running' AND status IN ('queued', 'running')`, which says the same twice:
//! `routine_runs_live` is a partial index, and SQLite uses one only if the query has the condition of the index, here
//! the second half. Without it the statement is an error ("no query solution", because of `INDEXED BY`); without
//! `INDEXED BY` as well, it would read all runs that the routine ever had.
//!
//! What may start is read outside the transaction and checked again in it (`waiting_rows`, `stop_without_budget`):
//! another start, a cancellation or a spent budget may have come between. So starting twice is harmless.
//! `of_many_firings_at_once_a_routine_runs_one`, `the_cap_delays_runs_and_users_take_turns` (stories,
//! `routines/lightweight`) and `a_queued_run_does_not_start_once_the_budget_is_spent` (`routines/guardrails`) fail when
//! this is wrong.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use protocol::{
    DisabledReason, Guardrails, RoutineAction, RoutineActionKind, RoutineId, RoutineRun, RoutineSession, RunId,
    RunReason, TriggerType, WakeMode,
};
use serde_json::Value;
use sqlx::FromRow;
use uuid::Uuid;

use super::{
    super::{
        CreateOutcome, Store, StoreError, jobs,
        rows::{RowRef, text},
        write_tx::WriteTx,
    },
    budgets, definitions, disable,
    finish::{self, AttemptEnd, AttemptResult, UnfinishedRun, unfinished_columns},
    lines, publish,
    rows::{RunRow, hex, run_columns},
    run_log,
};
use base::failpoint;
use domain::{
    job::JobRecord,
    routine::admission::{FIRE_RATE_WINDOW, MAX_STARTS_PER_WINDOW},
};

/// Runs whose lines are posted in one transaction.
const LINES_PER_TRANSACTION: usize = 50;

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

/// A run in progress that no task works on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AbandonedRun {
    pub run: RunId,
    /// The number of its attempt.
    pub attempt: u32,
}

#[derive(FromRow)]
struct WaitingRow {
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
    depth: i64,
    attempt: i64,
    session: String,
    wake_mode: String,
}

impl WaitingRow {
    fn into_attempt(self) -> Result<RunAttempt, StoreError> {
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
            state: self.state,
            depth: run.number("depth", self.depth)?,
            attempt: run.number("attempt", self.attempt)?,
            session: routine.known("session", RoutineSession::parse(&self.session))?,
            wake_mode: routine.known("wake_mode", WakeMode::parse(&self.wake_mode))?,
        })
    }
}

/// Runs of a kind that may start now, at most as many of a routine as it allows at once. Users take turns; the one
/// whose last run started earliest is first.
const STARTABLE: &str = "WITH waiting AS (SELECT q.id, q.user_id, q.routine_id, r.guardrails->>'max_concurrent' AS max_concurrent, \
     ROW_NUMBER() OVER (PARTITION BY q.routine_id ORDER BY q.id) AS nth, \
     (SELECT COUNT(*) FROM routine_runs AS live INDEXED BY routine_runs_live WHERE live.routine_id = q.routine_id AND live.status = 'running' \
     AND live.status IN ('queued', 'running')) AS running \
     FROM routine_runs AS q JOIN routines AS r ON r.id = q.routine_id \
     WHERE q.status = 'queued' AND q.kind = $1 AND (q.not_before IS NULL OR q.not_before <= $2)), \
     users AS (SELECT u.user_id, (SELECT MAX(attempt_started_at) FROM routine_runs AS last \
     WHERE last.user_id = u.user_id AND last.attempt_started_at IS NOT NULL) AS last_start \
     FROM (SELECT DISTINCT user_id FROM waiting) AS u) \
     SELECT s.id FROM (SELECT id, user_id, ROW_NUMBER() OVER (PARTITION BY user_id ORDER BY id) AS turn FROM waiting \
     WHERE nth + running <= max_concurrent) AS s JOIN users ON users.user_id = s.user_id \
     ORDER BY s.turn, users.last_start, s.id LIMIT $3";

impl Store {
    /// Starts runs of a kind, users by turns. A run whose routine cannot be read fails.
    pub async fn start_runs_of(
        &self,
        kind: RoutineActionKind,
        max: usize,
        now: DateTime<Utc>,
    ) -> Result<Vec<RunAttempt>, StoreError> {
        let ids = self.startable(kind, max, now).await?;
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let started = self
            .write(transaction!(|tx| {
                let started = start(tx, &ids, now).await?;
                let pairs: Vec<_> = started.iter().map(|one| (one.run.clone(), &one.attempt)).collect();
                announce_starts(tx, &pairs, now).await?;
                Ok(started.into_iter().map(|one| one.attempt).collect())
            }))
            .await?;
        failpoint::reach("routine.after_start");
        Ok(started)
    }

    /// Full-job runs that may start now. They start with their job, see [`Self::create_run_job`].
    pub async fn startable_jobs(&self, max: usize, now: DateTime<Utc>) -> Result<Vec<RunAttempt>, StoreError> {
        let ids = self.startable(RoutineActionKind::FullJob, max, now).await?;
        let rows = waiting_rows(&self.read, &ids).await?;
        let mut runs = Vec::with_capacity(rows.len());
        for row in rows {
            let id = RunId::from_uuid(row.id);
            match row.into_attempt() {
                Ok(run) => runs.push(run),
                Err(error) => self.fail_queued(id, RunReason::Internal, &error.to_string(), now).await?,
            }
        }
        Ok(runs)
    }

    /// Puts the lines of runs that only have a line into the main sessions, and ends the runs. Returns how many were
    /// read.
    pub async fn post_lines(&self, max: usize, now: DateTime<Utc>) -> Result<usize, StoreError> {
        let ids = self.startable(RoutineActionKind::SystemEventText, max, now).await?;
        // Other writes wait for a transaction, so each has a few runs.
        for ids in ids.chunks(LINES_PER_TRANSACTION) {
            let ids = ids.to_vec();
            self.write(transaction!(|tx| post_lines(tx, &ids, now).await)).await?;
        }
        Ok(ids.len())
    }

    /// The earliest time at which a waiting run may start. One that may start already, and waits for another run or for
    /// room, may at `now`.
    pub async fn earliest_queued(&self, now: DateTime<Utc>) -> Result<Option<DateTime<Utc>>, StoreError> {
        let waits: bool = sqlx::query_scalar(
            "SELECT EXISTS (SELECT 1 FROM routine_runs WHERE status = 'queued' AND (not_before IS NULL OR not_before <= $1))",
        )
        .bind(now)
        .fetch_one(&self.read)
        .await?;
        if waits {
            return Ok(Some(now));
        }
        let earliest =
            sqlx::query_scalar("SELECT MIN(not_before) FROM routine_runs WHERE status = 'queued' AND not_before > $1");
        Ok(earliest.bind(now).fetch_one(&self.read).await?)
    }

    /// Stores the job of a run and starts the run, in one transaction. Nothing is stored if the run no longer waits.
    pub async fn create_run_job(&self, attempt: RunAttempt, job: JobRecord) -> Result<CreateOutcome, StoreError> {
        let run = attempt.run;
        self.write(transaction!(|tx| {
            let now = job.brief.created_at;
            if stop_without_budget(tx, &attempt, now).await? {
                return Ok(CreateOutcome::RunGone);
            }
            let row: Option<RunRow> = sqlx::query_as(concat!(
                "UPDATE routine_runs SET status = 'running', started_at = COALESCE(started_at, $2), attempt_started_at = $2, \
                 job_id = $3, reason = NULL, message = NULL, not_before = NULL, \
                 routine_rev = COALESCE((SELECT rev FROM routines WHERE id = routine_id), routine_rev) \
                 WHERE id = $1 AND status = 'queued' RETURNING ",
                run_columns!()
            ))
            .bind(run)
            .bind(now)
            .bind(job.id)
            .fetch_optional(&mut tx.db)
            .await?;
            let Some(row) = row else { return Ok(CreateOutcome::RunGone) };
            let created = jobs::create(tx, job, None, None).await?;
            if created != CreateOutcome::Created {
                sqlx::query("UPDATE routine_runs SET status = 'queued', job_id = NULL WHERE id = $1")
                    .bind(run)
                    .execute(&mut tx.db)
                    .await?;
                return Ok(created);
            }
            let run = row.into_run()?;
            count_starts(tx, std::slice::from_ref(&run), now).await?;
            announce_starts(tx, &[(run, &attempt)], now).await?;
            Ok(created)
        }))
        .await
    }

    /// Fails a run that waits and cannot start.
    pub async fn fail_queued(
        &self,
        run: RunId,
        reason: RunReason,
        message: &str,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        let message = message.to_owned();
        self.write(transaction!(|tx| {
            let Some(live) = finish::load(tx, run).await? else { return Ok(()) };
            if live.status()? != protocol::RunStatus::Queued {
                return Ok(());
            }
            // An attempt that cannot start is an attempt.
            let row: RunRow = sqlx::query_as(concat!(
                "UPDATE routine_runs SET started_at = COALESCE(started_at, $2), attempt_started_at = $2 WHERE id = $1 RETURNING ",
                run_columns!()
            ))
            .bind(run)
            .bind(now)
            .fetch_one(&mut tx.db)
            .await?;
            count_starts(tx, &[row.into_run()?], now).await?;
            let Some(live) = finish::load(tx, run).await? else { return Ok(()) };
            let result = AttemptResult::unused(AttemptEnd::failed(reason, message));
            finish::end(tx, live, result, now).await.map(drop)
        }))
        .await
    }

    /// Runs in progress whose job has no container.
    pub async fn count_host_runs(&self) -> Result<usize, StoreError> {
        let number: i64 = sqlx::query_scalar(
            "SELECT COUNT(*) FROM routine_runs JOIN jobs ON jobs.id = routine_runs.job_id \
             WHERE routine_runs.status = 'running' AND routine_runs.kind = 'full_job' AND jobs.placement = 'host'",
        )
        .fetch_one(&self.read)
        .await?;
        Ok(usize::try_from(number).unwrap_or_default())
    }

    /// Runs in progress that no job and none of the given runs account for: the process that worked on them has ended.
    pub async fn abandoned_runs(&self, working_on: &[RunId], limit: usize) -> Result<Vec<AbandonedRun>, StoreError> {
        let ids: Vec<String> = working_on.iter().map(|run| hex(run.as_uuid())).collect();
        let rows: Vec<(Uuid, i64)> = sqlx::query_as(
            "SELECT id, attempt FROM routine_runs WHERE status = 'running' \
             AND id NOT IN (SELECT unhex(value) FROM json_each($1)) \
             AND (job_id IS NULL OR NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.id = job_id AND finished_at IS NULL)) \
             ORDER BY id LIMIT $2",
        )
        .bind(text(&ids)?)
        .bind(i64::try_from(limit).unwrap_or(i64::MAX))
        .fetch_all(&self.read)
        .await?;
        let abandoned = rows.into_iter().map(|(id, attempt)| AbandonedRun {
            run: RunId::from_uuid(id),
            attempt: u32::try_from(attempt).unwrap_or(u32::MAX),
        });
        Ok(abandoned.collect())
    }

    async fn startable(
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

async fn waiting_rows<'c>(
    db: impl sqlx::Executor<'c, Database = sqlx::Sqlite>,
    ids: &[Uuid],
) -> Result<Vec<WaitingRow>, StoreError> {
    let ids: Vec<String> = ids.iter().map(hex).collect();
    Ok(sqlx::query_as(
        "SELECT q.id, q.routine_id, q.user_id, q.routine_name, q.kind, r.action, r.guardrails, q.trigger_type, q.trigger_detail, q.due_at, \
         q.payload, r.state, q.depth, q.attempt, r.session, r.wake_mode FROM json_each($1) AS j \
         CROSS JOIN routine_runs AS q ON q.id = unhex(j.value) JOIN routines AS r ON r.id = q.routine_id \
         WHERE q.status = 'queued' \
         AND (SELECT COUNT(*) FROM routine_runs AS live INDEXED BY routine_runs_live WHERE live.routine_id = q.routine_id AND live.status = 'running' \
     AND live.status IN ('queued', 'running')) \
         < r.guardrails->>'max_concurrent' ORDER BY j.key",
    )
    .bind(text(&ids)?)
    .fetch_all(db)
    .await?)
}

/// Starts runs, posts their lines and ends them. Their events are appended together.
async fn post_lines(tx: &mut WriteTx, ids: &[Uuid], now: DateTime<Utc>) -> Result<(), StoreError> {
    let started = start(tx, ids, now).await?;
    let routines: Vec<RoutineId> = started.iter().map(|one| one.attempt.routine).collect();
    let routines = definitions::load_all(tx, &routines).await?;
    let mut runs = Vec::with_capacity(2 * started.len());
    for Started { attempt, run, row } in started {
        run_log::started(tx, &run, attempt.session, attempt.wake_mode);
        let result = lines::deliver(tx, &attempt, now).await?;
        let ended = finish::end_of(tx, row, routines.get(&attempt.routine), result, now).await?;
        runs.extend([run, ended]);
    }
    publish::runs(tx, &runs.iter().collect::<Vec<_>>(), now).await
}

/// An attempt that has started, its run and the run's row.
struct Started {
    attempt: RunAttempt,
    run: RoutineRun,
    row: UnfinishedRun,
}

/// Starts the runs that still may. A run whose routine cannot be read fails.
async fn start(tx: &mut WriteTx, ids: &[Uuid], now: DateTime<Utc>) -> Result<Vec<Started>, StoreError> {
    let (mut runs, mut unreadable) = (Vec::new(), Vec::new());
    for row in waiting_rows(&mut tx.db, ids).await? {
        let id = row.id;
        match row.into_attempt() {
            Ok(run) if stop_without_budget(tx, &run, now).await? => {}
            Ok(run) => runs.push(run),
            Err(error) => unreadable.push((id, error)),
        }
    }
    for (id, error) in unreadable {
        tracing::error!(run.id = %id, error = &error as &dyn std::error::Error, "a run cannot start");
        let Some(live) = finish::load(tx, RunId::from_uuid(id)).await? else { continue };
        let end = AttemptEnd::failed(RunReason::Internal, error.to_string());
        finish::end(tx, live, AttemptResult::unused(end), now).await?;
    }
    let started: Vec<String> = runs.iter().map(|run| hex(run.run.as_uuid())).collect();
    let rows: Vec<UnfinishedRun> = sqlx::query_as(concat!(
        "UPDATE routine_runs SET status = 'running', started_at = COALESCE(started_at, $2), attempt_started_at = $2, \
         reason = NULL, message = NULL, not_before = NULL, \
         routine_rev = (SELECT rev FROM routines WHERE id = routine_id) \
         WHERE id IN (SELECT unhex(value) FROM json_each($1)) RETURNING ",
        run_columns!(),
        ", ",
        unfinished_columns!()
    ))
    .bind(text(&started)?)
    .bind(now)
    .fetch_all(&mut tx.db)
    .await?;
    let mut rows: HashMap<Uuid, UnfinishedRun> = rows.into_iter().map(|row| (row.id(), row)).collect();
    let mut started = Vec::with_capacity(runs.len());
    for attempt in runs {
        let Some(row) = rows.remove(attempt.run.as_uuid()) else { continue };
        started.push(Started { run: row.clone().into_run()?, attempt, row });
    }
    let runs: Vec<RoutineRun> = started.iter().map(|one| one.run.clone()).collect();
    count_starts(tx, &runs, now).await?;
    Ok(started)
}

/// Ends a queued run whose routine has spent its budget since the run was admitted. Returns whether it has ended.
async fn stop_without_budget(tx: &mut WriteTx, attempt: &RunAttempt, now: DateTime<Utc>) -> Result<bool, StoreError> {
    if !attempt.has_budget || !budgets::is_spent(tx, attempt.routine, now).await? {
        return Ok(false);
    }
    let Some(live) = finish::load(tx, attempt.run).await? else { return Ok(true) };
    let message = "the budget of the routine was exhausted before the run started".to_owned();
    let end = if live.has_started() {
        AttemptEnd::failed(RunReason::LimitReached, message)
    } else {
        AttemptEnd::Skipped { reason: RunReason::Budget, message }
    };
    finish::end(tx, live, AttemptResult::unused(end), now).await?;
    Ok(true)
}

/// Counts runs at their first start, and disables routines that start too many.
async fn count_starts(tx: &mut WriteTx, runs: &[RoutineRun], now: DateTime<Utc>) -> Result<(), StoreError> {
    let ids: Vec<String> = runs.iter().map(|run| hex(run.routine_id.as_uuid())).collect();
    let first: Vec<String> =
        runs.iter().filter(|run| run.started_at == Some(now)).map(|run| hex(run.routine_id.as_uuid())).collect();
    sqlx::query(
        "UPDATE routines SET last_run_at = $3, \
         run_count = run_count + (SELECT COUNT(*) FROM json_each($2) WHERE unhex(value) = routines.id) \
         WHERE id IN (SELECT unhex(value) FROM json_each($1))",
    )
    .bind(text(&ids)?)
    .bind(text(&first)?)
    .bind(now)
    .execute(&mut tx.db)
    .await?;
    let too_fast: Vec<Uuid> = sqlx::query_scalar(
        "SELECT j.value FROM (SELECT DISTINCT unhex(value) AS value FROM json_each($1)) AS j WHERE (SELECT COUNT(*) FROM ( \
         SELECT 1 FROM routine_runs WHERE routine_id = j.value AND started_at > $2 AND trigger_type NOT IN ('cron', 'every', 'at') \
         LIMIT $3)) >= $3",
    )
    .bind(text(&first)?)
    .bind(now - FIRE_RATE_WINDOW)
    .bind(i64::from(MAX_STARTS_PER_WINDOW) + 1)
    .fetch_all(&mut tx.db)
    .await?;
    for routine in too_fast {
        disable::disable(tx, RoutineId::from_uuid(routine), DisabledReason::FireRate, now).await?;
    }
    Ok(())
}

/// Logs attempts that have started, and appends their events.
async fn announce_starts(
    tx: &mut WriteTx,
    started: &[(RoutineRun, &RunAttempt)],
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    for (run, attempt) in started {
        run_log::started(tx, run, attempt.session, attempt.wake_mode);
    }
    let runs: Vec<&RoutineRun> = started.iter().map(|(run, _)| run).collect();
    publish::runs(tx, &runs, now).await
}
