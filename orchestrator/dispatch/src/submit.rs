//! Creates jobs for every caller: the public API, chats and tools.
//!
//! Owns the order of the steps: idempotency key, hooks, validation, sandbox check, provisional workspace, row, wake.
//! Knows no HTTP type and authorizes no one. Never starts a job: the dispatcher does.

mod egress;
mod error;
mod files;
mod restart;

use std::{future::Future, sync::Arc};

use agent::safety::DelimiterNonce;
use chrono::{DateTime, Utc};
use protocol::{CreateJob, Egress, JobId, Limits, Placement, Source, ThreadId, UserSettings};
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

pub use error::SubmitError;

use super::{DispatcherWaker, Sandbox};
use ::egress::EgressPolicy;
use base::{clock::Clock, failpoint};
use config::HookPoint;
use domain::{
    budget::DayLimits,
    job::{Brief, JobRecord, Parent, Queued, RunLink},
    request::{self, Accepted, Ceiling, ChildRequest},
};
use engine::SandboxReadiness;
use hooks::{HookEvent, Hooks};
use llm::Gateway;
use secrets::LeakDetectors;
use store::{AuditEntry, CreateOutcome, IdempotencyKey, Lookup, Store, StoreError};
use telemetry::traces;
use workspace::{FileWork, RetentionPeriod, UploadRegistry, Workspaces};

/// Creates jobs.
pub struct JobSubmitter {
    /// Stores jobs and idempotency keys.
    pub store: Store,
    /// Whether jobs can run.
    pub sandbox: Arc<Sandbox>,
    pub workspaces: Workspaces,
    /// How long workspaces are kept.
    pub retention: RetentionPeriod,
    /// Reserves disk space for a new job's files.
    pub uploads: UploadRegistry,
    /// Limits file operations.
    pub file_work: FileWork,
    /// The highest values that a request may ask for.
    pub ceiling: Ceiling,
    /// What the operator allows jobs to reach.
    pub egress: Arc<EgressPolicy>,
    /// Asked about prompts.
    pub hooks: Arc<Hooks>,
    /// Knows the prices of models.
    pub gateway: Arc<Gateway>,
    /// Redact titles.
    pub detectors: LeakDetectors,
    /// The daily budget of each user.
    pub day_limits: DayLimits,
    pub clock: Clock,
    pub waker: DispatcherWaker,
    /// Owns submissions in progress.
    pub tasks: TaskTracker,
}

/// How a submission is recorded.
#[derive(Debug, Clone)]
pub struct Submission {
    /// The kind of caller that creates the job.
    pub source: Source,
    /// Within 24 hours, a submission with the same key gets the response to the first one.
    pub key: Option<IdempotencyKey>,
    /// Written in the job's transaction.
    pub audit: Option<AuditEntry>,
    /// The chat thread that the job is made in: its end is posted there.
    pub thread: Option<ThreadId>,
}

/// A validated job that is not stored yet.
#[derive(Debug, Clone)]
pub struct NewJob {
    /// The user who owns the job, and whose share of the file operations is used.
    pub owner: String,
    pub request: CreateJob,
    /// The validated request.
    pub accepted: Accepted,
    /// The job whose files it continues with.
    pub restarted_from: Option<JobId>,
    /// What its agent is told of that job.
    pub note: Option<String>,
    /// The job whose tool creates it.
    pub parent: Option<Parent>,
    /// The run of a routine that it is for.
    pub routine: Option<RunLink>,
    /// A human-readable message, shown while the job is queued.
    pub message: Option<String>,
}

impl NewJob {
    /// A job that no other job and no routine has created.
    pub const fn new(owner: String, request: CreateJob, accepted: Accepted) -> Self {
        Self { owner, request, accepted, restarted_from: None, note: None, parent: None, routine: None, message: None }
    }
}

/// The outcome of a submission.
#[derive(Debug, Clone, PartialEq)]
pub enum Submitted {
    /// The job is stored and queued.
    Created(Box<JobRecord>),
    /// The idempotency key was seen before with the same request; nothing was stored.
    Replayed {
        /// HTTP status of the first response.
        status: u16,
        /// Body of the first response.
        body: String,
    },
}

impl JobSubmitter {
    /// Validates a request and creates the job.
    pub async fn submit_request(
        self: &Arc<Self>,
        owner: String,
        submission: Submission,
        mut request: CreateJob,
    ) -> Result<Submitted, SubmitError> {
        // Before validation: the ceiling may have changed since the first response.
        if let Some(replayed) = self.replay(submission.key.as_ref()).await? {
            return Ok(replayed);
        }
        // Other sources give what a model or the operator wrote, or were asked about already.
        if matches!(submission.source, Source::Api | Source::Cli) {
            self.ask_about_prompt(&owner, None, &mut request.prompt).await?;
        }
        self.add_preferences(&owner, &mut request).await?;
        let (request, accepted) = self.check(request).await?;
        self.submit_validated(NewJob::new(owner, request, accepted), submission).await
    }

