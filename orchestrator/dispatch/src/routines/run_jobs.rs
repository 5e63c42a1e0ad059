//! Starts full-job runs: each is a job, stored and linked in the transaction that starts the run.
//!
//! Owns what follows when the job cannot be created. Never waits for a job: the run ends in the transaction in which
//! the job does.

use std::sync::Arc;

use agent::safety::DelimiterNonce;
use protocol::{JobReason, RoutineAction, RunReason, Source};

use crate::{JobSubmitter, NewJob, SubmitError, Submitted};
use domain::{
    job::RunLink,
    routine::{
        attempt::AttemptEnd,
        prompt::{RunFacts, job_prompt},
    },
};
use store::{RunAttempt, StoreError};

/// Creates the jobs of runs.
pub struct RunJobs {
    pub submitter: Arc<JobSubmitter>,
}

impl RunJobs {
    /// Whether jobs run in this process, because the operator has disabled the sandbox.
    pub fn run_on_host(&self) -> bool {
        self.submitter.sandbox.is_disabled()
    }

    /// Starts at most `max` full-job runs that wait. Returns how many were read.
    pub async fn start_waiting(&self, max: usize) -> Result<usize, StoreError> {
        let store = &self.submitter.store;
        let waiting = store.startable_jobs(max, self.submitter.clock.now()).await?;
        let count = waiting.len();
        for run in waiting {
            let id = run.run;
            match self.start(run).await {
                Ok(()) | Err(SubmitError::RunGone) => {}
                Err(SubmitError::Store(error)) if !matches!(error, StoreError::Inconsistent { .. }) => {
                    return Err(error);
                }
                Err(error) => {
                    let end = end_of(&error);
                    tracing::info!(run.id = %id, ?end, "the job of a run was not created");
                    store.fail_queued(id, end, self.submitter.clock.now()).await?;
                }
            }
        }
        Ok(count)
    }

    async fn start(&self, run: RunAttempt) -> Result<(), SubmitError> {
        let RoutineAction::FullJob(action) = run.action.clone() else { return Err(SubmitError::RunGone) };
        let settings = self.submitter.store.settings(&run.user).await?;
        let facts = RunFacts {
            trigger: run.trigger,
            detail: &run.detail,
            due_at: run.due_at,
            payload: run.payload.as_deref(),
            state: run.state.as_deref(),
            timezone: settings.zone_name(),
        };
        let prompt = job_prompt(&action.description, &facts, &DelimiterNonce::generate());
        let mut request = action.into_request(&run.routine_name, prompt);
        if let Some(limit) = run.timeout_seconds {
            let limits = request.limits.get_or_insert_default();
            limits.timeout_seconds = Some(limits.timeout_seconds.map_or(limit, |own| own.min(limit)));
        }
        self.submitter.add_preferences(&run.user, &mut request).await?;
        let (request, accepted) = self.submitter.check(request).await?;
        let routine = Some(RunLink { routine: run.routine, run: run.run });
        let job = NewJob { routine, ..NewJob::new(run.user.clone(), request, accepted) };
        let commit = move |store: store::Store, record| async move { store.create_run_job(run, record).await };
        match self.submitter.submit_with_commit(job, Source::Routine, commit).await? {
            Submitted::Created(_) | Submitted::Replayed { .. } => Ok(()),
        }
    }
}

/// How an attempt ends whose job cannot be created. What the server lacks is not the routine's failure.
fn end_of(error: &SubmitError) -> AttemptEnd {
    let message = explain(error);
    match error {
        SubmitError::SandboxUnavailable { .. } => AttemptEnd::failed(RunReason::SandboxUnavailable, message),
        SubmitError::QueueFull(_) | SubmitError::NoDiskSpace(_) | SubmitError::UserStorageFull(_) => {
            AttemptEnd::infrastructure(RunReason::LimitReached, message)
        }
        SubmitError::Workspace(_) | SubmitError::Unsearched(_) | SubmitError::Aborted(_) | SubmitError::Store(_) => {
            AttemptEnd::failed(RunReason::Internal, message)
        }
        _ => AttemptEnd::failed(RunReason::JobRefused, message),
    }
}

fn explain(error: &SubmitError) -> String {
    match error {
        SubmitError::SandboxUnavailable { reason, detail } => format!("{}: {detail}", reason.as_str()),
        SubmitError::Rejected(rejected) => format!("the job was refused: {rejected}"),
        SubmitError::Workspace(_) | SubmitError::Unsearched(_) | SubmitError::Aborted(_) => {
            format!("{}: the job could not be created", JobReason::Internal.as_str())
        }
        other => other.to_string(),
    }
}
