//! Doing what was decided: each action idempotent, each step's failure leading to a record that says so.
//!
//! Never decides what to do next; that is `plan`'s, from fresh facts.

use std::{fs, io, path::PathBuf, sync::Arc, time::Duration};

use chrono::{DateTime, TimeDelta, Utc};
use protocol::{ContainerInfo, ContainerName, JobId, JobReason, Limits};
use tracing::{Instrument as _, Span};

use super::{
    AttemptRegistry, Sandbox, WorkerListeners,
    plan::{self, Action, Subject},
};
use crate::{
    auth::{TokenError, WorkerTokens},
    clock::Clock,
    domain::job::{AttemptFailure, AttemptStart, JobRecord, Refused, Step, WorkerSession},
    engine::{
        Adoption, AdoptionSpec, ContainerRole, ContainerSpec, ContainerStatus, Engine, EngineError, EngineFacts,
        Resources, SandboxReadiness,
    },
    failpoint,
    store::{Store, StoreError, Transition},
    telemetry::{metrics::Metrics, traces},
    workspace::Workspaces,
};

/// What the worker gets to stop its children and flush (contract: sandbox, Cancel and end).
const STOP_GRACE: Duration = Duration::from_secs(5);
/// Kept of what a container printed.
const MAX_LOG_BYTES: usize = 256 * 1024;
/// Shown of it in a job's message.
const MAX_SHOWN_BYTES: usize = 400;
/// An action that failed is not tried again sooner.
const REST: Duration = Duration::from_secs(1);

/// What a stuck job's worker is told; the next step is a new attempt.
const NUDGE: &str = "Nothing has happened in this job for a long time. If you wait for something, stop waiting for it. Go on with the \
                     task now, or give your final answer.";

/// The transition into a new attempt: from the queue, or from being stuck.
type Begin = fn(JobRecord, DateTime<Utc>, AttemptStart) -> Result<Step, Refused>;

/// What applying needs.
pub(super) struct Hands {
    pub(super) store: Store,
    pub(super) sandbox: Arc<Sandbox>,
    pub(super) engine: Arc<dyn Engine>,
    pub(super) listeners: Arc<WorkerListeners>,
    pub(super) attempts: Arc<AttemptRegistry>,
    pub(super) workspaces: Workspaces,
    pub(super) auth: WorkerTokens,
    pub(super) clock: Clock,
    pub(super) metrics: Metrics,
    pub(super) logs: PathBuf,
    pub(super) lease: Duration,
}

