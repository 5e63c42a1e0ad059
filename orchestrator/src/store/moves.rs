//! What a transition leaves outside the database once it holds: numbers, and a job's one line in the log at its end.
//!
//! Never decides anything, and never tells of what was rolled back.

use std::time::Duration;

use chrono::{DateTime, Utc};
use protocol::{JobId, JobReason, JobState};

use super::Changed;
use crate::{domain::job::JobRecord, telemetry::metrics::Metrics};

/// A job as it was before.
pub(super) struct Was {
    pub(super) job: JobId,
    rev: i64,
    state: JobState,
    attempt: u32,
    repairs: u32,
}

impl Was {
    pub(super) fn of(job: &JobRecord) -> Self {
        Self { job: job.id, rev: job.rev, state: job.state, attempt: job.attempt, repairs: job.repair_attempts }
    }
}

/// Tells of a transition that is committed.
pub(super) fn told(metrics: &Metrics, was: &Was, changed: &Changed) {
    let Changed::Done(job) = changed else { return };
    if job.rev == was.rev {
        return;
    }
    if was.attempt == 0 && job.attempt == 1 {
        metrics.job_started(between(Some(job.created_at), job.started_at));
    }
    if job.repair_attempts > was.repairs {
        metrics.job_repaired(if job.attempt > was.attempt { "attempt" } else { "nudge" });
    }
    let moved = job.state != was.state;
    if moved && job.state == JobState::Stuck {
        metrics.job_stuck();
    }
    if moved && job.reason == Some(JobReason::WorkerLost) {
        metrics.lease_lost();
    }
    if job.state.is_finished() && !was.state.is_finished() {
        ended(job);
    }
}

/// The one line per job.
fn ended(job: &JobRecord) {
    let usage = &job.usage;
    // A reviewed job's work was over before its review was.
    let until = if job.review { job.last_activity_at } else { job.finished_at };
    tracing::info!(
        target: "gantry::job",
        user = job.user_id,
        job.id = %job.id,
        state = %job.state,
        reason = job.reason.map_or("-", JobReason::as_str),
        attempts = job.attempt,
        repairs = job.repair_attempts,
        wait_ms = millis(between(Some(job.created_at), job.started_at.or(job.finished_at))),
        run_ms = millis(between(job.started_at, until)),
        iterations = usage.iterations,
        llm_calls = usage.llm_calls,
        tool_calls = usage.tool_calls,
        tokens.input = usage.input_tokens,
        tokens.output = usage.output_tokens,
        tokens.cache_read = usage.cache_read_tokens,
        tokens.cache_write = usage.cache_write_tokens,
        cost_usd = usage.cost_usd,
        "job ended"
    );
}

/// Nothing when one of the two is not known, or the clock went back in between.
fn between(from: Option<DateTime<Utc>>, to: Option<DateTime<Utc>>) -> Duration {
    from.zip(to).and_then(|(from, to)| (to - from).to_std().ok()).unwrap_or_default()
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
