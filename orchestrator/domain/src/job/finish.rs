//! Transitions that end a job: its worker's report, review, failure.

use chrono::{DateTime, Utc};
use protocol::{
    CompleteReport, EventData, JobReason, JobResult, JobState, LimitName, PartialResult, ReportedOutcome, TokenUsage,
};
use serde_json::Value;

use super::{CancelRequest, End, Finished, JobRecord, Refused, Running, Stage, Step};

/// How a job ends without its worker's report.
pub(super) struct Ending {
    pub(super) end: End,
    pub(super) reason: JobReason,
    pub(super) message: Option<String>,
    pub(super) cancel: Option<CancelRequest>,
}

impl JobRecord {
    /// Applies the worker's report. After a request to cancel it changes the partial result only, never the outcome.
    pub fn finish(mut self, now: DateTime<Utc>, report: &CompleteReport) -> Result<Step, Refused> {
        let Stage::Running(running) = &self.stage else { return Err(self.refuse("finish")) };
        if self.is_stopping() {
            // The container still exists: the state follows once it is gone. A late success changes nothing; what a
            // stopped worker reports of its work is kept.
            let mut running = Running { token_hash: None, ..running.clone() };
            if report.outcome != ReportedOutcome::Completed {
                running.reported = Some(partial_of(report));
            }
            self.last_activity_at = Some(now);
            return Ok(Step::new(self.with_stage(Stage::Running(running)), vec![]));
        }
        self.last_activity_at = Some(now);
        let reason = report.job_reason();
        let partial = reason.map(|_| partial_of(report));
        let outcome = if reason.is_none() { ReportedOutcome::Completed } else { report.outcome.as_failure() };
        let event = EventData::Result { outcome, text: report.text.clone(), partial: partial.clone() };
        let result = JobResult {
            text: reason.is_none().then(|| report.text.clone()),
            partial,
            cut: reason.is_none() && report.cut,
        };
        if reason.is_none() && self.brief.review {
            return Ok(self.submit(result, event));
        }
        let finished = Finished {
            end: if reason.is_none() { End::Completed } else { End::Failed },
            at: now,
            reason,
            message: reason.and_then(|_| report.message.clone()),
            result: Some(result),
            cancel: None,
        };
        Ok(self.enter_after(Stage::Finished(finished), vec![event]))
    }

    /// Completed and submitted are one transition: a reviewed job is never observed in `completed`.
    fn submit(self, result: JobResult, event: EventData) -> Step {
        let state = |from, to| EventData::State { from: Some(from), to, reason: None, message: None };
        let (completed, submitted) = (JobState::Completed, JobState::Submitted);
        let events = vec![event, state(self.state(), completed), state(completed, submitted)];
        Step::new(self.with_stage(Stage::Submitted { result }), events)
    }

    /// A reviewer accepts the result.
    pub fn accept(self, now: DateTime<Utc>) -> Result<Step, Refused> {
        self.review(now, End::Accepted, None, "be accepted")
    }

    /// A reviewer rejects the result, which is kept.
    pub fn reject(self, now: DateTime<Utc>, why: String) -> Result<Step, Refused> {
        self.review(now, End::Failed, Some(why), "be rejected")
    }

    fn review(
        self,
        now: DateTime<Utc>,
        end: End,
        message: Option<String>,
        verb: &'static str,
    ) -> Result<Step, Refused> {
        let Stage::Submitted { result } = &self.stage else { return Err(self.refuse(verb)) };
        let reason = (end == End::Failed).then_some(JobReason::Rejected);
        let finished = Finished { end, at: now, reason, message, result: Some(result.clone()), cancel: None };
        Ok(self.enter(Stage::Finished(finished)))
    }

    /// The job cannot continue.
    pub fn fail(self, now: DateTime<Utc>, reason: JobReason, message: String) -> Result<Step, Refused> {
        if !self.is_open() {
            return Err(self.refuse("fail"));
        }
        let limits = &self.brief.limits;
        let reached = match reason {
            JobReason::WallClock => Some((LimitName::TimeoutSeconds, limits.timeout_seconds)),
            JobReason::DiskLimit => Some((LimitName::DiskMb, limits.disk_mb)),
            _ => None,
        };
        let cancel = self.cancel_request().cloned();
        let outcome = if reached.is_some() { ReportedOutcome::Limit } else { ReportedOutcome::Failed };
        let mut step =
            self.end_without_report(now, outcome, Ending { end: End::Failed, reason, message: Some(message), cancel });
        if let Some((limit, value)) = reached {
            step.events.insert(0, EventData::Limit { limit, value: Value::from(value) });
        }
        Ok(step)
    }

    /// Ends the job with a partial result: the worker's own account when it gave one, else what is recorded.
    pub(super) fn end_without_report(self, now: DateTime<Utc>, outcome: ReportedOutcome, ending: Ending) -> Step {
        let reported = self.running().and_then(|running| running.reported.clone());
        let needs_partial = reported.is_none() && self.attempt > 0;
        let partial = reported.unwrap_or_else(|| self.counts());
        let event = EventData::Result { outcome, text: partial.text.clone(), partial: Some(partial.clone()) };
        let finished = Finished {
            end: ending.end,
            at: now,
            reason: Some(ending.reason),
            message: ending.message,
            result: Some(JobResult { partial: Some(partial), ..JobResult::default() }),
            cancel: ending.cancel,
        };
        Step { needs_partial, ..self.enter_after(Stage::Finished(finished), vec![event]) }
    }

    /// A partial result with counts alone.
    pub fn counts(&self) -> PartialResult {
        let usage = &self.usage;
        let count = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        PartialResult {
            iterations: count(usage.iterations),
            tool_calls: count(usage.tool_calls),
            usage: TokenUsage {
                input_tokens: usage.input_tokens,
                output_tokens: usage.output_tokens,
                cache_read_tokens: usage.cache_read_tokens,
                cache_write_tokens: usage.cache_write_tokens,
            },
            ..PartialResult::default()
        }
    }

    /// Moves to another stage: the given events come before the `state` event.
    fn enter_after(self, stage: Stage, events: Vec<EventData>) -> Step {
        let mut step = self.enter(stage);
        step.events.splice(0..0, events);
        step
    }
}

fn partial_of(report: &CompleteReport) -> PartialResult {
    let mut partial = report.partial.clone().unwrap_or_default();
    if partial.text.is_empty() {
        partial.text.clone_from(&report.text);
    }
    partial
}
