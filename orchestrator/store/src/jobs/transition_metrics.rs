//! What a committed transition leaves outside the database: the observer's call, metrics, and one log line per finished
//! job.
//!
//! Never decides anything. What is rolled back is never published.

use std::time::Duration;

use chrono::{DateTime, Utc};
use protocol::{JobId, JobReason, JobState, Usage};

use crate::{JobChange, sqlite::write_tx::WriteTx};
use domain::job::JobRecord;

/// A job before its transition.
pub(crate) struct Before {
    pub(crate) rev: i64,
    state: JobState,
    pub(crate) attempt: u32,
    repairs: u32,
    /// Its row of texts has a result.
    pub(crate) has_result: bool,
}

impl Before {
    /// Whether the job had ended.
    pub(crate) const fn is_finished(&self) -> bool {
        self.state.is_finished()
    }

    pub(crate) fn of(job: &JobRecord) -> Self {
        Self {
            rev: job.rev,
            state: job.state(),
            attempt: job.attempt,
            repairs: job.repair_attempts,
            has_result: job.has_result(),
        }
    }
}

/// Publishes a transition once it is committed.
pub(crate) fn publish(tx: &mut WriteTx, before: &Before, job: &JobRecord) {
    let (from, record) = (before.rev, job.clone());
    tx.after_commit(move |committed| (committed.observer)(JobChange::Transitioned { from, job: &record }));
    if before.attempt == 0 && job.attempt == 1 {
        let wait = between(Some(job.brief.created_at), job.started_at);
        tx.after_commit(move |committed| committed.metrics.job_started(wait));
    }
    if job.repair_attempts > before.repairs {
        let by = if job.attempt > before.attempt { "attempt" } else { "nudge" };
        tx.after_commit(move |committed| committed.metrics.job_repaired(by));
    }
    let is_new_state = job.state() != before.state;
    if is_new_state && job.state() == JobState::Stuck {
        tx.after_commit(|committed| committed.metrics.job_stuck());
    }
    if is_new_state && job.reason() == Some(JobReason::WorkerLost) {
        tx.after_commit(|committed| committed.metrics.worker_lost());
    }
    if job.state().is_finished() && !before.state.is_finished() {
        let ended = EndedJob::of(job);
        tx.after_commit(move |_| ended.log());
    }
}

/// The fields of a finished job's log line.
struct EndedJob {
    id: JobId,
    user: String,
    state: JobState,
    reason: Option<JobReason>,
    attempts: u32,
    repairs: u32,
    wait: Duration,
    run: Duration,
    usage: Usage,
}

impl EndedJob {
    fn of(job: &JobRecord) -> Self {
        // The work of a reviewed job ended before its review.
        let until = if job.brief.review { job.last_activity_at } else { job.finished_at() };
        Self {
            id: job.id,
            user: job.brief.user_id.clone(),
            state: job.state(),
            reason: job.reason(),
            attempts: job.attempt,
            repairs: job.repair_attempts,
            wait: between(Some(job.brief.created_at), job.started_at.or(job.finished_at())),
            run: between(job.started_at, until),
            usage: job.usage,
        }
    }

    fn log(&self) {
        let usage = &self.usage;
        tracing::info!(
            target: "gantry::job",
            user = self.user,
            job.id = %self.id,
            state = %self.state,
            reason = self.reason.map_or("-", JobReason::as_str),
            attempts = self.attempts,
            repairs = self.repairs,
            wait_ms = millis(self.wait),
            run_ms = millis(self.run),
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
}

/// Zero when a time is unknown or the clock was set back in between.
fn between(from: Option<DateTime<Utc>>, to: Option<DateTime<Utc>>) -> Duration {
    from.zip(to).and_then(|(from, to)| (to - from).to_std().ok()).unwrap_or_default()
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
