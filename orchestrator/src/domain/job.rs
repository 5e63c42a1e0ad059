//! The job: its record, and every transition of its state machine.
//!
//! A transition consumes the record, refuses what the state does not allow, and returns the new record with the events
//! that tell it; the store writes both in one transaction. Never does I/O, never reads a clock.

mod hold;
mod session;

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use protocol::{
    CompleteReport, ContainerInfo, EventData, Job, JobId, JobMode, JobReason, JobResult, JobState, LimitName, Limits,
    Metadata, PartialResult, Placement, ReportedOutcome, Source, Usage,
};
use serde_json::Value;

pub use session::{SessionMatch, WorkerSession};

/// Attempts that infrastructure may cost a job before it fails (contract: jobs, "three attempts in all").
pub const MAX_ATTEMPTS: u32 = 3;

/// Jobs within jobs (contract: jobs, Budgets).
pub const MAX_DEPTH: u32 = 3;
/// Of one job, whatever its limits say.
pub const MAX_CHILDREN: u32 = 10;

/// One job as stored.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::struct_excessive_bools, reason = "a row has the columns it has")]
#[expect(missing_docs, reason = "the fields that the API shows are documented by the contract; the rest below")]
pub struct JobRecord {
    pub id: JobId,
    /// Bumped by every write that goes through a transition; the store's compare-and-set.
    pub rev: i64,
    pub user_id: String,
    pub title: String,
    pub prompt: String,
    pub mode: JobMode,
    pub placement: Placement,
    pub state: JobState,
    pub reason: Option<JobReason>,
    pub message: Option<String>,
    pub priority: i32,
    pub labels: BTreeMap<String, String>,
    pub metadata: Metadata,
    pub limits: Limits,
    /// The narrowing list of the request.
    pub tools: Option<Vec<String>>,
    pub image: String,
    pub model: String,
    pub plan: bool,
    /// A person accepts or rejects the result.
    pub review: bool,
    pub source: Source,
    pub restarted_from: Option<JobId>,
    /// The job whose tool made this one.
    pub parent_id: Option<JobId>,
    /// Parents above it.
    pub depth: u32,
    pub attempt: u32,
    pub repair_attempts: u32,
    pub created_at: DateTime<Utc>,
    pub started_at: Option<DateTime<Utc>>,
    pub last_activity_at: Option<DateTime<Utc>>,
    pub cancel_requested_at: Option<DateTime<Utc>>,
    /// What the person who cancelled said.
    pub cancel_message: Option<String>,
    /// It is cancelled because its parent ended.
    pub cancelled_by_parent: bool,
    pub finished_at: Option<DateTime<Utc>>,
    /// A pending job is not started before this (backoff between attempts).
    pub not_before: Option<DateTime<Utc>>,
    pub result: Option<JobResult>,
    /// SHA-256 of the current attempt's token; none means no worker may call.
    pub token_hash: Option<String>,
    /// What a call must bring beside the token.
    pub session: WorkerSession,
    /// That a call of this attempt did not bring it is in the events.
    pub session_rejected: bool,
    pub lease_expires_at: Option<DateTime<Utc>>,
    /// Model calls made before the current attempt.
    pub calls_before_attempt: u64,
    /// When this attempt's worker first called.
    pub worker_seen_at: Option<DateTime<Utc>>,
    pub container: Option<ContainerInfo>,
    /// A prompt with `done: true` came.
    pub prompts_closed: bool,
    /// Not started until somebody says so.
    pub held: bool,
    /// The trace it belongs to: the context of the request that made it.
    pub traceparent: Option<String>,
    pub usage: Usage,
}

/// A transition that the job's state does not allow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a job that is {state} cannot {verb}")]
pub struct Refused {
    /// Where it is.
    pub state: JobState,
    /// What was tried.
    pub verb: &'static str,
}

/// Why a job gets no child.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoChild {
    /// It is not at work.
    #[error("a job that is {0} makes no others")]
    NotAtWork(JobState),
    /// It may have so many.
    #[error("the job has its limits.max_children = {0}")]
    Enough(u32),
    /// Jobs go so deep.
    #[error("jobs are made by jobs {MAX_DEPTH} deep at most")]
    TooDeep,
}

/// A transition that holds: the new record and what is to be told, in order.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// As it is now.
    pub job: JobRecord,
    /// Events to append in the same transaction.
    pub events: Vec<EventData>,
}

/// How an attempt ended without its worker's report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Death {
    /// Why.
    pub reason: JobReason,
    /// For people.
    pub message: String,
    /// Whether the infrastructure caused it, so that another attempt may help.
    pub infrastructure: bool,
}

