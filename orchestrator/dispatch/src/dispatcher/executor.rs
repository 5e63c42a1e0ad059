//! Executes actions. Each is idempotent, and every failed step leads to a record of the failure or to a retry.
//!
//! Never decides what to do next: the plan does, from fresh facts.

mod end;
mod logs;
mod start;

use std::{io, path::PathBuf, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use protocol::{JobId, JobReason};
use tracing::{Instrument as _, Span};

use crate::{
    AttemptKey, AttemptRegistry, HostRuns, OpenJobs, Sandbox, WorkerListeners,
    open_jobs::ListedJobs,
    plan::{self, Action, Subject},
};
use auth::{TokenError, WorkerTokens};
use base::clock::Clock;
use domain::job::{AttemptFailure, JobRecord, OpenJob, Refused, Step};
use engine::{Engine, EngineError};
use hooks::{HookRefused, Hooks};
use secrets::LeakDetectors;
use store::{Store, StoreError};
use telemetry::{metrics::Metrics, traces};
use workspace::Workspaces;

/// Time after a failed action before its subject is planned for again.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// The message to the worker of a stuck job; the next repair is a new attempt.
const NUDGE: &str = "Nothing has happened in this job for a long time. If you wait for something, stop waiting for it. Go on with the \
                     task now, or give your final answer.";

/// Executes actions.
pub struct ActionExecutor {
    pub store: Store,
    /// The open jobs in memory.
    pub jobs: Arc<OpenJobs>,
    /// Whether attempts can start.
    pub sandbox: Arc<Sandbox>,
    /// Runs the containers.
    pub engine: Arc<dyn Engine>,
    pub listeners: Arc<WorkerListeners>,
    /// The loops of jobs that this process runs itself.
    pub host_runs: HostRuns,
    pub attempts: Arc<AttemptRegistry>,
    pub workspaces: Workspaces,
    pub tokens: WorkerTokens,
    /// Finds users' secrets in the output of containers.
    pub detectors: LeakDetectors,
    /// Asked before a job's first attempt.
    pub hooks: Arc<Hooks>,
    pub clock: Clock,
    /// Counts removals.
    pub metrics: Metrics,
    /// Directory of containers' saved output.
    pub logs: PathBuf,
    /// The lease of a worker.
    pub lease: Duration,
}

/// Why an action was not completed. It is planned again after [`RETRY_DELAY`].
#[derive(Debug, thiserror::Error)]
enum ActionError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error("the sandbox is not ready")]
    SandboxNotReady,
    #[error("cannot change the run directory")]
    RunDir(#[from] io::Error),
    #[error("cannot mint the worker's token")]
    Token(#[from] TokenError),
    #[error("a hook could not be asked")]
    Hook(#[source] HookRefused),
}

impl ActionExecutor {
    /// Executes an action. A failure is logged, and delays the return, so that the action is not retried at once.
    pub(crate) async fn execute(&self, action: Action) {
        let subject = action.subject();
        let span = self.span(&action).await;
        if let Err(error) = self.try_execute(action.clone()).instrument(span).await {
            tracing::warn!(
                action = action.name(),
                ?subject,
                error = &error as &dyn std::error::Error,
                "action failed; it will be retried"
            );
            if let (ActionError::Store(error), Subject::Job(job)) = (&error, &subject)
                && error.concerns_one_row()
            {
                self.store.report_inconsistent(error);
                self.jobs.set_unreadable(*job);
            }
            if matches!(error, ActionError::Engine(EngineError::Unreachable(_) | EngineError::Other(_))) {
                self.sandbox.mark_stale();
            }
            tokio::time::sleep(RETRY_DELAY).await;
        }
    }

    /// Actions for a job belong to the trace of the request that created it.
    async fn span(&self, action: &Action) -> Span {
        if !traces::is_enabled() {
            return Span::none();
        }
        let Subject::Job(id) = action.subject() else { return Span::none() };
        let span = tracing::info_span!("dispatch", otel.name = action.name(), job.id = %id);
        if let Ok(Some(job)) = self.store.job(id).await {
            traces::set_parent(&span, job.brief.traceparent.as_deref());
        }
        span
    }

    async fn try_execute(&self, action: Action) -> Result<(), ActionError> {
        match action {
            Action::Start { job } => self.start(job, JobRecord::start).await,
            Action::StartAgain { job } => self.start(job, JobRecord::start_again).await,
            Action::TakeOver { job } => self.take_over(job).await,
            Action::FailAttempt { job, version, failure } => self.remove_and_fail_attempt(job, version, failure).await,
            Action::MarkStuck { job, message } => self.mark_stuck(job, message).await,
            Action::Nudge { job } => self.nudge(job).await,
            Action::FailOverBudget { job, exceeded } => {
                self.transition(job, move |job, now| job.fail(now, exceeded.reason(), exceeded.message())).await
            }
            Action::FailSandboxDisabled { job } => {
                let message = plan::SANDBOX_DISABLED.to_owned();
                self.transition(job, |job, now| job.fail(now, JobReason::SandboxUnavailable, message)).await
            }
            Action::CancelWithParent { job } => self.transition(job, JobRecord::cancel_with_parent).await,
            Action::Cancel { job } => self.cancel(job).await,
            Action::Expire { job } => self.expire(job).await,
            Action::FailOverQuota { job, .. } => self.fail_over_quota(job).await,
            Action::RemoveContainer { container } => self.remove_leftover(&container).await,
            Action::RemoveRunDir { run_dir } => {
                self.listeners.close(&run_dir)?;
                self.metrics.orphan_removed("directory");
                Ok(())
            }
        }
    }

    /// Applies a transition. One that the job's stage no longer allows changes nothing: the facts were out of date.
    async fn transition(
        &self,
        job: JobId,
        decide: impl FnOnce(JobRecord, DateTime<Utc>) -> Result<Step, Refused> + Send + 'static,
    ) -> Result<(), ActionError> {
        let now = self.clock.now();
        self.store.transition(job, now, None, move |job| decide(job, now)).await?;
        Ok(())
    }

    async fn mark_stuck(&self, job: JobId, message: String) -> Result<(), ActionError> {
        tracing::warn!(job.id = %job, message, "job stuck");
        self.transition(job, |job, _| job.mark_stuck(message)).await
    }

    async fn nudge(&self, job: JobId) -> Result<(), ActionError> {
        let nudged = self.store.nudge(job, self.clock.now(), NUDGE).await?;
        if let Some(attempt) = nudged.and_then(|job| self.attempts.live(job.id)) {
            // A whole period to act on it.
            attempt.record_progress();
        }
        Ok(())
    }

    /// Registers the attempts of running jobs that an earlier process began. A job whose row is invalid is left alone.
    pub(crate) async fn register_attempts(&self, listed: &mut ListedJobs) -> Result<(), StoreError> {
        let running = listed.jobs.iter().filter(|job| job.is_running());
        let is_new =
            |job: &&Arc<OpenJob>| self.attempts.get(AttemptKey { job: job.id, attempt: job.attempt }).is_none();
        let new: Vec<JobId> = running.filter(is_new).map(|job| job.id).collect();
        for job in new {
            match self.store.job(job).await {
                Ok(record) => {
                    record.and_then(|record| self.attempts.observe(&record));
                }
                Err(error) if error.concerns_one_row() => self.set_unreadable(listed, job, &error),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Leaves a job with an invalid row out of this plan and the next ones.
    pub(crate) fn set_unreadable(&self, listed: &mut ListedJobs, job: JobId, error: &StoreError) {
        self.store.report_inconsistent(error);
        self.jobs.set_unreadable(job);
        listed.jobs.retain(|one| one.id != job);
        listed.unreadable.insert(job);
    }

    /// Records that an attempt whose container is gone ended without a report.
    async fn record_attempt_failure(&self, job: &JobRecord, failure: AttemptFailure) -> Result<(), ActionError> {
        self.transition(job.id, |job, now| job.attempt_failed(now, failure)).await
    }
}

#[cfg(test)]
mod tests;
