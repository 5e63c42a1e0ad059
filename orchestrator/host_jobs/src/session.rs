//! A session: from the row of a job's attempt to its report, in this process.
//!
//! Owns the order of these steps, and what a stop means for them. Never decides that an attempt begins or that a job is cancelled:
//! the dispatcher does.

use std::{convert::Infallible, sync::Arc, time::Duration};

use agent::{
    Agent, Delivery, DeltaSink, FailureReason, JobSession, LoopOutcome, RecordError, Settings, Signals, outcome_report,
    safety::DELIMITER_NOTICE, shortened_report, start_attempt,
};
use protocol::{PartialResult, PromptDelivery, PromptId};
use tokio_util::sync::CancellationToken;

use super::{journal::HostJournal, model::HostModel};
use base::clock::Clock;
use dispatch::{Attempt, AttemptStopCause, DispatcherWaker, EventIngestion, RunHostJob};
use domain::{
    job::{AttemptFailure, JobRecord},
    memory::{MemoryPath, with_identity},
};
use llm::metering::{Meter, MeteredModel, retry_write};
use secrets::DetectorError;
use store::{Reported, Store, StoreError, Transition};
use tools::BuiltinTools;

/// Delay before the database is asked again for prompts after it failed.
const STORE_RETRY: Duration = Duration::from_secs(1);

const NOT_STOPPED: &str = "the loop stopped without being told to";

/// Runs jobs in this process.
pub struct HostJobs {
    /// Jobs, prompts and reports.
    pub store: Store,
    pub ingestion: EventIngestion,
    /// Makes model calls.
    pub meter: Meter,
    pub tools: Arc<BuiltinTools>,
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
        let of_user = self.store.settings(&job.brief.user_id).await?;
        let identity = self.store.memory_document(&job.brief.user_id, &MemoryPath::identity(), None).await?;
        let tools = self.tools.executor_for_job(&job, key.attempt, None).await?;
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
        let (settings, deltas) = (self.settings(&job, of_user.temperature), DeltaSink::discard());
        let agent = Agent {
            model: &model,
            tools: &tools,
            journal: &journal,
            signals: &signals,
            settings: &settings,
            deltas: &deltas,
        };
        let nonce = job.brief.delimiter_nonce.clone();
        let identity = identity.as_ref().map(|document| document.content.as_str());
        let system = with_identity(identity, &instructions());
        let (transcript, run) = start_attempt(system, &job.brief.first_message(), &recorded, nonce);
        agent.run_job(transcript, run, &HostSession { jobs: self, attempt }).await
    }

    fn settings(&self, job: &JobRecord, temperature: Option<f64>) -> Settings {
        let limits = job.remaining_limits();
        Settings {
            max_iterations: limits.max_iterations,
            max_tool_calls: limits.max_tool_calls,
            temperature,
            plan: job.brief.plan,
            text_tool_calls: self.meter.gateway.recovers_text_tool_calls(),
            outage_patience: self.outage_patience,
            ..Settings::default()
        }
    }
}

/// The session of one attempt. The dispatcher cuts it off if its loop does not stop.
struct HostSession<'a> {
    jobs: &'a HostJobs,
    attempt: &'a Attempt,
}

impl JobSession for HostSession<'_> {
    type Error = SessionError;

    async fn next_prompt(&self, after: PromptId, wait: bool) -> Option<PromptDelivery> {
        // Before the read, so that no prompt is missed.
        let mut changes = self.attempt.subscribe();
        match self.jobs.store.next_prompt(self.attempt.key().job, Some(after), self.jobs.clock.now()).await {
            Ok(None) if wait => changes.changed().await,
            Ok(delivery) => return delivery,
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "the prompts of a job could not be read");
                tokio::time::sleep(STORE_RETRY).await;
            }
        }
        None
    }

    async fn deliver(&self, outcome: LoopOutcome, partial: PartialResult) -> Result<Delivery, SessionError> {
        let (jobs, key, cause) = (self.jobs, self.attempt.key(), self.attempt.stop_cause());
        let is_stopped = outcome == LoopOutcome::Stopped && cause.is_none();
        if cause == Some(AttemptStopCause::Ended) {
            return Ok(Delivery::Done);
        }
        if is_stopped && jobs.drain.is_cancelled() {
            // The process drains: its job fails now, as it would when the next process starts.
            let now = jobs.clock.now();
            let fail = move |job: JobRecord| job.attempt_failed(now, AttemptFailure::orchestrator_restart());
            jobs.store.transition(key.job, now, None, fail).await?;
            return Ok(Delivery::Done);
        }
        let (reason, message) = (FailureReason::Internal, NOT_STOPPED.to_owned());
        let outcome = if is_stopped { LoopOutcome::Failed { reason, message } } else { outcome };
        let report = shortened_report(outcome_report(outcome, partial));
        let report = jobs.ingestion.shown_report(&self.attempt.record(), report).await?;
        let write = || jobs.store.complete(key.job, key.attempt, jobs.clock.now(), &report);
        match retry_write(&jobs.drain, &key, write).await? {
            Reported::Decided(Transition::Applied(_)) => jobs.waker.wake(),
            Reported::Decided(Transition::Refused(_) | Transition::NotFound) => {}
            Reported::PromptsWaiting => return Ok(Delivery::PromptsWaiting),
        }
        Ok(Delivery::Done)
    }
}

fn instructions() -> String {
    format!(
        "You are an agent that does one job, without a person to ask. There are no files and no commands: work with the \
         tools that you have. When the job is completed, answer with its result in plain text and call no tool. \
         {DELIMITER_NOTICE}"
    )
}
