//! The end of runs, in one transaction: each run or its next attempt, the counters of its routine, the notification of
//! its owner, the line in the main session, and the events.
//!
//! What follows is decided in `domain::routine::ending`; this reads what the decision needs and writes it. The budget is
//! charged before the decision, so that an attempt that spends it is the last. The routine is disabled last, since that
//! cancels its queued runs. `failures_in_a_row_notify_once_and_disable_the_routine_once`,
//! `a_run_is_not_tried_again_once_the_budget_is_spent` and
//! `a_failed_run_is_tried_again_after_a_while_as_the_same_run` (stories, `routines/guardrails`) fail when the order is
//! changed.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use protocol::{NotificationKind, Routine, RoutineId, RoutineRun, RunId, RunReason, RunStatus};
use sqlx::{FromRow, QueryBuilder, Sqlite};
use uuid::Uuid;

use super::{budgets, run_log};
use crate::{
    NewNotification, Store, StoreError,
    routines::{
        definitions::{self, disable},
        events::own_events,
        lines, notifications, problems, publish,
        rows::{RunRow, run_columns},
    },
    sqlite::{
        rows::{RowRef, column, text},
        write_tx::WriteTx,
    },
    users::user_storage,
};
use base::failpoint;
use domain::{
    job::JobRecord,
    model_call::ErrorKind,
    routine::{
        attempt::{AttemptEnd, AttemptResult},
        ending::{AfterAttempt, Counted, EndFacts, Notice, RetryPlan, RunEnd, after_attempt},
        outcome::NotifiedFailure,
    },
};

/// The columns of [`UnfinishedRun`] beside those of the run.
macro_rules! unfinished_columns {
    () => {
        "routine_rev, depth, rate_limit_waits, cancel_reason"
    };
}
pub(in crate::routines) use unfinished_columns;

/// A run that may end, with what only its row has.
#[derive(Clone, FromRow)]
pub(in crate::routines) struct UnfinishedRun {
    #[sqlx(flatten)]
    pub(in crate::routines) row: RunRow,
    routine_rev: i64,
    depth: u32,
    rate_limit_waits: u32,
    cancel_reason: Option<String>,
}

impl Store {
    /// Ends an attempt of a run. `None`: it had ended, or another attempt has begun.
    pub async fn end_run(
        &self,
        run: RunId,
        attempt: u32,
        result: AttemptResult,
        now: DateTime<Utc>,
    ) -> Result<Option<RoutineRun>, StoreError> {
        failpoint::reach("routine.before_end");
        let ended = self
            .write(transaction!(|tx| {
                let Some(live) = load(tx, run).await? else { return Ok(None) };
                if live.row.status != RunStatus::Running.as_str() || live.row.attempt != attempt {
                    return Ok(None);
                }
                end(tx, live, result, now).await.map(Some)
            }))
            .await?;
        failpoint::reach("routine.after_end");
        Ok(ended)
    }
}

/// The row of a run.
pub(in crate::routines) async fn load(tx: &mut WriteTx, run: RunId) -> Result<Option<UnfinishedRun>, StoreError> {
    Ok(sqlx::query_as(concat!(
        "SELECT ",
        run_columns!(),
        ", ",
        unfinished_columns!(),
        " FROM routine_runs WHERE id = $1"
    ))
    .bind(run)
    .fetch_optional(&mut tx.db)
    .await?)
}

/// Ends the run of a job, in the transaction in which the job ends.
pub(crate) async fn end_with_job(tx: &mut WriteTx, job: &JobRecord, now: DateTime<Utc>) -> Result<(), StoreError> {
    let Some(link) = job.brief.routine else { return Ok(()) };
    if !job.state().is_finished() {
        return Ok(());
    }
    let live = match load(tx, link.run).await {
        // The job must end even if its run cannot be read.
        Err(error) => return end_unreadable(tx, *link.run.as_uuid(), error, now).await,
        Ok(live) => live,
    };
    let Some(live) = live else { return Ok(()) };
    if live.row.status != RunStatus::Running.as_str() || live.row.job_id != Some(job.id) {
        return Ok(());
    }
    let cancelled_by = live.cancel_reason.as_deref().and_then(RunReason::parse);
    let last_error: Option<Option<String>> = sqlx::query_scalar("SELECT last_call_error FROM jobs WHERE id = $1")
        .bind(job.id)
        .fetch_optional(&mut tx.db)
        .await?;
    let last_error = last_error.flatten().as_deref().and_then(ErrorKind::parse);
    match end(tx, live, AttemptResult::of_job(job, cancelled_by, last_error), now).await {
        Err(error) => end_unreadable(tx, *link.run.as_uuid(), error, now).await,
        Ok(_) => Ok(()),
    }
}

