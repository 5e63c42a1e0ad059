//! A session: from the row of a job's attempt to its report, in this process.
//!
//! Owns the order of these steps, and what a stop means for them. Never decides that an attempt begins or that a job is cancelled:
//! the dispatcher does.

use std::{convert::Infallible, ops::ControlFlow, sync::Arc, time::Duration};

use agent::{
    Agent, DeltaSink, FailureReason, Inbox, LoopOutcome, RecordError, Settings, Signals, outcome_report,
    safety::DELIMITER_NOTICE, shortened_report, start_attempt,
};
use protocol::{CompleteReport, PartialResult};
use tokio_util::sync::CancellationToken;

use super::{journal::HostJournal, model::HostModel, prompts::PromptFeed};
use crate::{
    clock::Clock,
    dispatch::{Attempt, DispatcherWaker, EventIngestion, RunHostJob, StopCause},
    domain::job::{AttemptFailure, JobRecord},
    llm::metering::{Meter, MeteredModel, retry_write},
    secrets::DetectorError,
    store::{Reported, Store, StoreError},
    tools::BuiltinTools,
};

/// Retry delay of a report that was refused because of waiting prompts although no prompt could be received.
const REPORT_RETRY_DELAY: Duration = Duration::from_millis(200);

const NOT_STOPPED: &str = "the loop stopped without being told to";

/// Runs jobs in this process.
pub struct HostJobs {
    /// Jobs, prompts and reports.
    pub store: Store,
    /// Stores events.
    pub ingestion: EventIngestion,
    /// Makes model calls.
    pub meter: Meter,
    /// The tools.
    pub tools: Arc<BuiltinTools>,
    /// The time.
    pub clock: Clock,
    /// Wakes the dispatcher after a report.
    pub waker: DispatcherWaker,
    /// How long a model that does not answer is asked again.
    pub outage_patience: Duration,
    /// Cancelled when the process drains: loops stop, and their jobs fail with `orchestrator_restart`.
    pub drain: CancellationToken,
}

