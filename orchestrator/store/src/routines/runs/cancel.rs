//! Runs that end before their work does: cancelled by a user, or replaced by a later firing.

use chrono::{DateTime, Utc};
use protocol::{AuditOutcome, JobId, RoutineId, RoutineRun, RunId, RunReason};
use uuid::Uuid;

use super::finish::{self, UnfinishedRun};
use crate::{
    AuditEntry, Store, StoreError,
    access::audit,
    jobs::lifecycle::{self, Transition},
    sqlite::{rows::text, write_tx::WriteTx},
};
use domain::routine::attempt::{AttemptEnd, AttemptResult};

/// The outcome of a request to cancel a run.
#[derive(Debug, Clone, PartialEq)]
pub enum CancelledRun {
    /// It has ended, or ends as soon as its job has stopped.
    Done(Box<RoutineRun>),
    /// It had ended before.
    Finished,
    NotFound,
}

impl Store {
    /// Cancels a run at a user's request. A run in progress ends in the database at once; the one that works on it
    /// finds out.
    pub async fn cancel_run(&self, run: RunId, entry: &AuditEntry) -> Result<CancelledRun, StoreError> {
        let entry = entry.clone();
        self.write(transaction!(|tx| {
            let Some(live) = finish::load(tx, run).await? else { return Ok(CancelledRun::NotFound) };
            if live.status()?.is_finished() {
                return Ok(CancelledRun::Finished);
            }
            let run = cancel(tx, live, RunReason::CancelledByUser, entry.at).await?;
            audit::insert(&mut tx.db, &entry, AuditOutcome::Done, None).await?;
            Ok(CancelledRun::Done(Box::new(run)))
        }))
        .await
    }

    /// Those of the given runs that have ended, or do not exist.
    pub async fn ended_among(&self, runs: &[RunId]) -> Result<Vec<RunId>, StoreError> {
        let ended: Vec<String> = sqlx::query_scalar(
            "SELECT j.value FROM json_each($1) AS j WHERE NOT EXISTS \
             (SELECT 1 FROM routine_runs WHERE id = unhex(j.value, '-') AND status IN ('queued', 'running'))",
        )
        .bind(text(&runs)?)
        .fetch_all(&self.read)
        .await?;
        Ok(ended.iter().filter_map(|id| Uuid::try_parse(id).ok()).map(RunId::from_uuid).collect())
    }
}

/// Ends the oldest run of a routine that a later firing replaces. Returns whether there was one that has ended now.
pub(in crate::routines) async fn cancel_oldest(
    tx: &mut WriteTx,
    routine: RoutineId,
    now: DateTime<Utc>,
) -> Result<bool, StoreError> {
    let oldest: Option<Uuid> = sqlx::query_scalar(
        "SELECT id FROM routine_runs WHERE routine_id = $1 AND status IN ('queued', 'running') AND cancel_reason IS NULL \
         ORDER BY id LIMIT 1",
    )
    .bind(routine)
    .fetch_optional(&mut tx.db)
    .await?;
    let Some(oldest) = oldest else { return Ok(false) };
    let Some(live) = finish::load(tx, RunId::from_uuid(oldest)).await? else { return Ok(false) };
    let run = cancel(tx, live, RunReason::CancelledByOverlap, now).await?;
    Ok(run.status.is_finished())
}

/// Ends the queued runs of a routine that was changed, disabled or deleted.
pub(in crate::routines) async fn cancel_queued(
    tx: &mut WriteTx,
    routine: RoutineId,
    reason: RunReason,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let waiting: Vec<Uuid> =
        sqlx::query_scalar("SELECT id FROM routine_runs WHERE routine_id = $1 AND status = 'queued' ORDER BY id")
            .bind(routine)
            .fetch_all(&mut tx.db)
            .await?;
    for run in waiting {
        if let Some(live) = finish::load(tx, RunId::from_uuid(run)).await? {
            cancel(tx, live, reason, now).await?;
        }
    }
    Ok(())
}

async fn cancel(
    tx: &mut WriteTx,
    live: UnfinishedRun,
    reason: RunReason,
    now: DateTime<Utc>,
) -> Result<RoutineRun, StoreError> {
    let run = RunId::from_uuid(live.row.id);
    let is_running = live.status()? == protocol::RunStatus::Running;
    if let Some(job) = live.row.job_id.filter(|_| is_running) {
        sqlx::query("UPDATE routine_runs SET cancel_reason = $2 WHERE id = $1")
            .bind(run)
            .bind(reason.as_str())
            .execute(&mut tx.db)
            .await?;
        let stops = stop_job(tx, job, reason, now).await?;
        let Some(live) = finish::load(tx, run).await? else { return live.row.into_run() };
        // The end of a job that had not started has ended its run.
        if stops || live.status()?.is_finished() {
            return live.row.into_run();
        }
        return end(tx, live, reason, now).await;
    }
    end(tx, live, reason, now).await
}

async fn end(
    tx: &mut WriteTx,
    live: UnfinishedRun,
    reason: RunReason,
    now: DateTime<Utc>,
) -> Result<RoutineRun, StoreError> {
    let end = AttemptEnd::cancelled(reason, live.has_started());
    finish::end(tx, live, AttemptResult::unused(end), now).await
}

/// Asks a job to stop. False: it cannot be stopped, because it has ended or waits for a review.
async fn stop_job(tx: &mut WriteTx, job: JobId, reason: RunReason, now: DateTime<Utc>) -> Result<bool, StoreError> {
    let Some(record) = lifecycle::load(&mut tx.db, job).await? else { return Ok(false) };
    let message = match reason {
        RunReason::CancelledByOverlap => "a later run of the routine replaced it",
        _ => "the run of the routine was cancelled",
    };
    let applied =
        Box::pin(lifecycle::apply(tx, record, now, None, |job| job.request_cancel(now, Some(message.to_owned()))))
            .await?;
    Ok(matches!(applied, Transition::Applied(_)))
}