    /// Validates a request of `parent` for a child job and creates it, for the parent's owner. Whether the parent may
    /// have another child is decided in the transaction that stores it.
    pub async fn submit_child(
        self: &Arc<Self>,
        parent: &JobRecord,
        submission: Submission,
        request: ChildRequest,
    ) -> Result<Submitted, SubmitError> {
        if let Some(replayed) = self.replay(submission.key.as_ref()).await? {
            return Ok(replayed);
        }
        let trees = self.store.job_trees(parent.id).await?;
        // Before the request is validated, so that the answer names the limit and not a field that depends on it.
        parent.check_child(&trees).map_err(SubmitError::ChildRefused)?;
        let (mut request, accepted) = request::check_child(request, parent, &trees, &self.ceiling)?;
        // The hosts that the parent's presets had, not those that they have now.
        let allow = parent.brief.egress_view().allow;
        let of_parent = parent.brief.egress.clone().map(|egress| Egress { allow, hosts: None, ..egress });
        request.egress = egress::restrict(of_parent.as_ref(), &self.egress).0;
        let job = NewJob {
            parent: Some(parent.as_parent()),
            routine: parent.brief.routine,
            ..NewJob::new(parent.brief.user_id.clone(), request, accepted)
        };
        self.submit_validated(job, submission).await
    }

    /// Where a request names none: the model in a user's settings, if jobs may name it, and how much it thinks.
    pub(super) async fn add_preferences(&self, user: &str, request: &mut CreateJob) -> Result<(), SubmitError> {
        let UserSettings { model, effort, .. } = self.store.settings(user).await?;
        if request.model.is_none() {
            request.model = model.filter(|model| self.ceiling.models.contains(model));
        }
        request.effort = request.effort.or(effort);
        Ok(())
    }

    /// Validates a request. Inline files are decoded on a blocking thread: they may have 16 MiB.
    pub(super) async fn check(self: &Arc<Self>, mut request: CreateJob) -> Result<(CreateJob, Accepted), SubmitError> {
        let has_files = !request.files.is_empty();
        let submitter = Arc::clone(self);
        let check = move || {
            let of_egress = egress::check(request.egress.as_ref(), &submitter.egress);
            let (accepted, hosts) = egress::merge(request::check(&request, &submitter.ceiling), of_egress)?;
            if let Some(egress) = &mut request.egress {
                egress.hosts = hosts;
            }
            Ok((request, accepted))
        };
        if has_files { tokio::task::spawn_blocking(check).await? } else { check() }
    }

    /// Asks the hooks about a person's prompt to a job of `owner`, and puts in their changes. It is to be validated
    /// afterwards.
    pub async fn ask_about_prompt(
        &self,
        owner: &str,
        job: Option<JobId>,
        prompt: &mut String,
    ) -> Result<(), SubmitError> {
        let event = HookEvent { work: job.map(Into::into), ..HookEvent::new(HookPoint::InboundMessage, owner) };
        if let Some(changed) = self.hooks.ask_about_text(&event, prompt).await? {
            *prompt = changed;
        }
        Ok(())
    }

    /// The response to an earlier submission with this key, if there was one.
    pub async fn replay(&self, key: Option<&IdempotencyKey>) -> Result<Option<Submitted>, SubmitError> {
        let Some(key) = key else { return Ok(None) };
        match self.store.idempotency(key, self.clock.now()).await? {
            Some(lookup) => replayed(CreateOutcome::Known(lookup)),
            None => Ok(None),
        }
    }

    /// Creates a validated job.
    pub(crate) async fn submit_validated(
        self: &Arc<Self>,
        job: NewJob,
        submission: Submission,
    ) -> Result<Submitted, SubmitError> {
        let Submission { source, key, audit, thread } = submission;
        let commit = move |store: Store, record| async move {
            match thread {
                Some(thread) => store.create_chat_job(thread, record, key, audit.as_ref()).await,
                None => store.create_job(record, key, audit.as_ref()).await,
            }
        };
        self.submit_with_commit(job, source, commit).await
    }

    /// Creates a validated job whose row `commit` stores, in a transaction that may write more than the row. Runs to
    /// its end even if the caller goes away, so that no workspace stays without a job.
    pub(crate) async fn submit_with_commit<C, F>(
        self: &Arc<Self>,
        job: NewJob,
        source: Source,
        commit: C,
    ) -> Result<Submitted, SubmitError>
    where
        C: FnOnce(Store, JobRecord) -> F + Send + 'static,
        F: Future<Output = Result<CreateOutcome, StoreError>> + Send + 'static,
    {
        self.check_price(&job.accepted.model, &job.accepted.limits)?;
        let submitter = Arc::clone(self);
        let run = async move { submitter.create_job(job, source, commit).await };
        self.tasks.spawn(run.in_current_span()).await?
    }