/// Why a session ended without a report.
#[derive(Debug, thiserror::Error)]
enum SessionError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the tools are not available")]
    Tools(#[from] RecordError),
    #[error("the report could not be searched for secrets")]
    Unsearched(#[from] DetectorError),
}

impl HostJobs {
    /// What the dispatcher calls to run an attempt.
    pub fn into_runner(self) -> RunHostJob {
        let jobs = Arc::new(self);
        Arc::new(move |attempt| {
            let jobs = Arc::clone(&jobs);
            Box::pin(async move { jobs.run(attempt).await })
        })
    }

    /// Runs an attempt until it has reported, or there is nothing to report.
    async fn run(&self, attempt: Arc<Attempt>) {
        let stop = CancellationToken::new();
        let stop_loop = async {
            tokio::select! {
                _ = attempt.stopped() => {}
                () = self.drain.cancelled() => {}
            }
            stop.cancel();
            std::future::pending::<Infallible>().await
        };
        let worked = tokio::select! {
            worked = self.work(&attempt, &stop) => worked,
            never = stop_loop => match never {},
        };
        if let Err(error) = worked {
            let job = attempt.key().job;
            tracing::error!(job.id = %job, error = &error as &dyn std::error::Error, "a job could not be run");
        }
    }

    async fn work(&self, attempt: &Arc<Attempt>, stop: &CancellationToken) -> Result<(), SessionError> {
        let key = attempt.key();
        // Read again: usage changes without a transition.
        let job = self.store.job(key.job).await?.filter(|job| job.attempt == key.attempt);
        let Some(job) = job else { return Ok(()) };
        let has_earlier_calls = job.running().is_some_and(|running| running.calls_before_attempt > 0);
        let recorded = if has_earlier_calls { self.store.transcript(job.id).await? } else { vec![] };
        let (transcript, mut run) = start_attempt(system_prompt(), &job.brief.prompt, &recorded);
        let mut transcript = match &job.brief.delimiter_nonce {
            Some(nonce) => transcript.with_nonce(nonce.clone()),
            None => transcript,
        };
        let tools = self.tools.executor_for_host_job(&job, key.attempt).await?;
        let metered = MeteredModel {
            meter: self.meter.clone(),
            account: attempt.account(),
            stop: || stop.clone().cancelled_owned(),
            waits_for_providers: true,
        };
        let model =
            HostModel { metered, store: self.store.clone(), attempt: Arc::clone(attempt), clock: self.clock.clone() };
        let journal = HostJournal::new(self.ingestion.clone(), Arc::clone(attempt), self.clock.clone(), stop.clone());
        let signals = Signals { stop: stop.clone(), ..Signals::default() };
        let mut feed =
            PromptFeed::new(self.store.clone(), Arc::clone(attempt), self.clock.clone(), Arc::clone(&signals.inbox));
        let (settings, deltas) = (self.settings(&job), DeltaSink::discard());
        let agent = Agent {
            model: &model,
            tools: &tools,
            journal: &journal,
            signals: &signals,
            settings: &settings,
            deltas: &deltas,
        };
        loop {
            let outcome = tokio::select! {
                outcome = agent.run(&mut transcript, &mut run) => outcome,
                never = feed.follow() => match never {},
            };
            if matches!(outcome, LoopOutcome::Completed { .. }) && !signals.inbox.is_empty() {
                // The prompt arrived after the loop had checked its inbox for the last time.
                continue;
            }
            let Some(report) = self.report(attempt, outcome, run.partial()) else {
                return self.end_unreported(attempt).await;
            };
            if self.deliver_all(attempt, &report, &mut feed, &signals.inbox).await?.is_break() {
                return Ok(());
            }
        }
    }

    /// The report of an outcome. None if the attempt is over, or the process drains before the work has ended.
    fn report(&self, attempt: &Attempt, outcome: LoopOutcome, partial: PartialResult) -> Option<CompleteReport> {
        let cause = attempt.stop_cause();
        let is_stopped = outcome == LoopOutcome::Stopped && cause.is_none();
        if cause == Some(StopCause::Ended) || (is_stopped && self.drain.is_cancelled()) {
            return None;
        }
        let (reason, message) = (FailureReason::Internal, NOT_STOPPED.to_owned());
        let outcome = if is_stopped { LoopOutcome::Failed { reason, message } } else { outcome };
        Some(outcome_report(outcome, partial))
    }

    /// Delivers the report. Continues if there are prompts that must be processed first.
    async fn deliver_all(
        &self,
        attempt: &Attempt,
        report: &CompleteReport,
        feed: &mut PromptFeed,
        inbox: &Inbox,
    ) -> Result<ControlFlow<()>, SessionError> {
        let key = attempt.key();
        let report = self.ingestion.shown_report(&attempt.record(), shortened_report(report.clone())).await?;
        let mut is_first = true;
        loop {
            let write = || self.store.complete(key.job, key.attempt, self.clock.now(), &report);
            match retry_write(&self.drain, &key, write).await? {
                Reported::Applied(_) => {
                    self.waker.wake();
                    return Ok(ControlFlow::Break(()));
                }
                Reported::Refused(_) | Reported::NotFound => return Ok(ControlFlow::Break(())),
                Reported::PromptsWaiting => feed.drain().await,
            }
            if !inbox.is_empty() {
                return Ok(ControlFlow::Continue(()));
            }
            // The drain has acknowledged the waiting prompts, so the same report may be accepted now.
            if !is_first {
                tokio::time::sleep(REPORT_RETRY_DELAY).await;
            }
            is_first = false;
        }
    }

    /// The process drains: its job fails now, as it would when the next process starts.
    async fn end_unreported(&self, attempt: &Attempt) -> Result<(), SessionError> {
        if attempt.stop_cause() != Some(StopCause::Ended) {
            let now = self.clock.now();
            let fail = move |job: JobRecord| job.attempt_failed(now, AttemptFailure::orchestrator_restart());
            self.store.transition(attempt.key().job, now, None, fail).await?;
        }
        Ok(())
    }

    fn settings(&self, job: &JobRecord) -> Settings {
        let limits = job.remaining_limits();
        Settings {
            max_iterations: limits.max_iterations,
            max_tool_calls: limits.max_tool_calls,
            plan: job.brief.plan,
            text_tool_calls: self.meter.gateway.recovers_text_tool_calls(),
            outage_patience: self.outage_patience,
            ..Settings::default()
        }
    }
}

fn system_prompt() -> String {
    format!(
        "You are an agent that does one job, without a person to ask. There are no files and no commands: work with the \
         tools that you have. When the job is completed, answer with its result in plain text and call no tool. \
         {DELIMITER_NOTICE}"
    )
}
