//! Jobs: the record, which is an immutable brief and a stage with its facts, and the transitions between stages.
//!
//! A transition consumes the record, refuses what the stage does not allow, and returns the new record with the events
//! to append; the store writes both in one transaction. Never does I/O, never reads a clock.

mod activity;
mod brief;
mod cancel;
mod children;
mod finish;
mod open;
mod run;
mod session;
mod stage;

use std::sync::Arc;

use chrono::{DateTime, Utc};
use protocol::{
    ContainerInfo, EventData, Job, JobId, JobReason, JobResult, JobState, Limits, PartialResult, Placement, Usage,
};

pub use activity::activity_since;
pub use brief::{Brief, RunLink, without_title};
pub use children::{ChildRefused, Descendants, MAX_DEPTH, Parent};
pub use open::{AttemptContainer, OpenActivity, OpenJob, OpenStage};
pub use run::{AttemptFailure, AttemptStart, MAX_ATTEMPTS, WorkerStart};
pub use session::{SessionMatch, WorkerSession};
pub use stage::{Activity, CancelRequest, End, Finished, Queued, Running, Stage};

/// One job as stored.
#[derive(Debug, Clone, PartialEq)]
pub struct JobRecord {
    pub id: JobId,
    /// Incremented by every transition; the store's compare-and-set.
    pub rev: i64,
    /// The values it was created with.
    pub brief: Arc<Brief>,
    /// Where it is in its life, with the facts of that stage.
    pub stage: Stage,
    /// Number of the latest attempt; 0 before the first.
    pub attempt: u32,
    /// Repairs of a stuck attempt so far.
    pub repair_attempts: u32,
    /// Start of the first attempt.
    pub started_at: Option<DateTime<Utc>>,
    /// Latest event or transition of an attempt.
    pub last_activity_at: Option<DateTime<Utc>>,
    /// The container of the latest attempt.
    pub container: Option<ContainerInfo>,
    /// The worker's session of the latest attempt: what a call must present beside the token.
    pub session: WorkerSession,
    /// A rejected call of the latest attempt is recorded in the events.
    pub session_rejected: bool,
    /// A prompt with `done: true` was accepted, so no more are.
    pub prompts_closed: bool,
    /// Consumption over all attempts.
    pub usage: Usage,
}

/// Identifies a state of a job's record: a decision that was made for one version may not hold for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobVersion {
    rev: i64,
    /// A worker's first call is recorded without a transition.
    has_worker_called: bool,
}

/// A transition that the job's stage does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a job that is {state} cannot {verb}")]
pub struct Refused {
    pub state: JobState,
    /// The transition that was tried.
    pub verb: &'static str,
}

/// A permitted transition: the new record and the events to append, in order.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// The job after the transition.
    pub job: JobRecord,
    /// Events to append in the same transaction.
    pub events: Vec<EventData>,
    /// The job ends without its worker's report: its partial result comes from the recorded events (see
    /// [`Step::with_partial`]).
    pub needs_partial: bool,
}

impl Step {
    fn new(job: JobRecord, events: Vec<EventData>) -> Self {
        Self { job, events, needs_partial: false }
    }

    /// Sets the partial result in the record and in its `result` event.
    #[must_use]
    pub fn with_partial(mut self, recorded: PartialResult) -> Self {
        for event in &mut self.events {
            if let EventData::Result { text, partial, .. } = event {
                text.clone_from(&recorded.text);
                *partial = Some(recorded.clone());
            }
        }
        if let Stage::Finished(finished) = &mut self.job.stage {
            finished.result = Some(JobResult { partial: Some(recorded), ..JobResult::default() });
        }
        self.needs_partial = false;
        self
    }
}

impl JobRecord {
    pub fn new(id: JobId, brief: Brief, queued: Queued) -> Self {
        let created_at = brief.created_at;
        Self {
            id,
            rev: 0,
            brief: Arc::new(brief),
            stage: Stage::Queued(queued),
            attempt: 0,
            repair_attempts: 0,
            started_at: None,
            last_activity_at: Some(created_at),
            container: None,
            session: WorkerSession::default(),
            session_rejected: false,
            prompts_closed: false,
            usage: Usage::default(),
        }
    }

    /// The event that a new job starts with.
    pub fn created(self) -> Step {
        let event = EventData::State { from: None, to: JobState::Pending, reason: None, message: None };
        Step::new(self, vec![event])
    }

    /// The state that the API shows.
    pub const fn state(&self) -> JobState {
        self.stage.state()
    }

    /// Why it is in this state, where that needs a reason.
    pub const fn reason(&self) -> Option<JobReason> {
        self.stage.reason()
    }

    /// Explanation of the state for the user.
    pub fn message(&self) -> Option<&str> {
        self.stage.message()
    }

    /// The attempt's facts while an attempt runs.
    pub const fn running(&self) -> Option<&Running> {
        match &self.stage {
            Stage::Running(running) => Some(running),
            _ => None,
        }
    }

