//! The end of a run, in one transaction: the run or its next attempt, the counters of its routine, the notification of
//! its owner, the line in the main session, and the events.
//!
//! What follows is decided in `domain::routine::ending`; this reads what the decision needs and writes it. The budget is
//! charged before the decision, so that an attempt that spends it is the last. The routine is disabled last, since that
//! cancels its queued runs. `failures_in_a_row_notify_once_and_disable_the_routine_once`,
//! `a_run_is_not_tried_again_once_the_budget_is_spent` and
//! `a_failed_run_is_tried_again_after_a_while_as_the_same_run` (stories, `routines/guardrails`) fail when the order is
//! changed.

use chrono::{DateTime, Utc};
use protocol::{NotificationKind, Routine, RoutineId, RoutineRun, RunId, RunReason, RunStatus};
use sqlx::FromRow;
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
        rows::{RowRef, column},
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

/// Ends a run, or has it tried again.
pub(in crate::routines) async fn end(
    tx: &mut WriteTx,
    live: UnfinishedRun,
    result: AttemptResult,
    now: DateTime<Utc>,
) -> Result<RoutineRun, StoreError> {
    let routine = readable_routine(tx, live.row.routine_id).await?;
    let run = end_of(tx, live, routine.as_ref(), result, now).await?;
    publish::runs(tx, &[&run], now).await?;
    Ok(run)
}

/// Like [`end`], for a routine that was read in this transaction. The caller appends the events of the run.
pub(in crate::routines) async fn end_of(
    tx: &mut WriteTx,
    live: UnfinishedRun,
    routine: Option<&Routine>,
    result: AttemptResult,
    now: DateTime<Utc>,
) -> Result<RoutineRun, StoreError> {
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
    let after = after_attempt(
        &result,
        &EndFacts {
            run: RunId::from_uuid(live.row.id),
            attempt: live.row.attempt,
            started_at: live.row.started_at.unwrap_or(now),
            rate_limit_waits: live.rate_limit_waits,
            routine,
            is_budget_spent,
            notified: &notified,
            now,
        },
    );
    let run = match after {
        AfterAttempt::Retry(plan) => requeue(tx, &live, &result, plan).await?,
        AfterAttempt::End(end) => finish(tx, &live, &result, routine, *end, now).await?,
    };
    run_log::ended(tx, &run, routine.and_then(|routine| routine.next_fire_at), now);
    Ok(run)
}

/// Writes the end of a run, and what it means for its routine and its owner.
async fn finish(
    tx: &mut WriteTx,
    live: &UnfinishedRun,
    result: &AttemptResult,
    routine: Option<&Routine>,
    end: RunEnd,
    now: DateTime<Utc>,
) -> Result<RoutineRun, StoreError> {
    let run = write_end(tx, live, result, &end, now).await?;
    if end.is_event {
        own_events::run_ended(tx, &run, now).await?;
    }
    let Some(routine) = routine else { return Ok(run) };
    count(tx, routine, &run, end.counted, live.routine_rev).await?;
    match end.notice {
        Some(Notice::Run { kind, title, text }) => notify(tx, routine, &run, (kind, title, text), now).await?,
        Some(Notice::Failure { reason, title, text }) => {
            notifications::note_alert(tx, routine.id, reason, now).await?;
            notify(tx, routine, &run, (NotificationKind::RunFailed, title, text), now).await?;
        }
        Some(Notice::Problem(problem)) => problems::report(tx, routine.id, &problem, now).await?,
        None => {}
    }
    if let Some(text) = end.line {
        lines::post_summary(tx, routine, text, live.depth, now).await?;
    }
    if let Some(reason) = end.disable {
        disable::disable(tx, routine.id, reason, now).await?;
    }
    Ok(run)
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
    live: &UnfinishedRun,
    result: &AttemptResult,
    plan: RetryPlan,
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
    row.into_run()
}

async fn write_end(
    tx: &mut WriteTx,
    live: &UnfinishedRun,
    result: &AttemptResult,
    end: &RunEnd,
    now: DateTime<Utc>,
) -> Result<RoutineRun, StoreError> {
    let keeps_payload = end.keeps_payload && !user_storage::is_full(tx, &live.row.user_id).await?;
    let row: RunRow = sqlx::query_as(concat!(
        "UPDATE routine_runs SET status = $2, reason = $3, message = $4, completed_at = $5, result_summary = $6, \
         tokens_used = tokens_used + $7, cost_usd = cost_usd + $8, payload = CASE WHEN $9 THEN payload END \
         WHERE id = $1 RETURNING ",
        run_columns!()
    ))
    .bind(live.row.id)
    .bind(end.status.as_str())
    .bind(end.reason.map(RunReason::as_str))
    .bind(&end.message)
    .bind(now)
    .bind(&end.summary)
    .bind(column(result.tokens))
    .bind(result.cost_usd)
    .bind(keeps_payload)
    .fetch_one(&mut tx.db)
    .await?;
    row.into_run()
}

/// Counts a run in its routine. `rev` is the revision of the routine that the run started with.
async fn count(
    tx: &mut WriteTx,
    routine: &Routine,
    run: &RoutineRun,
    counted: Counted,
    rev: i64,
) -> Result<(), StoreError> {
    let (is_success, state) = match counted {
        Counted::Nothing => return Ok(()),
        Counted::Failure => (false, None),
        Counted::Success { state } => (true, state),
    };
    sqlx::query(
        "UPDATE routines SET last_status = $2, consecutive_failures = CASE WHEN $3 THEN 0 ELSE consecutive_failures + 1 END, \
         verified = verified OR ($3 AND verify_rev <= $4), state = COALESCE($5, state) WHERE id = $1",
    )
    .bind(routine.id)
    .bind(run.status.as_str())
    .bind(is_success)
    .bind(rev)
    .bind(state)
    .execute(&mut tx.db)
    .await?;
    if is_success && routine.consecutive_failures > 0 {
        sqlx::query("DELETE FROM routine_alerts WHERE routine_id = $1").bind(routine.id).execute(&mut tx.db).await?;
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