/// Ends a run that cannot be read, so that it holds up no other. Its row has the error as its message. Another error
/// is returned.
pub(super) async fn end_unreadable(
    tx: &mut WriteTx,
    run: Uuid,
    error: StoreError,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    if !error.concerns_one_row() {
        return Err(error);
    }
    tracing::error!(run.id = %run, error = &error as &dyn std::error::Error, "a run cannot be read; it has failed");
    sqlx::query(
        "UPDATE routine_runs SET status = 'failed', reason = 'internal', message = $2, completed_at = $3 \
         WHERE id = $1 AND status IN ('queued', 'running')",
    )
    .bind(run)
    .bind(error.to_string())
    .bind(now)
    .execute(&mut tx.db)
    .await?;
    Ok(())
}

/// An attempt that has ended, with the routine of its run if that can be read.
pub(in crate::routines) struct EndedAttempt<'a> {
    pub(in crate::routines) live: UnfinishedRun,
    pub(in crate::routines) result: AttemptResult,
    pub(in crate::routines) routine: Option<&'a Routine>,
}

/// Ends a run, or has it tried again.
pub(in crate::routines) async fn end(
    tx: &mut WriteTx,
    live: UnfinishedRun,
    result: AttemptResult,
    now: DateTime<Utc>,
) -> Result<RoutineRun, StoreError> {
    let routine = readable_routine(tx, live.row.routine_id).await?;
    let row = RowRef { table: "routine_runs", id: live.row.id };
    let runs = end_all(tx, vec![EndedAttempt { live, result, routine: routine.as_ref() }], now).await?;
    publish::runs(tx, &runs.iter().collect::<Vec<_>>(), now).await?;
    row.known("id", runs.into_iter().next())
}

/// Like [`end`], for runs whose routines were read in this transaction: of different routines, or all without a result.
/// The caller appends the events of the runs.
pub(in crate::routines) async fn end_all(
    tx: &mut WriteTx,
    attempts: Vec<EndedAttempt<'_>>,
    now: DateTime<Utc>,
) -> Result<Vec<RoutineRun>, StoreError> {
    let (mut runs, mut ends) = (Vec::with_capacity(attempts.len()), Vec::with_capacity(attempts.len()));
    for attempt in attempts {
        match decide(tx, &attempt, now).await? {
            AfterAttempt::Retry(plan) => runs.push(requeue(tx, &attempt, plan, now).await?),
            AfterAttempt::End(end) => ends.push((attempt, *end)),
        }
    }
    let ended = write_ends(tx, &ends, now).await?;
    let events: Vec<&RoutineRun> =
        ended.iter().zip(&ends).filter(|(_, (_, end))| end.is_event).map(|(run, _)| run).collect();
    own_events::runs_ended(tx, &events, now).await?;
    count(tx, &ends).await?;
    for (run, (attempt, end)) in ended.iter().zip(ends) {
        if let Some(routine) = attempt.routine {
            tell(tx, routine, run, attempt.live.depth, end, now).await?;
        }
        run_log::ended(tx, run, attempt.routine.and_then(|routine| routine.next_fire_at), now);
    }
    runs.extend(ended);
    Ok(runs)
}