impl JobRecord {
    /// The event that a new job starts with.
    pub fn born(self) -> Step {
        let event = EventData::State { from: None, to: JobState::Pending, reason: None, message: None };
        Step { job: self, events: vec![event] }
    }

    /// Makes `child` this job's, which has `children` already: same owner, one deeper, within this job's budgets.
    pub fn adopt(&self, mut child: Self, children: u32) -> Result<Self, NoChild> {
        if !matches!(self.state, JobState::InProgress | JobState::Stuck) || self.cancel_requested_at.is_some() {
            return Err(NoChild::NotAtWork(self.state));
        }
        let most = self.limits.max_children.min(MAX_CHILDREN);
        if children >= most {
            return Err(NoChild::Enough(most));
        }
        if self.depth >= MAX_DEPTH {
            return Err(NoChild::TooDeep);
        }
        child.parent_id = Some(self.id);
        child.depth = self.depth + 1;
        child.user_id.clone_from(&self.user_id);
        child.source = Source::Tool;
        Ok(child)
    }

    /// A new attempt begins: written before anything exists in the engine.
    pub fn start(self, now: DateTime<Utc>, start: AttemptStart) -> Result<Step, Refused> {
        if self.state != JobState::Pending || self.cancel_requested_at.is_some() {
            return Err(self.refuse("start"));
        }
        Ok(self.begin(now, start))
    }

    /// A stuck job goes on in a new attempt, from what is recorded. Its old container is confirmed gone.
    pub fn start_again(mut self, now: DateTime<Utc>, start: AttemptStart) -> Result<Step, Refused> {
        if self.state != JobState::Stuck || self.cancel_requested_at.is_some() {
            return Err(self.refuse("start again"));
        }
        self.repair_attempts += 1;
        Ok(self.begin(now, start))
    }

    fn begin(mut self, now: DateTime<Utc>, start: AttemptStart) -> Step {
        self.attempt = start.attempt;
        self.token_hash = Some(start.token_hash);
        self.session = WorkerSession::Unopened;
        self.session_rejected = false;
        self.lease_expires_at = Some(start.lease_expires_at);
        self.worker_seen_at = None;
        self.container = Some(start.container);
        self.started_at = self.started_at.or(Some(now));
        self.last_activity_at = Some(now);
        self.not_before = None;
        self.calls_before_attempt = self.usage.llm_calls;
        self.to(JobState::InProgress, None, None)
    }

    /// Nothing has been heard or seen of its worker for too long.
    pub fn stick(self, message: String) -> Result<Step, Refused> {
        if self.state != JobState::InProgress || self.cancel_requested_at.is_some() {
            return Err(self.refuse("become stuck"));
        }
        Ok(self.to(JobState::Stuck, Some(JobReason::Stuck), Some(message)))
    }

    /// Its worker was asked to go on.
    pub fn nudged(mut self) -> Result<Step, Refused> {
        if self.state != JobState::Stuck || self.cancel_requested_at.is_some() {
            return Err(self.refuse("be repaired"));
        }
        self.repair_attempts += 1;
        Ok(self.to(JobState::InProgress, None, None))
    }

    /// Its worker works after all.
    pub fn revived(self) -> Result<Step, Refused> {
        if self.state != JobState::Stuck {
            return Err(self.refuse("be revived"));
        }
        Ok(self.to(JobState::InProgress, None, None))
    }

    /// A person takes the result.
    pub fn accept(self, now: DateTime<Utc>) -> Result<Step, Refused> {
        if self.state != JobState::Submitted {
            return Err(self.refuse("be accepted"));
        }
        Ok(self.end(now, JobState::Accepted, Ending { reason: None, message: None, told: vec![] }))
    }

    /// A person does not. What there is of a result stays.
    pub fn reject(self, now: DateTime<Utc>, why: String) -> Result<Step, Refused> {
        if self.state != JobState::Submitted {
            return Err(self.refuse("be rejected"));
        }
        let ending = Ending { reason: Some(JobReason::Rejected), message: Some(why), told: vec![] };
        Ok(self.end(now, JobState::Failed, ending))
    }

