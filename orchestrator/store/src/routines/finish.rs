//! The end of a run, in one transaction: the run, its next attempt, the counters of its routine, the notification of
//! its owner, the line in the main session, and the events.
//!
//! The order in `end_of` matters. The budget is charged before it is asked whether the attempt may be repeated, so that
//! an attempt that spends the budget is the last. The run ends before its routine counts it and before anyone is told,
//! since what they are told is the row that was written. The routine is as it was read at the beginning: its failures
//! do not count this run yet (`consecutive_failures + 1`). It is disabled last, since that cancels its queued runs and
//! notifies by itself; the notification of the run must know of it, so that the owner is told once.
//! `failures_in_a_row_notify_once_and_disable_the_routine_once`, `a_run_is_not_tried_again_once_the_budget_is_spent`
//! and `a_failed_run_is_tried_again_after_a_while_as_the_same_run` (stories, `routines/guardrails`) fail when it is
//! changed.

use chrono::{DateTime, Utc};
use protocol::{
    DisabledReason, JobId, JobReason, JobState, Retry, Routine, RoutineActionKind, RoutineId, RoutineRun, RunId,
    RunReason, RunStatus,
};
use sqlx::FromRow;
use uuid::Uuid;

use super::{
    super::{
        Store, StoreError,
        rows::{RowRef, column},
        write_tx::WriteTx,
    },
    budgets, definitions, disable, lines, notifications, own_events, publish,
    rows::{RunRow, run_columns},
    run_log,
};
use base::failpoint;
use domain::{
    job::JobRecord,
    routine::outcome::{
        AfterFailure, FailureFacts, MAX_RESULT_CHARS, MAX_STATE_CHARS, Reply, after_failure, counts_as_failure, reply,
        shortened,
    },
};

/// Characters of a failure's message.
const MAX_MESSAGE_CHARS: usize = 1_000;

/// How an attempt of a run ended, and what it used.
#[derive(Debug, Clone, PartialEq)]
pub struct AttemptResult {
    pub end: AttemptEnd,
    pub text: Option<String>,
    /// Tokens of its model calls.
    pub tokens: u64,
    /// Cost of its model calls; `None` when a call had no price.
    pub cost_usd: Option<f64>,
}

/// How an attempt of a run ended.
#[derive(Debug, Clone, PartialEq)]
pub enum AttemptEnd {
    /// Successfully, with nothing to report.
    Ok,
    /// Successfully, with something to report.
    Attention,
    /// It did not start.
    Skipped {
        /// Why it did not.
        reason: RunReason,
        /// A human-readable message.
        message: String,
    },
    Failed {
        /// Why it failed.
        reason: RunReason,
        /// A human-readable message.
        message: String,
        /// How long a provider asked to wait.
        retry_after: Option<chrono::TimeDelta>,
    },
}

impl AttemptEnd {
    /// A failure that no provider has asked to wait for.
    pub const fn failed(reason: RunReason, message: String) -> Self {
        Self::Failed { reason, message, retry_after: None }
    }
}

impl AttemptResult {
    /// The result of an attempt that made no model call.
    pub const fn unused(end: AttemptEnd) -> Self {
        Self { end, text: None, tokens: 0, cost_usd: Some(0.0) }
    }
}

/// The columns of [`UnfinishedRun`] beside those of the run.
macro_rules! unfinished_columns {
    () => {
        "routine_rev, depth, rate_limit_waits, cancel_reason"
    };
}
pub(super) use unfinished_columns;

