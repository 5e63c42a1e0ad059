//! Runs that wait become runs in progress.
//!
//! What may start is read outside the transaction (`startable`) and checked again in it (`waiting_rows`,
//! `stop_without_budget`): another start, a cancellation or a spent budget may have come between. So starting twice is
//! harmless. `of_many_firings_at_once_a_routine_runs_one`, `the_cap_delays_runs_and_users_take_turns` (stories,
//! `routines/lightweight`) and `a_queued_run_does_not_start_once_the_budget_is_spent` (`routines/guardrails`) fail when
//! this is wrong.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use protocol::{DisabledReason, RoutineActionKind, RoutineId, RoutineRun, RunId, RunReason};
use uuid::Uuid;

use super::{
    budgets,
    finish::{self, EndedAttempt, UnfinishedRun, unfinished_columns},
    run_log,
    startable::{RunAttempt, WaitingRow, waiting_rows},
};
use crate::{
    CreateOutcome, Store, StoreError, jobs,
    routines::{
        definitions::{self, disable},
        lines, publish,
        rows::{RunRow, run_columns},
    },
    sqlite::{inconsistent_rows::Keyed, rows::text, write_tx::WriteTx},
};
use base::failpoint;
use domain::{
    job::JobRecord,
    routine::{
        admission::{FIRE_RATE_WINDOW, MAX_STARTS_PER_WINDOW},
        attempt::{AttemptEnd, AttemptResult},
    },
};

/// Runs whose lines are posted in one transaction.
const LINES_PER_TRANSACTION: usize = 100;

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
        for Keyed { id, row } in rows {
            match row.get().and_then(WaitingRow::into_attempt) {
                Ok(run) => runs.push(run),
                Err(error) => self.write(transaction!(|tx| fail_unreadable(tx, id, error, now).await)).await?,
            }
        }
        Ok(runs)
    }

    /// Puts the lines of runs that only have a line into the main sessions, and ends the runs. Returns how many were
    /// read.
    pub async fn post_lines(&self, max: usize, now: DateTime<Utc>) -> Result<usize, StoreError> {
        let ids = self.startable(RoutineActionKind::SystemEventText, max, now).await?;
        // Other writes wait for a transaction, so each has a limited number of runs.
        for ids in ids.chunks(LINES_PER_TRANSACTION) {
            let ids = ids.to_vec();
            self.write(transaction!(|tx| post_lines(tx, &ids, now).await)).await?;
        }
        Ok(ids.len())
    }

    /// Stores the job of a run and starts the run, in one transaction. Nothing is stored if the run no longer waits.
    pub async fn create_run_job(&self, attempt: RunAttempt, job: JobRecord) -> Result<CreateOutcome, StoreError> {
        let run = attempt.run;
        self.write(transaction!(|tx| {
            let (id, now) = (job.id, job.brief.created_at);
            if stop_without_budget(tx, &attempt, now).await? || !is_queued(tx, run).await? {
                return Ok(CreateOutcome::RunGone);
            }
            let created = jobs::create(tx, job, None, None).await?;
            if created != CreateOutcome::Created {
                return Ok(created);
            }
            let row: RunRow = sqlx::query_as(concat!(
                "UPDATE routine_runs SET status = 'running', started_at = COALESCE(started_at, $2), attempt_started_at = $2, \
                 job_id = $3, reason = NULL, message = NULL, not_before = NULL, \
                 routine_rev = COALESCE((SELECT rev FROM routines WHERE id = routine_id), routine_rev) WHERE id = $1 RETURNING ",
                run_columns!()
            ))
            .bind(run)
            .bind(now)
            .bind(id)
            .fetch_one(&mut tx.db)
            .await?;
            let run = row.into_run()?;
            count_starts(tx, std::slice::from_ref(&run), now).await?;
            announce_starts(tx, &[(run, &attempt)], now).await?;
            Ok(created)
        }))
        .await
    }

    /// Ends the attempt of a run that waits and cannot start. An attempt that cannot start is an attempt.
    pub async fn fail_queued(&self, run: RunId, end: AttemptEnd, now: DateTime<Utc>) -> Result<(), StoreError> {
        self.write(transaction!(|tx| {
            let live: Option<UnfinishedRun> = sqlx::query_as(concat!(
                "UPDATE routine_runs SET started_at = COALESCE(started_at, $2), attempt_started_at = $2 \
                 WHERE id = $1 AND status = 'queued' RETURNING ",
                run_columns!(),
                ", ",
                unfinished_columns!()
            ))
            .bind(run)
            .bind(now)
            .fetch_optional(&mut tx.db)
            .await?;
            let Some(live) = live else { return Ok(()) };
            count_starts(tx, &[live.row.clone().into_run()?], now).await?;
            finish::end(tx, live, AttemptResult::unused(end), now).await.map(drop)
        }))
        .await
    }
}

async fn is_queued(tx: &mut WriteTx, run: RunId) -> Result<bool, StoreError> {
    Ok(sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM routine_runs WHERE id = $1 AND status = 'queued')")
        .bind(run)
        .fetch_one(&mut tx.db)
        .await?)
}