    /// The worker's report. A report after a cancel request changes what is kept, never the outcome.
    pub fn finish(mut self, now: DateTime<Utc>, report: &CompleteReport) -> Result<Step, Refused> {
        if !matches!(self.state, JobState::InProgress | JobState::Stuck) {
            return Err(self.refuse("finish"));
        }
        self.last_activity_at = Some(now);
        if self.cancel_requested_at.is_some() {
            // The container is still there: the state follows once it is gone. A late success changes nothing; what a
            // worker tells of the work it was stopped in is kept.
            if report.outcome != ReportedOutcome::Completed {
                self.result = Some(JobResult { text: None, partial: Some(Self::partial_of(report)) });
            }
            self.token_hash = None;
            return Ok(Step { job: self.touched(), events: vec![] });
        }
        let completed = report.job_reason().is_none();
        let partial = (!completed).then(|| Self::partial_of(report));
        self.result = Some(JobResult { text: completed.then(|| report.text.clone()), partial: partial.clone() });
        let outcome = if completed { "completed" } else { report.outcome.as_failure() };
        let told = EventData::Result { outcome: outcome.to_owned(), text: report.text.clone(), partial };
        let reason = report.job_reason();
        if reason.is_none() && self.review {
            return Ok(self.submit(told));
        }
        let to = if reason.is_none() { JobState::Completed } else { JobState::Failed };
        let message = reason.and_then(|_| report.message.clone());
        Ok(self.end(now, to, Ending { reason, message, told: vec![told] }))
    }

    /// Completed and submitted are one step: nobody ever sees a reviewed job rest in completed.
    fn submit(mut self, told: EventData) -> Step {
        self.token_hash = None;
        self.lease_expires_at = None;
        let completed = self.to(JobState::Completed, None, None);
        let mut step = completed.job.to(JobState::Submitted, None, None);
        step.events.splice(0..0, [told].into_iter().chain(completed.events));
        step
    }

    /// Its parent ended before it.
    pub fn cancel_with_parent(mut self, now: DateTime<Utc>) -> Result<Step, Refused> {
        if self.cancel_requested_at.is_none() {
            self.cancelled_by_parent = true;
        }
        self.request_cancel(now, Some("its parent ended".to_owned()))
    }

    /// A person wants it stopped. Without a container it is cancelled at once.
    pub fn request_cancel(mut self, now: DateTime<Utc>, message: Option<String>) -> Result<Step, Refused> {
        match self.state {
            JobState::Pending => {
                self.cancel_requested_at = Some(now);
                self.cancel_message = message;
                self.cancelled(now)
            }
            JobState::InProgress | JobState::Stuck if self.cancel_requested_at.is_none() => {
                self.cancel_requested_at = Some(now);
                self.cancel_message = message;
                Ok(Step { job: self.touched(), events: vec![] })
            }
            JobState::InProgress | JobState::Stuck => Ok(Step { job: self, events: vec![] }),
            _ => Err(self.refuse("be cancelled")),
        }
    }

    /// The container of a job that was to be cancelled is gone.
    pub fn cancelled(mut self, now: DateTime<Utc>) -> Result<Step, Refused> {
        let open = matches!(self.state, JobState::Pending | JobState::InProgress | JobState::Stuck);
        if !open || self.cancel_requested_at.is_none() {
            return Err(self.refuse("become cancelled"));
        }
        let message = self.cancel_message.clone();
        let partial = self.keep_partial();
        let told =
            EventData::Result { outcome: "stopped".to_owned(), text: partial.text.clone(), partial: Some(partial) };
        let by_parent = self.cancelled_by_parent;
        let reason = if by_parent { JobReason::CancelledByParent } else { JobReason::CancelledByUser };
        let ending = Ending { reason: Some(reason), message, told: vec![told] };
        Ok(self.end(now, JobState::Cancelled, ending))
    }

    /// The attempt ended without a report: another one when that may help and nothing was done yet, else failed.
    pub fn died(mut self, now: DateTime<Utc>, death: Death) -> Result<Step, Refused> {
        if !matches!(self.state, JobState::InProgress | JobState::Stuck) {
            return Err(self.refuse("lose its worker"));
        }
        if self.cancel_requested_at.is_some() {
            return self.cancelled(now);
        }
        let untouched = self.usage.llm_calls == self.calls_before_attempt;
        if death.infrastructure && untouched && self.attempt < MAX_ATTEMPTS {
            self.token_hash = None;
            self.lease_expires_at = None;
            // 1 s, then 2 s: there are three attempts.
            self.not_before = Some(now + TimeDelta::seconds(1 << self.attempt.saturating_sub(1).min(2)));
            return Ok(self.to(JobState::Pending, Some(death.reason), Some(death.message)));
        }
        self.fail(now, death.reason, death.message)
    }

