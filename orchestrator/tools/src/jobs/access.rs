//! Shared by the job tools: what they work with, which jobs a caller reaches, and errors that tell the model what to
//! do.

use std::sync::Arc;

use agent::{Invocation, Tool, ToolError, elide};
use protocol::{JobId, ToolErrorKind, ToolFailure, WorkId};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{
    cancel::CancelJob, create::CreateJobTool, events::JobEvents, list::ListJobs, prompt::JobPrompt, status::JobStatus,
};
use base::digest::sha256_hex;
use dispatch::{AttemptRegistry, JobSubmitter};
use domain::{
    id_part::{MIN_ID_DIGITS, id_digits},
    job::JobRecord,
    request::Rejected,
};
use store::{AuditEntry, IdempotencyKey, JobScope, ListedJob, Store, StoreError};

/// The job tools that jobs can be allowed to use. `job_prompt` is denied to all of them.
pub(crate) const NAMES_FOR_JOBS: [&str; 5] = ["cancel_job", "create_job", "job_events", "job_status", "list_jobs"];

/// Jobs that the error about an ambiguous part of an id lists.
const MAX_CANDIDATES: u32 = 10;
const MAX_TITLE_BYTES: usize = 60;
/// The last digits of an id, which the tables of the command line show.
const SHORT_DIGITS: usize = 8;
/// Jobs among which the beginning of these digits is looked for.
const NEWEST: u32 = 200;

/// What the job tools work with.
#[derive(Clone)]
pub struct JobAccess {
    /// Creates jobs. The tools use its store, clock and waker as well.
    pub submitter: Arc<JobSubmitter>,
    /// Live attempts: a job whose call waits for a child lends its slot.
    pub attempts: Arc<AttemptRegistry>,
    /// Cancelled when the process drains: calls stop waiting.
    pub drain: CancellationToken,
}

pub(crate) fn job_tools(access: &JobAccess) -> [Box<dyn Tool>; 6] {
    let access = || access.clone();
    [
        Box::new(CreateJobTool(access())),
        Box::new(ListJobs(access())),
        Box::new(JobStatus(access())),
        Box::new(JobEvents(access())),
        Box::new(CancelJob(access())),
        Box::new(JobPrompt(access())),
    ]
}

impl JobAccess {
    pub(super) fn store(&self) -> &Store {
        &self.submitter.store
    }

    /// The jobs that a caller may read: a job those below it, a thread all of its user, and a run those of its routine, or all
    /// of its user where nothing from outside is in what it reads.
    pub(super) async fn scope(&self, invocation: &Invocation) -> Result<JobScope, ToolError> {
        match invocation.context.work {
            WorkId::Job(job) => Ok(JobScope::Below(job)),
            WorkId::Thread(_) => Ok(JobScope::OfUser(invocation.context.owner.as_str().to_owned())),
            WorkId::Run(run) => self.store().jobs_for_run(run).await.map_err(|error| failed(&error)),
        }
    }

    /// The job that the argument `job_id` names, if the caller may change it. A run changes none.
    pub(super) async fn find_to_change(&self, invocation: &Invocation) -> Result<JobRecord, ToolError> {
        match invocation.context.work {
            WorkId::Run(_) => Err(not_found()),
            WorkId::Job(_) | WorkId::Thread(_) => self.find(invocation).await,
        }
    }

    /// The job that the argument `job_id` names, if the caller may read it: by its id, or by the beginning or end of one.
    /// Another job, a missing one and a malformed id are the same error.
    pub(super) async fn find(&self, invocation: &Invocation) -> Result<JobRecord, ToolError> {
        let named = text(invocation, "job_id").trim();
        let scope = self.scope(invocation).await?;
        let id: JobId = match named.parse() {
            Ok(id) => id,
            Err(_) => self.find_part(&scope, named).await?,
        };
        let is_reached = match scope {
            JobScope::Below(above) => self.store().is_below(id, above).await,
            JobScope::OfRoutine(routine) => self.store().is_of_routine(id, routine).await,
            JobScope::OfUser(_) => Ok(true),
        };
        if !is_reached.map_err(|error| failed(&error))? {
            return Err(not_found());
        }
        let job = self.store().job(id).await.map_err(|error| failed(&error))?;
        job.filter(|job| job.brief.user_id == invocation.context.owner.as_str()).ok_or_else(not_found)
    }