/// Why an action did not get done. It is decided anew after a rest.
#[derive(Debug, thiserror::Error)]
enum Undone {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error("the sandbox is not ready")]
    NotReady,
    #[error("run folder")]
    Folder(#[from] io::Error),
    #[error("worker token")]
    Token(#[from] TokenError),
}

impl Hands {
    /// Does it; a failure is logged here and rested on, so that the next decision does not spin.
    pub(super) async fn apply(&self, action: Action) {
        let subject = action.subject();
        let span = self.span(&action).await;
        if let Err(error) = self.try_apply(action.clone()).instrument(span).await {
            tracing::warn!(?subject, error = &error as &dyn std::error::Error, "will be tried again: {action:?}");
            if matches!(error, Undone::Engine(EngineError::Unreachable(_) | EngineError::Other(_))) {
                self.sandbox.doubt();
            }
            tokio::time::sleep(REST).await;
        }
    }

    /// What is done for a job belongs to the trace of the request that made it.
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

    async fn try_apply(&self, action: Action) -> Result<(), Undone> {
        match action {
            Action::Start { job } => self.begin(job, JobRecord::start).await,
            Action::Resume { job } => self.resume(job).await,
            Action::Settle { job, death } => self.settle(job, death).await,
            Action::Stick { job, message } => {
                tracing::warn!(job.id = %job, message, "job stuck");
                let now = self.clock.now();
                self.store.transition(job, now, None, move |job| job.mark_stuck(message)).await?;
                Ok(())
            }
            Action::Nudge { job } => {
                let nudged = self.store.nudge(job, self.clock.now(), NUDGE).await?;
                if let Some(attempt) = nudged.and_then(|job| self.attempts.observe(&job)) {
                    // It gets as long again to do something about it.
                    attempt.record_progress();
                }
                Ok(())
            }
            Action::StartAgain { job } => self.begin(job, JobRecord::start_again).await,
            Action::Refuse { job, spent } => {
                let now = self.clock.now();
                self.store
                    .transition(job, now, None, move |job| job.fail(now, spent.reason(), spent.message()))
                    .await?;
                Ok(())
            }
            Action::FailUnavailable { job } => {
                let now = self.clock.now();
                let fail =
                    move |job: JobRecord| job.fail(now, JobReason::SandboxUnavailable, plan::UNAVAILABLE.to_owned());
                self.store.transition(job, now, None, fail).await?;
                Ok(())
            }
            Action::Orphan { job } => {
                let now = self.clock.now();
                self.store.transition(job, now, None, move |job| job.cancel_with_parent(now)).await?;
                Ok(())
            }
            Action::Cancel { job } => self.cancel(job).await,
            Action::Expire { job } => self.expire(job).await,
            Action::Evict { job } => self.evict(job).await,
            Action::Remove { container } => {
                self.remove(&container).await?;
                self.count_removed(&container).await
            }
            Action::Sweep { folder } => {
                self.listeners.close(&folder)?;
                self.metrics.orphan_removed("folder");
                Ok(())
            }
        }
    }

    /// The row first, then the folder, then the container: a crash in between leaves what recovery knows to handle.
    async fn begin(&self, id: JobId, transition: Begin) -> Result<(), Undone> {
        let Some(job) = self.store.job(id).await? else { return Ok(()) };
        let SandboxReadiness::Ready(facts) = self.sandbox.state().await else { return Err(Undone::NotReady) };
        let old = job.container.clone().filter(|_| job.attempt > 0);
        let now = self.clock.now();
        let attempt = job.attempt + 1;
        let token = self.auth.mint(id, attempt, now, Duration::from_secs(job.brief.limits.timeout_seconds))?;
        let container = container_info(ContainerName::job(id, attempt).to_string(), job.brief.image.clone(), facts);
        let start = AttemptStart {
            attempt,
            token_hash: token.hash,
            lease_expires_at: now + TimeDelta::from_std(self.lease).unwrap_or(TimeDelta::zero()),
            container,
        };
        let Transition::Applied(job) =
            self.store.transition(id, now, None, move |job| transition(job, now, start)).await?
        else {
            return Ok(());
        };
        failpoint::reach("start.after_row");
        if let Some(old) = old {
            self.clear_old(&old).await?;
        }
        let Some(container) = &job.container else { return Ok(()) };
        let prepared = self.workspaces.create(id, &[]);
        if let Err(error) = prepared {
            tracing::error!(job.id = %id, error = &error as &dyn std::error::Error, "no workspace");
            return self.die(&job, internal("the workspace cannot be made; see the orchestrator's log")).await;
        }
        let Some(attempt) = self.attempts.observe(&job) else { return Ok(()) };
        let opened = self.listeners.open(&container.name, attempt, &token.token);
        if let Err(error) = opened {
            tracing::error!(job.id = %id, %error, "no run folder");
            let death = AttemptFailure {
                infrastructure: true,
                ..internal("the run folder cannot be made; see the orchestrator's log")
            };
            return self.die(&job, death).await;
        }
        failpoint::reach("start.after_folder");
        self.ensure(&job).await
    }

    /// The attempt before this one. The row has overtaken it, so nothing that its worker still says counts, and it is killed
    /// before it can say more; no other starts beside it.
    async fn clear_old(&self, container: &ContainerInfo) -> Result<(), Undone> {
        self.engine.kill(&container.name).await?;
        self.remove(&container.name).await
    }

    /// An attempt that exists: after a restart, or when a start was cut short. Its container is taken up as it is; another
    /// one is made only where the first was never started, since else the work would be done again.
    async fn resume(&self, id: JobId) -> Result<(), Undone> {
        let Some(job) = self.store.job(id).await? else { return Ok(()) };
        let Some(container) = &job.container else { return Ok(()) };
        if matches!(job.session, WorkerSession::Open(_)) {
            // The process may have died between opening the session and this.
            self.listeners.token_files().remove(&container.name)?;
        }
        // Its worker goes on meanwhile: whatever the engine says now is no reason to end that, but for a wrong posture.
        match self.engine.adopt(&adoption(&job, container)).await {
            Ok(Adoption::Adopted { id: found }) => {
                self.started(&job, container, found, true).await?;
                let Some(attempt) = self.attempts.observe(&job) else { return Ok(()) };
                let served = self.listeners.serve(&container.name, attempt);
                match served {
                    // The mount points at nothing for ever: its worker can never reach us again.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {
                        self.give_up_unreachable(&job, container).await
                    }
                    served => Ok(served?),
                }
            }
            Ok(Adoption::NotStarted) => self.make_anew(job).await,
            Ok(Adoption::NotFound) => self.die(&job, plan::vanished()).await,
            Err(error @ EngineError::PostureMismatch { .. }) => self.give_up(&job, container, &error).await,
            Err(error) => Err(error.into()),
        }
    }

    /// The attempt's container was created and never started: it is made again by today's settings, in the same attempt.
    async fn make_anew(&self, mut job: JobRecord) -> Result<(), Undone> {
        let SandboxReadiness::Ready(facts) = self.sandbox.state().await else { return Err(Undone::NotReady) };
        let Some(name) = job.container.as_ref().map(|container| container.name.clone()) else { return Ok(()) };
        self.engine.remove(&name).await?;
        let container = container_info(name, job.brief.image.clone(), facts);
        let Some(attempt) = self.attempts.observe(&job) else { return Ok(()) };
        if let Err(error) = self.listeners.serve(&container.name, attempt) {
            tracing::error!(job.id = %job.id, %error, "no run folder");
            let death = AttemptFailure {
                infrastructure: true,
                ..internal("the run folder is gone; see the orchestrator's log")
            };
            return self.die(&job, death).await;
        }
        self.store.set_container(job.id, job.attempt, &container).await?;
        job.container = Some(container);
        self.ensure(&job).await
    }

    async fn give_up_unreachable(&self, job: &JobRecord, container: &ContainerInfo) -> Result<(), Undone> {
        tracing::warn!(job.id = %job.id, job.attempt, container = container.name, "the run folder is gone");
        self.remove(&container.name).await?;
        let message = "the run folder is gone, so that its worker could not report any more".to_owned();
        self.die(job, AttemptFailure { reason: JobReason::WorkerLost, message, infrastructure: true }).await
    }

    async fn started(
        &self,
        job: &JobRecord,
        container: &ContainerInfo,
        id: String,
        adopted: bool,
    ) -> Result<(), Undone> {
        tracing::info!(job.id = %job.id, job.attempt, container = container.name, adopted, "container started");
        let container = ContainerInfo { id: Some(id), ..container.clone() };
        self.store.set_container(job.id, job.attempt, &container).await?;
        Ok(())
    }

    async fn ensure(&self, job: &JobRecord) -> Result<(), Undone> {
        let Some(container) = &job.container else { return Ok(()) };
        let mut created = self.engine.create(&self.spec(job, container)).await;
        if let Err(EngineError::Unreachable(_) | EngineError::Other(_)) = &created {
            // It may run by now, its worker at work: an answer that was lost is no failure.
            match self.engine.adopt(&adoption(job, container)).await {
                Ok(Adoption::Adopted { id }) => created = Ok(id),
                Ok(Adoption::NotStarted | Adoption::NotFound) => {}
                Err(error @ EngineError::PostureMismatch { .. }) => created = Err(error),
                Err(error) => return Err(error.into()),
            }
        }
        match created {
            Ok(id) => {
                failpoint::reach("start.after_start");
                self.started(job, container, id, false).await
            }
            Err(error) => self.give_up(job, container, &error).await,
        }
    }

    async fn give_up(&self, job: &JobRecord, container: &ContainerInfo, error: &EngineError) -> Result<(), Undone> {
        self.sandbox.doubt();
        tracing::warn!(job.id = %job.id, job.attempt, error = error as &dyn std::error::Error, "container not started");
        // Confirmed gone, or not done: no other attempt starts beside one that may yet come up.
        self.engine.remove(&container.name).await?;
        self.listeners.close(&container.name)?;
        self.die(job, not_started(error)).await
    }

    fn spec(&self, job: &JobRecord, container: &ContainerInfo) -> ContainerSpec {
        ContainerSpec {
            name: container.name.clone(),
            job_id: job.id,
            attempt: job.attempt,
            owner: job.brief.user_id.clone(),
            created_at: job.brief.created_at,
            role: ContainerRole::Job,
            image: job.brief.image.clone(),
            resources: resources(job),
            run_folder: self.listeners.folder(&container.name),
            workspace: self.workspaces.path(job.id),
            traceparent: job.brief.traceparent.clone(),
        }
    }

    /// The attempt ended by itself: its container goes first, then the record says so.
    async fn settle(&self, id: JobId, mut death: AttemptFailure) -> Result<(), Undone> {
        let Some(job) = self.store.job(id).await? else { return Ok(()) };
        if let Some(container) = &job.container {
            let said = self.take_logs(&container.name).await;
            // A worker that was killed had nothing to say about it.
            let crashed = death.reason == JobReason::WorkerCrashed;
            if let Some(said) = said.filter(|said| crashed && !said.contains(" INFO ")) {
                death.message = format!("{}; it last said: {said}", death.message);
            }
            self.note_end(&job, container).await?;
            self.engine.remove(&container.name).await?;
            self.listeners.close(&container.name)?;
        }
        self.die(&job, death).await
    }

    async fn cancel(&self, id: JobId) -> Result<(), Undone> {
        self.stop_current(id).await?;
        failpoint::reach("cancel.after_stop");
        let now = self.clock.now();
        self.store.transition(id, now, None, move |job| job.cancelled(now)).await?;
        Ok(())
    }

    async fn expire(&self, id: JobId) -> Result<(), Undone> {
        let Some(job) = self.store.job(id).await? else { return Ok(()) };
        let seconds = job.brief.limits.timeout_seconds;
        let now = self.clock.now();
        // The record first: a report that comes while the worker is being stopped is late.
        let message = format!("it ran for more than limits.timeout_seconds = {seconds}");
        self.store.transition(id, now, None, move |job| job.fail(now, JobReason::WallClock, message)).await?;
        if let Some(container) = &job.container {
            self.engine.stop(&container.name, STOP_GRACE).await?;
            self.remove(&container.name).await?;
        }
        Ok(())
    }

    /// Killed before the record says so: until then it goes on writing.
    async fn evict(&self, id: JobId) -> Result<(), Undone> {
        let Some(job) = self.store.job(id).await? else { return Ok(()) };
        if let Some(container) = &job.container {
            self.engine.kill(&container.name).await?;
            self.note_end(&job, container).await?;
        }
        let now = self.clock.now();
        let message = match self.attempts.over_quota(id) {
            Some(violation) => violation.message,
            None => format!("the workspace holds more than limits.disk_mb = {}", job.brief.limits.disk_mb),
        };
        self.store.transition(id, now, None, move |job| job.fail(now, JobReason::DiskLimit, message)).await?;
        if let Some(container) = &job.container {
            self.remove(&container.name).await?;
        }
        Ok(())
    }

    async fn stop_current(&self, id: JobId) -> Result<(), Undone> {
        let Some(job) = self.store.job(id).await? else { return Ok(()) };
        if let Some(container) = job.container.as_ref().filter(|_| job.attempt > 0) {
            self.engine.stop(&container.name, STOP_GRACE).await?;
            self.note_end(&job, container).await?;
            self.remove(&container.name).await?;
        }
        Ok(())
    }

    async fn remove(&self, container: &str) -> Result<(), Undone> {
        self.take_logs(container).await;
        failpoint::reach("remove.before");
        self.engine.remove(container).await?;
        self.listeners.close(container)?;
        tracing::info!(container, "container removed");
        Ok(())
    }

    /// How long after its job's end a container went, or that it had no business here.
    async fn count_removed(&self, container: &str) -> Result<(), Undone> {
        let name: Option<ContainerName> = container.parse().ok();
        let ended = match name.and_then(|name| name.job_id()) {
            Some(job) => self.store.ended_at(job).await?,
            None => None,
        };
        match ended {
            Some(at) => self.metrics.container_removed((self.clock.now() - at).to_std().unwrap_or_default()),
            None => self.metrics.orphan_removed("container"),
        }
        Ok(())
    }

    async fn die(&self, job: &JobRecord, death: AttemptFailure) -> Result<(), Undone> {
        let now = self.clock.now();
        self.store.transition(job.id, now, None, move |job| job.attempt_failed(now, death)).await?;
        Ok(())
    }

    /// How the container ended, on the job's row for people.
    async fn note_end(&self, job: &JobRecord, container: &ContainerInfo) -> Result<(), Undone> {
        let seen = self.engine.observe(&container.name).await?;
        if let Some(ContainerStatus::Exited { code, oom_killed }) = seen.map(|view| view.status) {
            let container = ContainerInfo { exit_code: Some(code), oom_killed: Some(oom_killed), ..container.clone() };
            self.store.set_container(job.id, job.attempt, &container).await?;
        }
        Ok(())
    }

    /// Keeps what a container printed, beside the database; gives its last line.
    async fn take_logs(&self, container: &str) -> Option<String> {
        let text = self.engine.logs(container, MAX_LOG_BYTES).await.ok()?;
        let last = text.lines().rev().find(|line| !line.trim().is_empty())?;
        let kept =
            fs::create_dir_all(&self.logs).and_then(|()| fs::write(self.logs.join(format!("{container}.log")), &text));
        if let Err(error) = kept {
            tracing::warn!(container, %error, "cannot keep the container's log");
        }
        let end = last.floor_char_boundary(MAX_SHOWN_BYTES);
        Some(last[..end].to_owned())
    }
}

/// How the container of an attempt is known again, from the job's row alone.
fn adoption(job: &JobRecord, container: &ContainerInfo) -> AdoptionSpec {
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

fn internal(message: &str) -> AttemptFailure {
    AttemptFailure { reason: JobReason::Internal, message: message.to_owned(), infrastructure: false }
}

fn not_started(error: &EngineError) -> AttemptFailure {
    let (reason, infrastructure) = match error {
        EngineError::Unreachable(_) | EngineError::Other(_) => (JobReason::EngineError, true),
        EngineError::ImageMissing(_) => (JobReason::ImageMissing, false),
        EngineError::RuntimeMissing(_) => (JobReason::SandboxUnavailable, false),
        EngineError::PostureMismatch { .. } => (JobReason::PostureMismatch, false),
        EngineError::Refused(_) => (JobReason::EngineError, false),
    };
    AttemptFailure { reason, message: error.to_string(), infrastructure }
}