/// Charges the budget, and decides what follows the end of an attempt.
async fn decide(
    tx: &mut WriteTx,
    EndedAttempt { live, result, routine }: &EndedAttempt<'_>,
    now: DateTime<Utc>,
) -> Result<AfterAttempt, StoreError> {
    let mut is_budget_spent = false;
    if let Some(routine) = routine.filter(|routine| routine.guardrails.budget.is_some()) {
        budgets::add(tx, routine, result.tokens, result.cost_usd.unwrap_or(0.0), now).await?;
        is_budget_spent = budgets::is_spent(tx, routine.id, now).await?;
    }
    let notified: Vec<NotifiedFailure> = if matches!(result.end, AttemptEnd::Failed { .. }) {
        notifications::known_alerts(tx, *live.row.routine_id.as_uuid()).await?
    } else {
        Vec::new()
    };
    let facts = EndFacts {
        run: RunId::from_uuid(live.row.id),
        attempt: live.row.attempt,
        started_at: live.row.started_at.unwrap_or(now),
        rate_limit_waits: live.rate_limit_waits,
        routine: *routine,
        is_budget_spent,
        notified: &notified,
        now,
    };
    Ok(after_attempt(result, &facts))
}

/// Tells the owner of the end of a run, and disables the routine if that follows.
async fn tell(
    tx: &mut WriteTx,
    routine: &Routine,
    run: &RoutineRun,
    depth: u32,
    end: RunEnd,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    match end.notice {
        Some(Notice::Run { kind, title, text }) => notify(tx, routine, run, (kind, title, text), now).await?,
        Some(Notice::Failure { reason, title, text }) => {
            notifications::note_alert(tx, routine.id, reason, now).await?;
            notify(tx, routine, run, (NotificationKind::RunFailed, title, text), now).await?;
        }
        Some(Notice::Problem(problem)) => problems::report(tx, routine.id, &problem, now).await?,
        None => {}
    }
    if let Some(text) = end.line {
        lines::post_summary(tx, routine, text, depth, now).await?;
    }
    if let Some(reason) = end.disable {
        disable::disable(tx, routine.id, reason, now).await?;
    }
    Ok(())
}

async fn notify(
    tx: &mut WriteTx,
    routine: &Routine,
    run: &RoutineRun,
    (kind, title, text): (NotificationKind, String, String),
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let notice = NewNotification::new(&routine.user_id, kind, title, text);
    let notice = NewNotification { run: Some(run.id), job: run.job_id, ..notice };
    notifications::insert(tx, routine.id, notice, now).await
}

/// The routine of a run; `None` if it was deleted, or cannot be read: its run ends nevertheless.
async fn readable_routine(tx: &mut WriteTx, routine: RoutineId) -> Result<Option<Routine>, StoreError> {
    match definitions::load(&mut tx.db, routine).await {
        Err(error) if error.concerns_one_row() => {
            tracing::error!(error = &error as &dyn std::error::Error, "a routine cannot be read");
            Ok(None)
        }
        other => other,
    }
}

async fn requeue(
    tx: &mut WriteTx,
    EndedAttempt { live, result, routine }: &EndedAttempt<'_>,
    plan: RetryPlan,
    now: DateTime<Utc>,
) -> Result<RoutineRun, StoreError> {
    let row: RunRow = sqlx::query_as(concat!(
        "UPDATE routine_runs SET status = 'queued', reason = $2, message = $3, not_before = $4, \
         attempt = attempt + $5, rate_limit_waits = rate_limit_waits + 1 - $5, tokens_used = tokens_used + $6, \
         cost_usd = cost_usd + $7 WHERE id = $1 RETURNING ",
        run_columns!()
    ))
    .bind(live.row.id)
    .bind(plan.reason.as_str())
    .bind(plan.message)
    .bind(plan.at)
    .bind(i64::from(plan.counts_attempt))
    .bind(column(result.tokens))
    .bind(result.cost_usd)
    .fetch_one(&mut tx.db)
    .await?;
    let run = row.into_run()?;
    run_log::ended(tx, &run, routine.and_then(|routine| routine.next_fire_at), now);
    Ok(run)
}

