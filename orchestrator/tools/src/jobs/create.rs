//! `create_job`: a child of the job that calls it, or a job of the person that a thread belongs to.

use std::sync::Arc;

use agent::{ApprovalRequirement, BoxFuture, Invocation, Tool, ToolError, ToolOutput, ToolSpec};
use protocol::{CreateJob, FileMode, Job, JobId, Source, ToolErrorKind, WorkId};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{
    access::{JobAccess, failed, not_found, rate_limited, rejected, text},
    report::{brief, report_if_ended},
    wait::MAX_WAIT,
};
use dispatch::{Submission, SubmitError, Submitted};
use domain::{
    job::{ChildRefused, JobRecord},
    request::{ChildRequest, MAX_FILES, MAX_TITLE_CHARS, MAX_TOOLS, server_of_all},
};

use crate::builtin::{object, spec};

/// When a call may be repeated after the queue was full: jobs take minutes.
const QUEUE_FULL_RETRY_SECONDS: u64 = 30;

pub(super) struct CreateJobTool(pub(super) JobAccess);

impl Tool for CreateJobTool {
    fn spec(&self) -> ToolSpec {
        let limit = |kind: &str| json!({"type": kind, "minimum": 0});
        let limits = json!({
            "type": "object",
            "description": "Limits of the job; those of this job when left out, which are also the highest values.",
            "properties": {
                "timeout_seconds": limit("integer"), "max_iterations": limit("integer"),
                "max_tool_calls": limit("integer"), "max_tokens": limit("integer"), "max_cost_usd": limit("number"),
                "max_children": limit("integer"), "memory_mb": limit("integer"), "cpus": limit("number"),
                "pids": limit("integer"), "disk_mb": limit("integer")
            },
            "additionalProperties": false
        });
        let properties = json!({
            "prompt": {"type": "string", "minLength": 1, "description": "The task. The job sees nothing else of this conversation."},
            "title": {"type": "string", "maxLength": MAX_TITLE_CHARS, "description": "A title for lists."},
            "wait": {"type": "boolean", "description": "Whether to wait for the end, for at most 50 s; false when left out."},
            "limits": limits,
            "tools": {"type": "array", "maxItems": MAX_TOOLS, "items": {"type": "string"}, "description": "The only tools that the job may use; with + before every name, such as +server__tool, the built-in ones and these. server__* is all tools of an MCP server."},
            "files": files_schema(),
            "plan": {"type": "boolean", "description": "Whether the job makes a plan first; as the operator has set when left out."},
            "image": {"type": "string", "description": "One of the operator's images; a job's own jobs have its image."}
        });
        let description = "Creates a job: another agent that works on a task in a sandbox. Returns its id and state; with `wait`, its \
                           result. Use job_status to ask for it later.";
        // The id of a call is the idempotency key of its job.
        ToolSpec {
            approval: ApprovalRequirement::UnlessAutoApproved,
            is_repeatable: true,
            ..spec("create_job", description, object(&["prompt"], properties))
        }
    }

    fn call(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let access = &self.0;
            let until = access.submitter.clock.monotonic() + MAX_WAIT;
            let id = self.create(&invocation).await?;
            let waits = invocation.arguments.get("wait").and_then(Value::as_bool).unwrap_or(false);
            if waits {
                access.wait_for_end(&invocation, id, until).await?;
            }
            let job = access.store().job(id).await.map_err(|error| failed(&error))?.ok_or_else(not_found)?;
            Ok(if waits { report_if_ended(&job) } else { ToolOutput::success(brief(&job, job.state())) })
        })
    }
}

impl CreateJobTool {
    /// Creates the job, or finds the one that an earlier call with this id created.
    async fn create(&self, invocation: &Invocation) -> Result<JobId, ToolError> {
        let JobAccess { submitter, .. } = &self.0;
        let submission = Submission {
            source: Source::Tool,
            key: Some(JobAccess::idempotency_key(invocation)),
            audit: Some(self.0.audit_entry(invocation, "job.create", None)),
            thread: invocation.context.work.thread(),
        };
        let asked = request(invocation)?;
        let submitted = match invocation.context.work {
            WorkId::Job(caller) => {
                let parent = self.0.store().job(caller).await.map_err(|error| failed(&error))?.ok_or_else(not_found)?;
                submitter.submit_child(&with_tools_of(invocation, parent), submission, asked).await
            }
            WorkId::Thread(_) => {
                let ChildRequest { prompt, title, limits, tools, files, plan, image } = asked;
                let request = CreateJob { prompt, title, limits, tools, files, plan, image, ..CreateJob::default() };
                let owner = invocation.context.owner.as_str().to_owned();
                submitter.submit_request(owner, submission, request).await
            }
            WorkId::Run(_) => {
                return Err(ToolError::new(ToolErrorKind::NotAuthorized, "a run of a routine cannot create jobs"));
            }
        };
        match submitted.map_err(refused)? {
            Submitted::Created(job) => Ok(job.id),
            Submitted::Replayed { body, .. } => match serde_json::from_str::<Job>(&body) {
                Ok(job) => Ok(job.id),
                Err(error) => {
                    tracing::error!(%error, "the recorded response to a tool call is no job");
                    Err(ToolError::new(ToolErrorKind::Failed, "the job was created before, and its id is not known"))
                }
            },
        }
    }
}

