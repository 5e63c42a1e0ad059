//! Actions that start an attempt or take over an existing one.
//!
//! Owns the order of the steps: the row first, then the run directory, then the container, so that a crash in between
//! leaves a state that the next process recognizes: it adopts the container, or fails the attempt.

use std::{collections::BTreeMap, io, net::Ipv4Addr, sync::Arc, time::Duration};

use chrono::{DateTime, TimeDelta, Utc};
use protocol::{ContainerInfo, ContainerName, JobId, JobReason, Limits};
use serde_json::json;

use super::{ActionError, ActionExecutor};
use base::failpoint;
use config::HookPoint;
use domain::job::{AttemptFailure, AttemptStart, JobRecord, Refused, Step, WorkerSession, WorkerStart};
use engine::{
    Adoption, AdoptionSpec, ContainerRole, ContainerSpec, EngineError, EngineFacts, Resources, SandboxReadiness,
};
use hooks::HookEvent;
use store::Transition;

use crate::{Attempt, plan};

/// The transition into a new attempt: of a queued job, or of a stuck one.
type StartTransition = fn(JobRecord, DateTime<Utc>, AttemptStart) -> Result<Step, Refused>;

impl ActionExecutor {
    /// Starts a new attempt.
    pub(super) async fn start(&self, id: JobId, transition: StartTransition) -> Result<(), ActionError> {
        let Some(job) = self.store.job(id).await? else { return Ok(()) };
        if job.is_on_host() {
            let is_allowed = self.is_start_allowed(&job).await?;
            return if is_allowed { self.start_on_host(&job, transition).await } else { Ok(()) };
        }
        let SandboxReadiness::Ready(facts) = self.sandbox.state().await else {
            return Err(ActionError::SandboxNotReady);
        };
        if !self.is_start_allowed(&job).await? {
            return Ok(());
        }
        let earlier = job.container.clone().filter(|_| job.attempt > 0);
        let now = self.clock.now();
        let attempt = job.attempt + 1;
        let token = self.tokens.mint(id, attempt, now, Duration::from_secs(job.brief.limits.timeout_seconds))?;
        let start = AttemptStart {
            attempt,
            worker: Some(WorkerStart {
                token_hash: token.hash,
                lease_expires_at: now + TimeDelta::from_std(self.lease).unwrap_or(TimeDelta::zero()),
                container: container_info(ContainerName::job(id, attempt).to_string(), job.brief.image.clone(), facts),
            }),
        };
        let transition = move |job: JobRecord| transition(job, now, start);
        let Transition::Applied(job) = self.store.transition(id, now, None, transition).await? else { return Ok(()) };
        failpoint::reach("start.after_row");
        if let Some(earlier) = earlier {
            // The row has a newer attempt, so its worker's calls are rejected; no two attempts run side by side.
            self.engine.kill(&earlier.name).await?;
            self.remove(&earlier.name).await?;
        }
        let Some(container) = &job.container else { return Ok(()) };
        if let Err(error) = self.workspaces.create(id, &[]) {
            tracing::error!(job.id = %id, error = &error as &dyn std::error::Error, "cannot create the workspace");
            let failure = internal("the workspace cannot be created; see the orchestrator's log");
            return self.record_attempt_failure(&job, failure).await;
        }
        self.record_baseline(&job).await;
        let Some(attempt) = self.attempts.live(job.id) else { return Ok(()) };
        if let Err(error) = self.listeners.open(&container.name, attempt, &token.token) {
            tracing::error!(job.id = %id, %error, "cannot create the run directory");
            let failure = internal("the run directory cannot be created; see the orchestrator's log");
            return self.record_attempt_failure(&job, failure).await;
        }
        failpoint::reach("start.after_directory");
        self.create_container(&job, container).await
    }

    /// Starts a new attempt whose loop runs in this process.
    async fn start_on_host(&self, earlier: &JobRecord, transition: StartTransition) -> Result<(), ActionError> {
        let (id, now) = (earlier.id, self.clock.now());
        let start = AttemptStart { attempt: earlier.attempt + 1, worker: None };
        let transition = move |job: JobRecord| transition(job, now, start);
        let Transition::Applied(job) = self.store.transition(id, now, None, transition).await? else { return Ok(()) };
        failpoint::reach("start.after_row");
        // Its attempt is over, so it stops by itself; no two loops of a job run side by side.
        self.stop_host_run(earlier).await;
        if let Some(attempt) = self.attempts.live(job.id) {
            self.host_runs.start(attempt);
        }
        Ok(())
    }