    /// Refuses a job whose cost limit, or its user's of the day, could not be enforced.
    pub fn check_price(&self, model: &str, limits: &Limits) -> Result<(), SubmitError> {
        if limits.max_cost_usd <= 0.0 && self.day_limits.max_micro_usd == 0 {
            return Ok(());
        }
        Ok(self.gateway.check_price(model)?)
    }

    async fn create_job<C, F>(&self, mut job: NewJob, source: Source, commit: C) -> Result<Submitted, SubmitError>
    where
        C: FnOnce(Store, JobRecord) -> F + Send,
        F: Future<Output = Result<CreateOutcome, StoreError>> + Send,
    {
        let placement = self.placement(&job.request, source).await?;
        // Lists, notifications and their events show it.
        let detector = self.detectors.of(&job.owner).await?;
        job.accepted.title = detector.redact(&job.accepted.title).0.into_owned();
        let id = JobId::generate();
        if placement == Placement::Container
            && let Err(error) = self.create_workspace(id, &mut job).await
        {
            self.discard_workspace(id).await;
            return Err(error);
        }
        let record = record(JobOrigin { id, at: self.clock.now(), source, placement }, job);
        failpoint::reach("create.before_row");
        let committed = commit(self.store.clone(), record.clone()).await;
        let is_not_stored = match &committed {
            Ok(outcome) => *outcome != CreateOutcome::Created,
            // If the row may be there, the mark stays, and the sweep decides by the row.
            Err(error) => !error.may_be_committed(),
        };
        if is_not_stored {
            self.discard_workspace(id).await;
        }
        if let Some(replayed) = replayed(committed?)? {
            return Ok(replayed);
        }
        failpoint::reach("create.after_row");
        self.workspaces.confirm_provisional(id);
        self.waker.wake();
        tracing::info!(job.id = %id, user = record.brief.user_id, "job created");
        Ok(Submitted::Created(Box::new(record)))
    }

    /// Where a job runs, unless it can run nowhere.
    async fn placement(&self, request: &CreateJob, source: Source) -> Result<Placement, SubmitError> {
        if self.sandbox.is_disabled() && allows_host(source) {
            request::check_without_container(request)?;
            return Ok(Placement::Host);
        }
        match self.sandbox.state().await {
            SandboxReadiness::Ready(_) => Ok(Placement::Container),
            SandboxReadiness::NotReady { reason, detail } => Err(SubmitError::SandboxUnavailable { reason, detail }),
        }
    }
}

/// Whether the orchestrator runs a job of this source itself, with its own tools only, where the operator disabled the
/// sandbox. A client of the API is refused then.
const fn allows_host(source: Source) -> bool {
    match source {
        Source::Routine | Source::Tool | Source::Chat => true,
        Source::Api | Source::Cli => false,
    }
}

/// The answer to a submission that stored nothing; none for one that created its job.
fn replayed(outcome: CreateOutcome) -> Result<Option<Submitted>, SubmitError> {
    match outcome {
        CreateOutcome::Created => Ok(None),
        CreateOutcome::Known(Lookup::Replayed { status, body }) => Ok(Some(Submitted::Replayed { status, body })),
        CreateOutcome::Known(Lookup::KeyMismatch) => Err(SubmitError::KeyReused),
        CreateOutcome::Known(Lookup::JobDeleted) => Err(SubmitError::JobDeleted),
        CreateOutcome::QueueFull(full) => Err(SubmitError::QueueFull(full)),
        CreateOutcome::ChildRefused(refused) => Err(SubmitError::ChildRefused(refused)),
        CreateOutcome::RunGone => Err(SubmitError::RunGone),
    }
}

/// What a new job's record has besides its request.
#[derive(Clone, Copy)]
struct JobOrigin {
    id: JobId,
    at: DateTime<Utc>,
    source: Source,
    placement: Placement,
}

fn record(origin: JobOrigin, job: NewJob) -> JobRecord {
    let JobOrigin { id, at, source, placement } = origin;
    let NewJob { owner, request, accepted, restarted_from, note, parent, routine, message } = job;
    let brief = Brief {
        user_id: owner,
        title: accepted.title,
        prompt: request.prompt,
        note,
        mode: request.mode.unwrap_or_default(),
        placement,
        priority: request.priority,
        labels: request.labels,
        metadata: request.metadata,
        limits: accepted.limits,
        tools: request.tools,
        approve: request.approve,
        egress: request.egress,
        delimiter_nonce: Some(DelimiterNonce::generate()),
        image: accepted.image,
        model: accepted.model,
        effort: request.effort,
        plan: accepted.plan,
        review: request.review,
        source,
        routine,
        restarted_from,
        parent_id: parent.map(|parent| parent.id),
        depth: parent.map_or(0, |parent| parent.depth + 1),
        created_at: at,
        traceparent: traces::current_traceparent(),
    };
    let message = message.or_else(|| request.hold.then(|| JobRecord::HELD.to_owned()));
    JobRecord::new(id, brief, Queued { held: request.hold, message, ..Queued::default() })
}

#[cfg(test)]
pub(crate) mod tests;