    pub fn version(&self) -> JobVersion {
        let has_worker_called = self.running().is_some_and(|running| running.worker_seen_at.is_some());
        JobVersion { rev: self.rev, has_worker_called }
    }

    /// Whether an attempt runs.
    pub const fn is_running(&self) -> bool {
        self.running().is_some()
    }

    /// Whether it is queued or running, so that the dispatcher manages it.
    pub const fn is_open(&self) -> bool {
        matches!(self.stage, Stage::Queued(_) | Stage::Running(_))
    }

    /// Whether it is held in the queue until it is released.
    pub const fn is_held(&self) -> bool {
        matches!(self.stage, Stage::Queued(Queued { held: true, .. }))
    }

    /// The request to cancel it, also after it has ended.
    pub const fn cancel_request(&self) -> Option<&CancelRequest> {
        self.stage.cancel_request()
    }

    /// Whether it runs and is to be cancelled.
    pub fn is_stopping(&self) -> bool {
        self.running().is_some_and(|running| matches!(running.activity, Activity::Stopping { .. }))
    }

    /// SHA-256 of the running attempt's token; `None` when no worker may call.
    pub fn token_hash(&self) -> Option<&str> {
        self.running().and_then(|running| running.token_hash.as_deref())
    }

    /// Whether the orchestrator runs its loop itself.
    pub fn is_on_host(&self) -> bool {
        self.brief.placement == Placement::Host
    }

    /// Its limits, less the model and tool calls of its earlier attempts.
    pub fn remaining_limits(&self) -> Limits {
        let left = |limit: u32, used: u64| limit.saturating_sub(u32::try_from(used).unwrap_or(u32::MAX));
        let limits = self.brief.limits;
        Limits {
            max_iterations: left(limits.max_iterations, self.usage.iterations),
            max_tool_calls: left(limits.max_tool_calls, self.usage.tool_calls),
            ..limits
        }
    }

    pub const fn finished_at(&self) -> Option<DateTime<Utc>> {
        match &self.stage {
            Stage::Finished(finished) => Some(finished.at),
            _ => None,
        }
    }

    /// Its result, or what a stopped worker reported so far.
    pub fn result(&self) -> Option<JobResult> {
        match &self.stage {
            Stage::Queued(_) => None,
            Stage::Running(running) => {
                running.reported.clone().map(|partial| JobResult { partial: Some(partial), ..JobResult::default() })
            }
            Stage::Submitted { result } => Some(result.clone()),
            Stage::Finished(finished) => finished.result.clone(),
        }
    }

    /// Whether it has a result.
    pub const fn has_result(&self) -> bool {
        match &self.stage {
            Stage::Queued(_) => false,
            Stage::Running(running) => running.reported.is_some(),
            Stage::Submitted { .. } => true,
            Stage::Finished(finished) => finished.result.is_some(),
        }
    }

    fn refuse(&self, verb: &'static str) -> Refused {
        Refused { state: self.state(), verb }
    }

    /// Moves to another stage without an event.
    fn with_stage(mut self, stage: Stage) -> Self {
        self.rev += 1;
        self.stage = stage;
        self
    }

    /// Moves to another stage with its `state` event.
    fn enter(self, stage: Stage) -> Step {
        let event = EventData::State {
            from: Some(self.state()),
            to: stage.state(),
            reason: stage.reason(),
            message: stage.message().map(str::to_owned),
        };
        Step::new(self.with_stage(stage), vec![event])
    }

    /// As the public API shows it.
    pub fn to_api(&self) -> Job {
        let brief = &self.brief;
        Job {
            id: self.id,
            user_id: brief.user_id.clone(),
            title: brief.title.clone(),
            prompt: brief.task(),
            mode: brief.mode,
            placement: brief.placement,
            state: self.state(),
            reason: self.reason(),
            message: self.message().map(str::to_owned),
            priority: brief.priority,
            labels: brief.labels.clone(),
            metadata: brief.metadata.clone(),
            limits: brief.limits,
            egress: brief.egress.clone(),
            tools: brief.tools.clone(),
            approve: brief.approve.clone(),
            image: brief.image.clone(),
            plan: brief.plan,
            model: brief.model.clone(),
            effort: brief.effort,
            held: self.is_held(),
            review: brief.review,
            prompts_closed: self.prompts_closed,
            source: brief.source,
            routine_id: brief.routine.map(|link| *link.routine.as_uuid()),
            run_id: brief.routine.map(|link| *link.run.as_uuid()),
            parent_id: brief.parent_id,
            restarted_from: brief.restarted_from,
            attempt: self.attempt,
            repair_attempts: self.repair_attempts,
            created_at: brief.created_at,
            started_at: self.started_at,
            last_activity_at: self.last_activity_at,
            cancel_requested_at: self.cancel_request().map(|cancel| cancel.at),
            finished_at: self.finished_at(),
            result: self.result(),
            usage: self.usage,
            container: self.container.clone(),
            queue_position: None,
        }
    }
}

#[cfg(any(test, feature = "test-util"))]
pub mod sample;
#[cfg(test)]
mod tests;