    /// Asks the hooks about a job that has not begun. One that is refused fails; while a hook that must allow it does
    /// not answer, the job stays in the queue.
    async fn is_start_allowed(&self, job: &JobRecord) -> Result<bool, ActionError> {
        let brief = &job.brief;
        let event = HookEvent::new(HookPoint::JobStart, &brief.user_id).of(job.id);
        if job.attempt > 0 || !self.hooks.has(event.point) {
            return Ok(true);
        }
        let facts = json!({
            "title": brief.title, "prompt": brief.task(), "image": brief.image, "model": brief.model, "tools": brief.tools,
            "approve": brief.approve, "limits": brief.limits, "labels": brief.labels, "source": brief.source,
        });
        match self.hooks.ask(&event, &facts).await {
            Ok(_) => Ok(true),
            Err(refused) if refused.is_transient() => Err(ActionError::Hook(refused)),
            Err(refused) => {
                let message = refused.to_string();
                self.transition(job.id, |job, now| job.fail(now, JobReason::Rejected, message)).await?;
                Ok(false)
            }
        }
    }

    /// Takes over an attempt that exists, after a restart or a start that was cut short. Its container is adopted as it
    /// is; it is created again only if it was never started, since otherwise the work would be done twice.
    pub(super) async fn take_over(&self, id: JobId) -> Result<(), ActionError> {
        let Some(job) = self.store.job(id).await? else { return Ok(()) };
        let Some(container) = &job.container else { return Ok(()) };
        if matches!(job.session, WorkerSession::Open(_)) {
            // The process may have died after the session was opened and before the token file was removed.
            self.listeners.token_files.remove(&container.name)?;
        }
        // The worker may be running: no engine error ends it but a posture mismatch.
        match self.engine.adopt(&adoption_spec(&job, container)).await {
            Ok(Adoption::Adopted { id: engine_id }) => {
                self.record_started(&job, container, engine_id, true).await?;
                let Some(attempt) = self.attempts.live(job.id) else { return Ok(()) };
                self.serve_adopted(&job, container, attempt).await
            }
            Ok(Adoption::NotStarted) => self.create_again(job).await,
            Ok(Adoption::NotFound) => self.record_attempt_failure(&job, plan::vanished()).await,
            Err(error @ EngineError::PostureMismatch { .. }) => self.fail_start(&job, container, &error).await,
            Err(error) => Err(error.into()),
        }
    }