    /// It cannot go on.
    pub fn fail(mut self, now: DateTime<Utc>, reason: JobReason, message: String) -> Result<Step, Refused> {
        if !matches!(self.state, JobState::Pending | JobState::InProgress | JobState::Stuck) {
            return Err(self.refuse("fail"));
        }
        let partial = self.keep_partial();
        let reached = match reason {
            JobReason::WallClock => Some((LimitName::TimeoutSeconds, self.limits.timeout_seconds)),
            JobReason::DiskLimit => Some((LimitName::DiskMb, self.limits.disk_mb)),
            _ => None,
        };
        let outcome = if reached.is_some() { "limit" } else { "failed" };
        let told =
            EventData::Result { outcome: outcome.to_owned(), text: partial.text.clone(), partial: Some(partial) };
        let limit = reached.map(|(limit, value)| EventData::Limit { limit, value: Value::from(value) });
        let told = limit.into_iter().chain([told]).collect();
        Ok(self.end(now, JobState::Failed, Ending { reason: Some(reason), message: Some(message), told }))
    }

    fn refuse(&self, verb: &'static str) -> Refused {
        Refused { state: self.state, verb }
    }

    fn touched(mut self) -> Self {
        self.rev += 1;
        self
    }

    fn to(mut self, to: JobState, reason: Option<JobReason>, message: Option<String>) -> Step {
        let event = EventData::State { from: Some(self.state), to, reason, message: message.clone() };
        self.state = to;
        self.reason = reason;
        self.message = message;
        Step { job: self.touched(), events: vec![event] }
    }

    fn end(mut self, now: DateTime<Utc>, to: JobState, ending: Ending) -> Step {
        self.finished_at = Some(now);
        // Void in the transaction that ends the attempt.
        self.token_hash = None;
        self.lease_expires_at = None;
        let mut step = self.to(to, ending.reason, ending.message);
        step.events.splice(0..0, ending.told);
        step
    }

    fn partial_of(report: &CompleteReport) -> PartialResult {
        let mut partial = report.partial.clone().unwrap_or_default();
        if partial.text.is_empty() {
            partial.text.clone_from(&report.text);
        }
        partial
    }

    /// What was kept of the work: the worker's own account when it gave one, else what the record knows.
    fn keep_partial(&mut self) -> PartialResult {
        let known = self.result.take().and_then(|result| result.partial);
        let partial = known.unwrap_or_else(|| PartialResult {
            iterations: u32::try_from(self.usage.iterations).unwrap_or(u32::MAX),
            tool_calls: u32::try_from(self.usage.tool_calls).unwrap_or(u32::MAX),
            usage: protocol::TokenUsage {
                input_tokens: self.usage.input_tokens,
                output_tokens: self.usage.output_tokens,
                cache_read_tokens: self.usage.cache_read_tokens,
                cache_write_tokens: self.usage.cache_write_tokens,
            },
            ..PartialResult::default()
        });
        self.result = Some(JobResult { text: None, partial: Some(partial.clone()) });
        partial
    }

    /// As the public API shows it.
    pub fn to_api(&self) -> Job {
        Job {
            id: self.id,
            user_id: self.user_id.clone(),
            title: self.title.clone(),
            prompt: self.prompt.clone(),
            mode: self.mode,
            placement: self.placement,
            state: self.state,
            reason: self.reason,
            message: self.message.clone(),
            priority: self.priority,
            labels: self.labels.clone(),
            metadata: self.metadata.clone(),
            limits: self.limits,
            egress: None,
            model: self.model.clone(),
            source: self.source,
            routine_id: None,
            run_id: None,
            parent_id: self.parent_id,
            restarted_from: self.restarted_from,
            attempt: self.attempt,
            repair_attempts: self.repair_attempts,
            created_at: self.created_at,
            started_at: self.started_at,
            last_activity_at: self.last_activity_at,
            cancel_requested_at: self.cancel_requested_at,
            finished_at: self.finished_at,
            result: self.result.clone(),
            usage: self.usage,
            container: self.container.clone(),
        }
    }
}

struct Ending {
    reason: Option<JobReason>,
    message: Option<String>,
    told: Vec<EventData>,
}

/// What a new attempt is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptStart {
    /// Its number, from 1.
    pub attempt: u32,
    /// SHA-256 of its token.
    pub token_hash: String,
    /// Its first lease.
    pub lease_expires_at: DateTime<Utc>,
    /// The container it is to have.
    pub container: ContainerInfo,
}

#[cfg(test)]
pub(crate) mod sample;
#[cfg(test)]
mod tests;