/// Starts runs, posts their lines and ends them. Their events are appended together.
async fn post_lines(tx: &mut WriteTx, ids: &[Uuid], now: DateTime<Utc>) -> Result<(), StoreError> {
    let started = start(tx, ids, now).await?;
    let routines: Vec<RoutineId> = started.iter().map(|one| one.attempt.routine).collect();
    let routines = definitions::load_all(tx, &routines).await?;
    lines::deliver(tx, started.iter().map(|one| &one.attempt), now).await?;
    let (mut runs, mut attempts) = (Vec::with_capacity(2 * started.len()), Vec::with_capacity(started.len()));
    for Started { attempt, run, row: live } in started {
        run_log::started(tx, &run, attempt.session, attempt.wake_mode);
        let result = AttemptResult { text: attempt.line().map(str::to_owned), ..AttemptResult::unused(AttemptEnd::Ok) };
        let routine = routines.get(&attempt.routine);
        attempts.push(EndedAttempt { live, result, routine });
        runs.push(run);
    }
    runs.extend(finish::end_all(tx, attempts, now).await?);
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
    for Keyed { id, row } in waiting_rows(&mut tx.db, ids).await? {
        match row.get().and_then(WaitingRow::into_attempt) {
            Ok(run) if stop_without_budget(tx, &run, now).await? => {}
            Ok(run) => runs.push(run),
            Err(error) => unreadable.push((id, error)),
        }
    }
    for (id, error) in unreadable {
        fail_unreadable(tx, id, error, now).await?;
    }
    let started: Vec<RunId> = runs.iter().map(|run| run.run).collect();
    let rows: Vec<Keyed<UnfinishedRun>> = sqlx::query_as(concat!(
        "UPDATE routine_runs SET status = 'running', started_at = COALESCE(started_at, $2), attempt_started_at = $2, \
         reason = NULL, message = NULL, not_before = NULL, \
         routine_rev = (SELECT rev FROM routines WHERE id = routine_id) \
         WHERE id IN (SELECT unhex(value, '-') FROM json_each($1)) RETURNING ",
        run_columns!(),
        ", ",
        unfinished_columns!()
    ))
    .bind(text(&started)?)
    .bind(now)
    .fetch_all(&mut tx.db)
    .await?;
    let mut started = HashMap::with_capacity(rows.len());
    for Keyed { id, row } in rows {
        match row.get().and_then(|row| Ok((row.row.clone().into_run()?, row))) {
            Ok(one) => drop(started.insert(id, one)),
            Err(error) => finish::end_unreadable(tx, id, error, now).await?,
        }
    }
    let in_order = runs.into_iter().filter_map(|attempt| {
        let (run, row) = started.remove(attempt.run.as_uuid())?;
        Some(Started { attempt, run, row })
    });
    let started: Vec<Started> = in_order.collect();
    let runs: Vec<RoutineRun> = started.iter().map(|one| one.run.clone()).collect();
    count_starts(tx, &runs, now).await?;
    Ok(started)
}

/// Ends a run that waits and cannot be read, or whose routine cannot.
async fn fail_unreadable(tx: &mut WriteTx, id: Uuid, error: StoreError, now: DateTime<Utc>) -> Result<(), StoreError> {
    if !error.concerns_one_row() {
        return Err(error);
    }
    tracing::error!(run.id = %id, error = &error as &dyn std::error::Error, "a run cannot start");
    let end = AttemptEnd::failed(RunReason::Internal, error.to_string());
    let ended = match finish::load(tx, RunId::from_uuid(id)).await {
        Ok(Some(live)) => finish::end(tx, live, AttemptResult::unused(end), now).await.map(drop),
        Ok(None) => Ok(()),
        Err(error) => Err(error),
    };
    match ended {
        Err(error) => finish::end_unreadable(tx, id, error, now).await,
        ended => ended,
    }
}

/// Ends a queued run whose routine has spent its budget since the run was admitted. Returns whether it has ended.
async fn stop_without_budget(tx: &mut WriteTx, attempt: &RunAttempt, now: DateTime<Utc>) -> Result<bool, StoreError> {
    if !attempt.has_budget || !budgets::is_spent(tx, attempt.routine, now).await? {
        return Ok(false);
    }
    let Some(live) = finish::load(tx, attempt.run).await? else { return Ok(true) };
    let end = AttemptEnd::out_of_budget(live.has_started());
    finish::end(tx, live, AttemptResult::unused(end), now).await?;
    Ok(true)
}

/// Counts runs at their first start, and disables routines that start too many.
async fn count_starts(tx: &mut WriteTx, runs: &[RoutineRun], now: DateTime<Utc>) -> Result<(), StoreError> {
    let ids: Vec<RoutineId> = runs.iter().map(|run| run.routine_id).collect();
    let first: Vec<RoutineId> =
        runs.iter().filter(|run| run.started_at == Some(now)).map(|run| run.routine_id).collect();
    sqlx::query(
        "UPDATE routines SET last_run_at = $3, \
         run_count = run_count + (SELECT COUNT(*) FROM json_each($2) WHERE unhex(value, '-') = routines.id) \
         WHERE id IN (SELECT unhex(value, '-') FROM json_each($1))",
    )
    .bind(text(&ids)?)
    .bind(text(&first)?)
    .bind(now)
    .execute(&mut tx.db)
    .await?;
    let too_fast: Vec<Uuid> = sqlx::query_scalar(
        "SELECT j.value FROM (SELECT DISTINCT unhex(value, '-') AS value FROM json_each($1)) AS j WHERE (SELECT COUNT(*) FROM ( \
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