    async fn serve_adopted(
        &self,
        job: &JobRecord,
        container: &ContainerInfo,
        attempt: Arc<Attempt>,
    ) -> Result<(), ActionError> {
        match self.listeners.serve(&container.name, attempt) {
            // The container's mount stays on the deleted directory: its worker can never connect again.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                tracing::warn!(job.id = %job.id, job.attempt, container = container.name, "the run directory is gone");
                self.remove(&container.name).await?;
                let message = "the run directory is gone, so its worker could no longer report".to_owned();
                let failure = AttemptFailure { reason: JobReason::WorkerLost, message, is_retryable: true };
                self.record_attempt_failure(job, failure).await
            }
            served => Ok(served?),
        }
    }

    /// Creates a container that was never started again, with today's settings, in the same attempt.
    async fn create_again(&self, mut job: JobRecord) -> Result<(), ActionError> {
        let SandboxReadiness::Ready(facts) = self.sandbox.state().await else {
            return Err(ActionError::SandboxNotReady);
        };
        let Some(name) = job.container.as_ref().map(|container| container.name.clone()) else { return Ok(()) };
        self.engine.remove(&name).await?;
        let container = container_info(name, job.brief.image.clone(), facts);
        let Some(attempt) = self.attempts.live(job.id) else { return Ok(()) };
        if let Err(error) = self.listeners.serve(&container.name, attempt) {
            tracing::error!(job.id = %job.id, %error, "cannot serve the run directory");
            let failure = internal("the run directory is gone; see the orchestrator's log");
            return self.record_attempt_failure(&job, failure).await;
        }
        self.store.set_container(job.id, job.attempt, &container).await?;
        job.container = Some(container.clone());
        self.record_baseline(&job).await;
        self.create_container(&job, &container).await
    }

    /// Records what the workspace has before the job's first container can change it. A job starts without a baseline,
    /// too.
    async fn record_baseline(&self, job: &JobRecord) {
        if job.attempt != 1 {
            return;
        }
        let (workspaces, id) = (self.workspaces.clone(), job.id);
        let recorded = tokio::task::spawn_blocking(move || workspaces.record_baseline(id)).await;
        if let Ok(Err(error)) = recorded {
            tracing::warn!(job.id = %id, error = &error as &dyn std::error::Error, "the baseline of a workspace is not recorded");
        }
    }

    async fn create_container(&self, job: &JobRecord, container: &ContainerInfo) -> Result<(), ActionError> {
        let mut created = self.engine.create(&self.container_spec(job, container)).await;
        if let Err(EngineError::Unreachable(_) | EngineError::Other(_)) = &created {
            // The answer may have been lost after the container was started.
            match self.engine.adopt(&adoption_spec(job, container)).await {
                Ok(Adoption::Adopted { id }) => created = Ok(id),
                Ok(Adoption::NotStarted | Adoption::NotFound) => {}
                Err(error @ EngineError::PostureMismatch { .. }) => created = Err(error),
                Err(error) => return Err(error.into()),
            }
        }
        match created {
            Ok(id) => {
                failpoint::reach("start.after_start");
                self.record_started(job, container, id, false).await
            }
            Err(error) => self.fail_start(job, container, &error).await,
        }
    }

    async fn record_started(
        &self,
        job: &JobRecord,
        container: &ContainerInfo,
        id: String,
        adopted: bool,
    ) -> Result<(), ActionError> {
        tracing::info!(job.id = %job.id, job.attempt, container = container.name, adopted, "container started");
        let container = ContainerInfo { id: Some(id), ..container.clone() };
        self.store.set_container(job.id, job.attempt, &container).await?;
        Ok(())
    }

    /// The container did not start, or must not run. Its removal is confirmed before the failure is recorded: no other
    /// attempt starts beside a container that may still come up.
    async fn fail_start(
        &self,
        job: &JobRecord,
        container: &ContainerInfo,
        error: &EngineError,
    ) -> Result<(), ActionError> {
        self.sandbox.mark_stale();
        tracing::warn!(job.id = %job.id, job.attempt, error = error as &dyn std::error::Error, "container not started");
        self.engine.remove(&container.name).await?;
        self.listeners.close(&container.name)?;
        self.record_attempt_failure(job, start_failure(error)).await
    }

    fn container_spec(&self, job: &JobRecord, container: &ContainerInfo) -> ContainerSpec {
        ContainerSpec {
            name: container.name.clone(),
            job_id: job.id,
            attempt: job.attempt,
            owner: job.brief.user_id.clone(),
            created_at: job.brief.created_at,
            role: ContainerRole::Job,
            image: job.brief.image.clone(),
            resources: resources(job),
            run_dir: self.listeners.run_dir(&container.name),
            workspace: self.workspaces.path(job.id),
            traceparent: job.brief.traceparent.clone(),
            hosts: hosts(job),
        }
    }
}

/// The names of the job's hosts inside its container. Fixed, since its list is.
fn hosts(job: &JobRecord) -> BTreeMap<String, Ipv4Addr> {
    let names = egress::names(&job.brief.egress_view().allow);
    names.into_iter().map(|name| (name.host, name.address)).collect()
}

/// How an attempt's container is identified, from the job's row alone.
fn adoption_spec(job: &JobRecord, container: &ContainerInfo) -> AdoptionSpec {
    AdoptionSpec {
        name: container.name.clone(),
        id: container.id.clone(),
        job_id: job.id,
        attempt: job.attempt,
        posture: container.posture.clone(),
        resources: resources(job),
    }
}

fn resources(job: &JobRecord) -> Resources {
    let Limits { memory_mb, cpus, pids, disk_mb, .. } = job.brief.limits;
    Resources { memory_mb, cpus, pids, disk_mb }
}

fn container_info(name: String, image: String, facts: EngineFacts) -> ContainerInfo {
    ContainerInfo {
        id: None,
        name,
        image,
        engine: facts.engine,
        runtime: facts.runtime,
        transport: "unix".to_owned(),
        workspace: "fsize+sweep".to_owned(),
        node: Some(facts.node),
        posture: facts.posture,
        exit_code: None,
        oom_killed: None,
    }
}

/// A failure of the host, such as a full disk: the attempt is repeated.
fn internal(message: &str) -> AttemptFailure {
    AttemptFailure { reason: JobReason::Internal, message: message.to_owned(), is_retryable: true }
}

fn start_failure(error: &EngineError) -> AttemptFailure {
    let (reason, is_retryable) = match error {
        EngineError::Unreachable(_) | EngineError::Other(_) => (JobReason::EngineError, true),
        EngineError::ImageMissing(_) => (JobReason::ImageMissing, false),
        EngineError::RuntimeMissing(_) => (JobReason::SandboxUnavailable, false),
        EngineError::PostureMismatch { .. } => (JobReason::PostureMismatch, false),
        EngineError::Refused(_) => (JobReason::EngineError, false),
    };
    AttemptFailure { reason, message: error.to_string(), is_retryable }
}
