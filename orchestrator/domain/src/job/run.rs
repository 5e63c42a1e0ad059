//! Transitions into and within an attempt: release, start, stuck, repaired, failed.

use chrono::{DateTime, TimeDelta, Utc};
use protocol::{ContainerInfo, JobReason};

use super::{Activity, JobRecord, Queued, Refused, Running, Stage, Step, WorkerSession};

/// Attempts that infrastructure failures may cost a job before it fails.
pub const MAX_ATTEMPTS: u32 = 3;
/// Backoff after the first attempt; doubled after the second.
const FIRST_BACKOFF_SECONDS: i64 = 1;

/// The initial values of a new attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptStart {
    /// Its number, from 1.
    pub attempt: u32,
    /// Its worker; `None` where the orchestrator runs the loop itself.
    pub worker: Option<WorkerStart>,
}

/// The worker that is to be started for an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerStart {
    /// SHA-256 of its token.
    pub token_hash: String,
    /// The end of its first lease.
    pub lease_expires_at: DateTime<Utc>,
    /// The container that is to be created for it.
    pub container: ContainerInfo,
}

/// How an attempt ended without its worker's report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptFailure {
    pub reason: JobReason,
    /// Explanation for the user.
    pub message: String,
    /// Whether another attempt may help, since the infrastructure caused it.
    pub is_retryable: bool,
}

impl AttemptFailure {
    /// The process that ran the job's loop has ended. What its tools have done is not done again.
    pub fn orchestrator_restart() -> Self {
        Self {
            reason: JobReason::OrchestratorRestart,
            message: "the orchestrator, which ran this job itself, was stopped".to_owned(),
            is_retryable: false,
        }
    }
}

impl JobRecord {
    /// The message of a held job.
    pub const HELD: &str = "held: it waits until it is started (POST /api/jobs/{id}/start)";

    /// Releases a held job into the queue.
    pub fn release(self) -> Result<Step, Refused> {
        match &self.stage {
            Stage::Queued(queued @ Queued { held: true, .. }) => {
                let queued = Queued { held: false, message: None, ..queued.clone() };
                Ok(Step::new(self.with_stage(Stage::Queued(queued)), vec![]))
            }
            _ => Err(self.refuse("be started")),
        }
    }

    /// Starts a new attempt. Written before anything exists in the engine.
    pub fn start(self, now: DateTime<Utc>, start: AttemptStart) -> Result<Step, Refused> {
        match self.stage {
            Stage::Queued(_) => Ok(self.begin(now, start)),
            _ => Err(self.refuse("start")),
        }
    }

    /// Continues a stuck job in a new attempt, from the recorded transcript. The earlier attempt's calls are
    /// refused from now on; its container is removed before the new one is created.
    pub fn start_again(mut self, now: DateTime<Utc>, start: AttemptStart) -> Result<Step, Refused> {
        match &self.stage {
            Stage::Running(Running { activity: Activity::Stuck { .. }, .. }) => {
                self.repair_attempts += 1;
                Ok(self.begin(now, start))
            }
            _ => Err(self.refuse("start again")),
        }
    }

    fn begin(mut self, now: DateTime<Utc>, start: AttemptStart) -> Step {
        let (token_hash, lease_expires_at, container) = match start.worker {
            Some(worker) => (Some(worker.token_hash), Some(worker.lease_expires_at), Some(worker.container)),
            None => (None, None, None),
        };
        self.attempt = start.attempt;
        self.container = container;
        self.started_at = self.started_at.or(Some(now));
        self.last_activity_at = Some(now);
        self.session = WorkerSession::Unopened;
        self.session_rejected = false;
        let running = Running {
            token_hash,
            lease_expires_at,
            calls_before_attempt: self.usage.llm_calls,
            worker_seen_at: None,
            activity: Activity::Working,
            reported: None,
        };
        self.enter(Stage::Running(running))
    }

    /// Marks the job stuck: its worker has been silent, or has made no progress, for too long.
    pub fn mark_stuck(self, message: String) -> Result<Step, Refused> {
        match &self.stage {
            Stage::Running(running @ Running { activity: Activity::Working, .. }) => {
                let running = Running { activity: Activity::Stuck { message }, ..running.clone() };
                Ok(self.enter(Stage::Running(running)))
            }
            _ => Err(self.refuse("become stuck")),
        }
    }

    /// Records that its worker was asked to continue.
    pub fn nudge(mut self) -> Result<Step, Refused> {
        match &self.stage {
            Stage::Running(running @ Running { activity: Activity::Stuck { .. }, .. }) => {
                let running = Running { activity: Activity::Working, ..running.clone() };
                self.repair_attempts += 1;
                Ok(self.enter(Stage::Running(running)))
            }
            _ => Err(self.refuse("be repaired")),
        }
    }

    /// Records that its worker makes progress again.
    pub fn revive(self) -> Result<Step, Refused> {
        let Stage::Running(running) = &self.stage else { return Err(self.refuse("be revived")) };
        let activity = match &running.activity {
            Activity::Stuck { .. } => Activity::Working,
            Activity::Stopping { cancel, stuck: Some(_) } => Activity::Stopping { cancel: cancel.clone(), stuck: None },
            _ => return Err(self.refuse("be revived")),
        };
        let running = Running { activity, ..running.clone() };
        Ok(self.enter(Stage::Running(running)))
    }

    /// The attempt ended without a report. Another one follows when that may help and this one made no model call; else
    /// the job fails.
    pub fn attempt_failed(self, now: DateTime<Utc>, failure: AttemptFailure) -> Result<Step, Refused> {
        let Stage::Running(running) = &self.stage else { return Err(self.refuse("lose its worker")) };
        if self.is_stopping() {
            return self.finish_cancel(now);
        }
        let made_no_calls = self.usage.llm_calls == running.calls_before_attempt;
        if failure.is_retryable && made_no_calls && self.attempt < MAX_ATTEMPTS {
            let backoff = TimeDelta::seconds(FIRST_BACKOFF_SECONDS << self.attempt.saturating_sub(1));
            return Ok(self.enter(Stage::Queued(Queued {
                held: false,
                not_before: Some(now + backoff),
                reason: Some(failure.reason),
                message: Some(failure.message),
            })));
        }
        self.fail(now, failure.reason, failure.message)
    }
}

#[cfg(test)]
mod tests {
    use crate::job::{
        JobRecord, Queued, Stage,
        sample::{job, now},
    };
    use protocol::JobState;

    #[test]
    fn a_held_job_is_released_once_and_never_after_it_was_cancelled() {
        let held =
            JobRecord { stage: Stage::Queued(Queued { held: true, ..Queued::default() }), ..job(JobState::Pending) };
        let released = held.clone().release().unwrap().job;
        assert!(!released.is_held() && released.rev == held.rev + 1);
        assert_eq!(released.release().unwrap_err().verb, "be started");
        let cancelled = held.request_cancel(now(), None).unwrap().job;
        assert!(cancelled.release().is_err());
    }
}