/// The job with the tools that its call had, by name: a child has none of a server that its parent has not.
fn with_tools_of(invocation: &Invocation, mut job: JobRecord) -> JobRecord {
    let names = |names: &Vec<String>| names.iter().filter(|name| server_of_all(name).is_none()).cloned().collect();
    Arc::make_mut(&mut job.brief).tools = invocation.context.only.as_ref().map(names);
    job
}

/// The schema of the parameter `files`, which are those of a request to the API.
fn files_schema() -> Value {
    let modes = [FileMode::Regular, FileMode::Executable];
    json!({
        "type": "array",
        "maxItems": MAX_FILES,
        "description": "Files that are put into the job's workspace before it starts.",
        "items": {
            "type": "object",
            "properties": {
                "path": {"type": "string", "minLength": 1, "description": "Relative to the workspace."},
                "content": {"type": "string", "description": "The content as text; either this or content_base64."},
                "content_base64": {"type": "string", "description": "The content as base64."},
                "mode": {"type": "string", "enum": modes, "description": "The permissions; 0644 when left out, 0755 for a program."}
            },
            "required": ["path"],
            "additionalProperties": false
        }
    })
}

fn request(invocation: &Invocation) -> Result<ChildRequest, ToolError> {
    Ok(ChildRequest {
        prompt: text(invocation, "prompt").to_owned(),
        title: argument(invocation, "title")?,
        limits: argument(invocation, "limits")?,
        tools: argument(invocation, "tools")?,
        files: argument(invocation, "files")?.unwrap_or_default(),
        plan: argument(invocation, "plan")?,
        image: argument(invocation, "image")?,
    })
}

/// An argument, if it was given.
fn argument<T: DeserializeOwned>(invocation: &Invocation, name: &str) -> Result<Option<T>, ToolError> {
    let given = invocation.arguments.get(name).filter(|value| !value.is_null());
    let read = given.cloned().map(serde_json::from_value).transpose();
    read.map_err(|error| ToolError::new(ToolErrorKind::InvalidParameters, format!("{name}: {error}")))
}

/// The error of a job that was not created; nothing is stored.
fn refused(error: SubmitError) -> ToolError {
    let message = error.to_string();
    let kind = match error {
        SubmitError::Rejected(request) => return rejected(&request),
        SubmitError::Hook(refused) => return refused.into(),
        SubmitError::QueueFull(_) => return rate_limited(message, QUEUE_FULL_RETRY_SECONDS),
        SubmitError::SandboxUnavailable { reason, detail } => {
            return ToolError::new(ToolErrorKind::Sandbox, format!("{}: {detail}", reason.as_str()));
        }
        SubmitError::ChildRefused(ChildRefused::LimitReached(_) | ChildRefused::TooDeep) => {
            ToolErrorKind::NotAuthorized
        }
        SubmitError::KeyReused => {
            let message = "this call id was used for another call";
            return ToolError::new(ToolErrorKind::InvalidParameters, message);
        }
        SubmitError::Unpriced(_) => ToolErrorKind::InvalidParameters,
        SubmitError::JobDeleted => {
            return ToolError::new(ToolErrorKind::Failed, "the job that this call created was deleted");
        }
        SubmitError::ChildRefused(ChildRefused::NotRunning(_))
        | SubmitError::NotRestartable(_)
        | SubmitError::PromptNotKept
        | SubmitError::UserStorageFull(_)
        | SubmitError::RunGone
        | SubmitError::NoDiskSpace(_) => ToolErrorKind::Failed,
        SubmitError::Store(error) => return failed(&error),
        SubmitError::EarlierFilesTooLarge(_)
        | SubmitError::Workspace(_)
        | SubmitError::Unsearched(_)
        | SubmitError::Aborted(_) => {
            tracing::error!(error = &error as &dyn std::error::Error, "a tool could not create a job");
            return ToolError::new(ToolErrorKind::Failed, "the job could not be created; try again");
        }
    };
    ToolError::new(kind, message)
}