/// A run that may end, with what only its row has.
#[derive(Clone, FromRow)]
pub(super) struct UnfinishedRun {
    #[sqlx(flatten)]
    row: RunRow,
    routine_rev: i64,
    depth: i64,
    rate_limit_waits: i64,
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
                if live.row.status() != RunStatus::Running.as_str() || live.row.attempt() != i64::from(attempt) {
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
pub(super) async fn load(tx: &mut WriteTx, run: RunId) -> Result<Option<UnfinishedRun>, StoreError> {
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
    let Some(live) = load(tx, link.run).await? else { return Ok(()) };
    if live.row.status() != RunStatus::Running.as_str() || live.row.job() != Some(job.id) {
        return Ok(());
    }
    let cancelled_by = live.cancel_reason.as_deref().and_then(RunReason::parse);
    let is_account_refused = job.reason() == Some(JobReason::LlmError) && is_account_refused(tx, job.id).await?;
    let result = if is_account_refused { account_refused(job) } else { result_of_job(job, cancelled_by) };
    let ended = end(tx, live, result, now).await;
    match ended {
        // The job must end even if its routine cannot be read.
        Err(error @ StoreError::Inconsistent { .. }) => {
            tracing::error!(run.id = %link.run, error = &error as &dyn std::error::Error, "the run of a job cannot be ended");
            Ok(())
        }
        other => other.map(drop),
    }
}

/// Whether the last model call of a job failed because the provider refused the key or the account: every other job
/// would fail, too. The error of a call begins with its kind.
async fn is_account_refused(tx: &mut WriteTx, job: JobId) -> Result<bool, StoreError> {
    let error: Option<Option<String>> =
        sqlx::query_scalar("SELECT error FROM model_calls WHERE work_id = $1 ORDER BY at DESC, attempt DESC LIMIT 1")
            .bind(job)
            .fetch_optional(&mut tx.db)
            .await?;
    Ok(error.flatten().is_some_and(|error| ["auth: ", "quota: "].iter().any(|kind| error.starts_with(kind))))
}

fn account_refused(job: &JobRecord) -> AttemptResult {
    let message = job.message().unwrap_or("the provider refused the key or the account").to_owned();
    let result = result_of_job(job, None);
    AttemptResult { end: AttemptEnd::failed(RunReason::ProviderAccount, message), ..result }
}

fn result_of_job(job: &JobRecord, cancelled_by: Option<RunReason>) -> AttemptResult {
    let text = job.result().and_then(|result| result.text);
    let end = match job.state() {
        JobState::Completed | JobState::Accepted => match reply(text.as_deref().unwrap_or_default()) {
            Reply::Nothing => AttemptEnd::Ok,
            Reply::Attention(_) => AttemptEnd::Attention,
            Reply::Empty => AttemptEnd::failed(RunReason::EmptyReply, "the job's result has no text".to_owned()),
        },
        JobState::Cancelled => {
            let reason = cancelled_by.unwrap_or(RunReason::JobCancelled);
            AttemptEnd::failed(reason, job.message().unwrap_or("the job was cancelled").to_owned())
        }
        _ => {
            let reason = match job.reason() {
                Some(JobReason::SandboxUnavailable | JobReason::ImageMissing | JobReason::EngineError) => {
                    RunReason::SandboxUnavailable
                }
                Some(JobReason::WallClock) => RunReason::Timeout,
                _ => RunReason::JobFailed,
            };
            let name = job.reason().map_or("failed", JobReason::as_str);
            AttemptEnd::failed(
                reason,
                job.message().map_or_else(|| name.to_owned(), |message| format!("{name}: {message}")),
            )
        }
    };
    let usage = &job.usage;
    let tokens = usage.input_tokens + usage.output_tokens;
    AttemptResult { end, text, tokens, cost_usd: usage.cost_usd }
}

/// Ends a run, or has it tried again.
pub(super) async fn end(
    tx: &mut WriteTx,
    live: UnfinishedRun,
    result: AttemptResult,
    now: DateTime<Utc>,
) -> Result<RoutineRun, StoreError> {
    let routine = readable_routine(tx, live.row.routine()).await?;
    let run = end_of(tx, live, routine.as_ref(), result, now).await?;
    publish::runs(tx, &[&run], now).await?;
    Ok(run)
}

/// Like [`end`], for a routine that was read in this transaction. The caller appends the events of the run.
pub(super) async fn end_of(
    tx: &mut WriteTx,
    live: UnfinishedRun,
    routine: Option<&Routine>,
    result: AttemptResult,
    now: DateTime<Utc>,
) -> Result<RoutineRun, StoreError> {
    charge_budget(tx, routine, &result, now).await?;
    let may_retry = match routine {
        Some(routine) if allows_queued_runs(routine) => {
            routine.guardrails.budget.is_none() || !budgets::is_spent(tx, routine.id, now).await?
        }
        _ => false,
    };
    let after = match &result.end {
        AttemptEnd::Failed { reason, retry_after, .. } => after_failure(&FailureFacts {
            reason: *reason,
            attempt: u32::try_from(live.row.attempt()).unwrap_or(u32::MAX),
            started_at: live.row.started_at().unwrap_or(now),
            rate_limit_waits: u32::try_from(live.rate_limit_waits).unwrap_or(u32::MAX),
            retry: routine.map_or_else(Retry::default, |routine| routine.guardrails.retry),
            may_retry,
            retry_after: *retry_after,
            now,
            jitter: jitter(live.row.id, live.row.attempt()),
        }),
        AttemptEnd::Ok | AttemptEnd::Attention | AttemptEnd::Skipped { .. } => AfterFailure::Final,
    };
    let next = routine.and_then(|routine| routine.next_fire_at);
    if let AfterFailure::Retry { at, counts_attempt } = after {
        let run = requeue(tx, &live, &result, (at, counts_attempt)).await?;
        run_log::ended(tx, &run, next, now);
        return Ok(run);
    }
    let (depth, rev) = (live.depth, live.routine_rev);
    let run = finish(tx, &live, &result, routine, now).await?;
    if run.status != RunStatus::Skipped {
        own_events::run_ended(tx, &run, now).await?;
    }
    if let Some(routine) = routine {
        count_result(tx, routine, &run, &result, rev).await?;
        let disabled = disable_reason(routine, &run, after == AfterFailure::FinalAndDisable);
        notifications::run_ended(tx, routine, &run, disabled.is_some(), now).await?;
        if is_counted(&run) {
            lines::post_summary(tx, routine, &run, u32::try_from(depth).unwrap_or(u32::MAX), now).await?;
        }
        if let Some(reason) = disabled {
            disable::disable(tx, routine.id, reason, now).await?;
        }
    }
    run_log::ended(tx, &run, next, now);
    Ok(run)
}

/// The routine of a run; `None` if it was deleted, or cannot be read: its run ends nevertheless.
async fn readable_routine(tx: &mut WriteTx, routine: RoutineId) -> Result<Option<Routine>, StoreError> {
    match definitions::load(&mut tx.db, routine).await {
        Err(error @ StoreError::Inconsistent { .. }) => {
            tracing::error!(error = &error as &dyn std::error::Error, "a routine cannot be read");
            Ok(None)
        }
        other => other,
    }
}

/// Whether runs that were admitted may start or be tried again: the routine is enabled, or its schedule has come to its
/// end.
pub(super) fn allows_queued_runs(routine: &Routine) -> bool {
    routine.enabled || routine.disabled_reason.is_some_and(DisabledReason::is_end_of_schedule)
}

/// A number in [0, 1) that spreads the retries of runs that failed together. It is derived from the run and the
/// attempt, so that ending a run needs no randomness. The factor is 2³² divided by the golden ratio (multiplicative
/// hashing): seeds that differ little, as those of consecutive attempts do, get numbers that are far apart.
fn jitter(run: Uuid, attempt: i64) -> f64 {
    let bytes = run.into_bytes();
    let seed = u32::from_be_bytes([bytes[12], bytes[13], bytes[14], bytes[15]]);
    let mixed = seed.wrapping_add(u32::try_from(attempt).unwrap_or(0)).wrapping_mul(0x9E37_79B9);
    f64::from(mixed) / (f64::from(u32::MAX) + 1.0)
}

async fn requeue(
    tx: &mut WriteTx,
    live: &UnfinishedRun,
    result: &AttemptResult,
    (at, counts_attempt): (DateTime<Utc>, bool),
) -> Result<RoutineRun, StoreError> {
    let (reason, message) = reason_of(result);
    let row: RunRow = sqlx::query_as(concat!(
        "UPDATE routine_runs SET status = 'queued', reason = $2, message = $3, not_before = $4, \
         attempt = attempt + $5, rate_limit_waits = rate_limit_waits + 1 - $5, tokens_used = tokens_used + $6, \
         cost_usd = cost_usd + $7 WHERE id = $1 RETURNING ",
        run_columns!()
    ))
    .bind(live.row.id)
    .bind(reason.map(RunReason::as_str))
    .bind(message)
    .bind(at)
    .bind(i64::from(counts_attempt))
    .bind(column(result.tokens))
    .bind(result.cost_usd)
    .fetch_one(&mut tx.db)
    .await?;
    row.into_run()
}

fn reason_of(result: &AttemptResult) -> (Option<RunReason>, Option<String>) {
    match &result.end {
        AttemptEnd::Failed { reason, message, .. } | AttemptEnd::Skipped { reason, message } => {
            (Some(*reason), Some(shortened(message, MAX_MESSAGE_CHARS)))
        }
        AttemptEnd::Ok | AttemptEnd::Attention => (None, None),
    }
}

async fn finish(
    tx: &mut WriteTx,
    live: &UnfinishedRun,
    result: &AttemptResult,
    routine: Option<&Routine>,
    now: DateTime<Utc>,
) -> Result<RoutineRun, StoreError> {
    let status = match result.end {
        AttemptEnd::Ok => RunStatus::Ok,
        AttemptEnd::Attention => RunStatus::Attention,
        AttemptEnd::Skipped { .. } => RunStatus::Skipped,
        AttemptEnd::Failed { .. } => RunStatus::Failed,
    };
    let (reason, message) = reason_of(result);
    let row: RunRow = sqlx::query_as(concat!(
        "UPDATE routine_runs SET status = $2, reason = $3, message = $4, completed_at = $5, result_summary = $6, \
         tokens_used = tokens_used + $7, cost_usd = cost_usd + $8, payload = CASE WHEN $9 THEN payload END \
         WHERE id = $1 RETURNING ",
        run_columns!()
    ))
    .bind(live.row.id)
    .bind(status.as_str())
    .bind(reason.map(RunReason::as_str))
    .bind(message)
    .bind(now)
    .bind(result.text.as_ref().map(|text| shortened(text, MAX_RESULT_CHARS)))
    .bind(column(result.tokens))
    .bind(result.cost_usd)
    .bind(routine.is_some_and(keeps_payload))
    .fetch_one(&mut tx.db)
    .await?;
    row.into_run()
}

/// Whether the run keeps what fired it. The prompt of a full job has it, as long as the job is kept.
fn keeps_payload(routine: &Routine) -> bool {
    routine.persist_payload && routine.action.kind() != RoutineActionKind::FullJob
}

/// Adds what an attempt used to the budget of the current period.
async fn charge_budget(
    tx: &mut WriteTx,
    routine: Option<&Routine>,
    result: &AttemptResult,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let Some(routine) = routine else { return Ok(()) };
    budgets::add(tx, routine, result.tokens, result.cost_usd.unwrap_or(0.0), now).await
}

/// Whether the run counts toward the routine's successes and failures.
fn is_counted(run: &RoutineRun) -> bool {
    run.reason.is_none_or(counts_as_failure)
}

async fn count_result(
    tx: &mut WriteTx,
    routine: &Routine,
    run: &RoutineRun,
    result: &AttemptResult,
    rev: i64,
) -> Result<(), StoreError> {
    if !is_counted(run) {
        return Ok(());
    }
    let is_success = run.status.is_success();
    let state = result.text.as_ref().filter(|_| is_success).map(|text| shortened(text, MAX_STATE_CHARS));
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

fn disable_reason(routine: &Routine, run: &RoutineRun, is_account_refused: bool) -> Option<DisabledReason> {
    if !routine.enabled || run.status != RunStatus::Failed || !is_counted(run) {
        return None;
    }
    if is_account_refused {
        return Some(DisabledReason::ProviderAccount);
    }
    let max = routine.guardrails.disable_after_failures;
    (max > 0 && routine.consecutive_failures + 1 >= max).then_some(DisabledReason::Failures)
}

impl UnfinishedRun {
    pub(super) const fn id(&self) -> Uuid {
        self.row.id
    }

    pub(super) fn row_ref(&self) -> RowRef {
        RowRef { table: "routine_runs", id: self.row.id }
    }

    pub(super) fn status(&self) -> Result<RunStatus, StoreError> {
        self.row_ref().known("status", RunStatus::parse(self.row.status()))
    }

    pub(super) fn has_started(&self) -> bool {
        self.row.started_at().is_some()
    }

    pub(super) fn job(&self) -> Option<JobId> {
        self.row.job()
    }

    pub(super) fn into_run(self) -> Result<RoutineRun, StoreError> {
        self.row.into_run()
    }
}