/// Writes the ends of runs, and returns the runs in their order.
async fn write_ends(
    tx: &mut WriteTx,
    ends: &[(EndedAttempt<'_>, RunEnd)],
    now: DateTime<Utc>,
) -> Result<Vec<RoutineRun>, StoreError> {
    if ends.is_empty() {
        return Ok(Vec::new());
    }
    let mut keeps_payload = Vec::with_capacity(ends.len());
    for (attempt, end) in ends {
        keeps_payload.push(end.keeps_payload && !user_storage::is_full(tx, &attempt.live.row.user_id).await?);
    }
    let mut update = QueryBuilder::<Sqlite>::new(
        "WITH ended (run, status, reason, message, at, summary, result, cut, tokens, cost, keeps_payload) AS (",
    );
    update.push_values(ends.iter().zip(keeps_payload), |mut row, ((attempt, end), keeps_payload)| {
        row.push_bind(attempt.live.row.id)
            .push_bind(end.status.as_str())
            .push_bind(end.reason.map(RunReason::as_str))
            .push_bind(end.message.clone())
            .push_bind(now)
            .push_bind(end.summary.clone())
            .push_bind(end.result.clone())
            .push_bind(end.cut)
            .push_bind(column(attempt.result.tokens))
            .push_bind(attempt.result.cost_usd)
            .push_bind(keeps_payload);
    });
    update.push(concat!(
        ") UPDATE routine_runs SET status = ended.status, reason = ended.reason, message = ended.message, completed_at = ended.at, \
         result_summary = ended.summary, result = ended.result, cut = ended.cut, tokens_used = tokens_used + ended.tokens, cost_usd = cost_usd + ended.cost, \
         payload = CASE WHEN ended.keeps_payload THEN payload END FROM ended WHERE id = ended.run RETURNING ",
        run_columns!()
    ));
    let rows: Vec<RunRow> = update.build_query_as().persistent(ends.len() == 1).fetch_all(&mut tx.db).await?;
    let mut runs: HashMap<Uuid, RunRow> = rows.into_iter().map(|row| (row.id, row)).collect();
    let in_order = ends.iter().map(|(attempt, _)| {
        let row_ref = RowRef { table: "routine_runs", id: attempt.live.row.id };
        row_ref.known("id", runs.remove(&row_ref.id))?.into_run()
    });
    in_order.collect()
}

/// Counts runs in their routines. Several runs of a routine count as the same.
async fn count(tx: &mut WriteTx, ends: &[(EndedAttempt<'_>, RunEnd)]) -> Result<(), StoreError> {
    let counted = ends.iter().filter_map(|(attempt, end)| {
        let (is_success, state) = match &end.counted {
            Counted::Nothing => return None,
            Counted::Failure => (false, None),
            Counted::Success { state } => (true, state.clone()),
        };
        Some((attempt.routine?, end.status, is_success, attempt.live.routine_rev, state))
    });
    let counted: Vec<_> = counted.collect();
    if counted.is_empty() {
        return Ok(());
    }
    let recovered: Vec<RoutineId> = counted
        .iter()
        .filter(|(routine, _, is_success, ..)| *is_success && routine.consecutive_failures > 0)
        .map(|(routine, ..)| routine.id)
        .collect();
    let mut update = QueryBuilder::<Sqlite>::new("WITH counted (routine, status, is_success, rev, state) AS (");
    update.push_values(counted, |mut row, (routine, status, is_success, rev, state)| {
        row.push_bind(routine.id).push_bind(status.as_str()).push_bind(is_success).push_bind(rev).push_bind(state);
    });
    update.push(
        ") UPDATE routines SET last_status = c.status, \
         consecutive_failures = CASE WHEN c.is_success THEN 0 ELSE consecutive_failures + 1 END, \
         verified = verified OR (c.is_success AND verify_rev <= c.rev), state = COALESCE(c.state, routines.state) \
         FROM counted AS c WHERE id = c.routine",
    );
    update.build().persistent(ends.len() == 1).execute(&mut tx.db).await?;
    if !recovered.is_empty() {
        sqlx::query("DELETE FROM routine_alerts WHERE routine_id IN (SELECT unhex(value, '-') FROM json_each($1))")
            .bind(text(&recovered)?)
            .execute(&mut tx.db)
            .await?;
    }
    Ok(())
}

impl UnfinishedRun {
    pub(in crate::routines) fn status(&self) -> Result<RunStatus, StoreError> {
        let row_ref = RowRef { table: "routine_runs", id: self.row.id };
        row_ref.known("status", RunStatus::parse(&self.row.status))
    }

    pub(in crate::routines) const fn has_started(&self) -> bool {
        self.row.started_at.is_some()
    }
}
