//! The log lines of runs, written once what they report is committed.
//!
//! Owns their texts and fields. Never logs what a run has read or answered.

use chrono::{DateTime, Utc};
use protocol::{RoutineRun, RoutineSession, RunReason, RunStatus, WakeMode};

use crate::sqlite::write_tx::WriteTx;

/// Logs that an attempt of a run has started.
pub(in crate::routines) fn started(tx: &mut WriteTx, run: &RoutineRun, session: RoutineSession, wake_mode: WakeMode) {
    let run = run.clone();
    tx.after_commit(move |_| {
        tracing::info!(
            routine.id = %run.routine_id, run.id = %run.id, routine.name = run.routine_name, job.id = id_of_job(&run),
            schedule_kind = run.trigger_type.as_str(), session = session.as_str(), wake_mode = wake_mode.as_str(),
            attempt = run.attempt, "routine started"
        );
    });
}

/// Logs that a run has ended, or waits for its next attempt. `next` is the next time of the routine's schedule.
pub(in crate::routines) fn ended(tx: &mut WriteTx, run: &RoutineRun, next: Option<DateTime<Utc>>, now: DateTime<Utc>) {
    if !matches!(run.status, RunStatus::Queued | RunStatus::Ok | RunStatus::Attention | RunStatus::Failed) {
        return not_run(tx, run);
    }
    let run = run.clone();
    tx.after_commit(move |_| {
        let reason = run.reason.map(RunReason::as_str);
        if run.status == RunStatus::Queued {
            let not_before = run.not_before.map(|at| at.to_rfc3339());
            tracing::info!(
                routine.id = %run.routine_id, run.id = %run.id, routine.name = run.routine_name, reason,
                attempt = run.attempt, not_before, "routine attempt failed; the run is queued again"
            );
            return;
        }
        let duration_ms = run.started_at.map(|started| (now - started).num_milliseconds().max(0));
        let next = next.map(|at| at.to_rfc3339());
        if run.status == RunStatus::Failed {
            tracing::warn!(
                routine.id = %run.routine_id, run.id = %run.id, routine.name = run.routine_name, job.id = id_of_job(&run),
                reason, message = run.message, duration_ms, next, "routine failed"
            );
            return;
        }
        tracing::info!(
            routine.id = %run.routine_id, run.id = %run.id, routine.name = run.routine_name, job.id = id_of_job(&run),
            status = run.status.as_str(), reason, duration_ms, next, tokens = run.tokens_used, cost_usd = run.cost_usd,
            "routine finished"
        );
    });
}

/// Logs that a firing was skipped or missed.
pub(in crate::routines) fn not_run(tx: &mut WriteTx, run: &RoutineRun) {
    let run = run.clone();
    tx.after_commit(move |_| {
        let reason = run.reason.map(RunReason::as_str);
        if run.status == RunStatus::Missed {
            tracing::info!(
                routine.id = %run.routine_id, run.id = %run.id, routine.name = run.routine_name, reason,
                count = run.missed_count, "routine missed"
            );
        } else {
            tracing::info!(
                routine.id = %run.routine_id, run.id = %run.id, routine.name = run.routine_name, reason, "routine skipped"
            );
        }
    });
}

fn id_of_job(run: &RoutineRun) -> Option<String> {
    run.job_id.map(|job| job.to_string())
}