    /// The only job of a scope whose id begins or ends with these characters.
    async fn find_part(&self, scope: &JobScope, part: &str) -> Result<JobId, ToolError> {
        let digits = id_digits(part).ok_or_else(not_found)?;
        let found = self.store().scoped_jobs_by_id_part(scope, &digits, MAX_CANDIDATES + 1).await;
        let mut found = found.map_err(|error| failed(&error))?;
        if found.is_empty() && digits.len() < SHORT_DIGITS {
            found = self.store().scoped_jobs(scope, None, NEWEST).await.map_err(|error| failed(&error))?;
            found.retain(|job| short_id(job.id).starts_with(&digits));
        }
        match found.as_slice() {
            [job] => Ok(job.id),
            [] => Err(not_found()),
            several => Err(ambiguous(&digits, several)),
        }
    }

    /// The call's id as an idempotency key: a repeated call does not have its effect twice. The id is unique for its
    /// job, thread or run.
    pub(super) fn idempotency_key(invocation: &Invocation) -> IdempotencyKey {
        let work = invocation.context.work;
        IdempotencyKey {
            user: invocation.context.owner.as_str().to_owned(),
            key: format!("tool call {} of {} {}", invocation.call_id.as_str(), work.kind(), work.as_uuid()),
            digest: sha256_hex(invocation.arguments.to_string().as_bytes()),
        }
    }

    /// The audit entry of a call that changes `job`, or creates one.
    pub(super) fn audit_entry(&self, invocation: &Invocation, action: &str, job: Option<JobId>) -> AuditEntry {
        AuditEntry::by_agent(action, invocation.context.owner.as_str(), job, self.submitter.clock.now())
    }
}

/// An argument that is a string; empty if it was left out.
pub(super) fn text<'a>(invocation: &'a Invocation, name: &str) -> &'a str {
    invocation.arguments.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// The schema of the parameter `job_id`.
pub(super) fn job_id_schema() -> Value {
    let description = format!("The job's id, or at least {MIN_ID_DIGITS} characters of its beginning or end.");
    serde_json::json!({"type": "string", "description": description})
}

fn short_id(id: JobId) -> String {
    let mut id = id.to_string();
    id.split_off(id.len().saturating_sub(SHORT_DIGITS))
}

/// The error for a part of an id that several jobs have.
fn ambiguous(digits: &str, candidates: &[ListedJob]) -> ToolError {
    let line = |job: &ListedJob| format!("\n{} {}", job.id, elide(&job.title, MAX_TITLE_BYTES));
    let listed: String = candidates.iter().take(MAX_CANDIDATES as usize).map(line).collect();
    let more = if candidates.len() > MAX_CANDIDATES as usize { "\n…" } else { "" };
    let message = format!("{digits} matches several jobs; give more characters:{listed}{more}");
    ToolError::new(ToolErrorKind::InvalidParameters, message)
}

pub(super) fn not_found() -> ToolError {
    ToolError::new(ToolErrorKind::NotFound, "no such job; list_jobs lists the jobs that can be named here")
}

/// The error for an invalid request, field by field.
pub(super) fn rejected(rejected: &Rejected) -> ToolError {
    ToolError::new(ToolErrorKind::InvalidParameters, rejected.to_string())
}

pub(super) fn rate_limited(message: String, retry_after_seconds: u64) -> ToolError {
    let retry_after_seconds = Some(retry_after_seconds);
    ToolError(ToolFailure { kind: ToolErrorKind::RateLimited, message, retry_after_seconds })
}

/// The store failed: logged here, because the model reads no cause.
pub(super) fn failed(error: &StoreError) -> ToolError {
    if let StoreError::UserStorageFull(storage) = error {
        return ToolError::new(ToolErrorKind::Failed, storage.to_string());
    }
    tracing::error!(error = error as &dyn std::error::Error, "a job tool could not read or write jobs");
    ToolError::new(ToolErrorKind::Failed, "jobs are not available now; try again")
}
