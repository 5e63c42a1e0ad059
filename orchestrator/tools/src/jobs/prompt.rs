//! `job_prompt`: a follow-up prompt to a job, from a conversation with a person. Denied to all jobs.

use agent::{ApprovalRequirement, BoxFuture, Invocation, Tool, ToolError, ToolOutput, ToolSpec};
use protocol::{PromptMode, PromptReceipt, PromptRequest, ToolErrorKind};
use serde_json::{Value, json};

use super::access::{JobAccess, failed, job_id_schema, not_found, rate_limited, rejected, text};
use domain::request::check_prompt;
use store::{Lookup, Prompted};

use crate::builtin::{object, spec};

/// When a call may be repeated after too many prompts were waiting.
const FULL_RETRY_SECONDS: u64 = 10;

pub(super) struct JobPrompt(pub(super) JobAccess);

impl Tool for JobPrompt {
    fn spec(&self) -> ToolSpec {
        let modes: Vec<&str> = PromptMode::ALL.iter().map(|mode| mode.as_str()).collect();
        let properties = json!({
            "job_id": job_id_schema(),
            "content": {"type": "string", "minLength": 1, "description": "The prompt."},
            "mode": {"type": "string", "enum": modes, "description": "When the job reads it: steer, before its next step; queue, when it would otherwise end. steer when left out."},
            "done": {"type": "boolean", "description": "Whether this is the last prompt: the job accepts no more; false when left out."}
        });
        let parameters = object(&["job_id", "content"], properties);
        ToolSpec {
            approval: ApprovalRequirement::UnlessAutoApproved,
            ..spec("job_prompt", "Sends a follow-up prompt to a job that has not ended.", parameters)
        }
    }

    fn call(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let job = self.0.find_to_change(&invocation).await?;
            let content = text(&invocation, "content").to_owned();
            check_prompt("content", &content).map_err(|refused| rejected(&refused))?;
            let mode = PromptMode::parse(text(&invocation, "mode")).unwrap_or_default();
            let done = invocation.arguments.get("done").and_then(Value::as_bool).unwrap_or(false);
            let request = PromptRequest { content, mode, done };
            let key = Some(JobAccess::idempotency_key(&invocation));
            let entry = self.0.audit_entry(&invocation, "job.prompt", Some(job.id));
            let now = self.0.submitter.clock.now();
            let prompted = self.0.store().add_prompt(job.id, now, &request, key, Some(&entry)).await;
            outcome(prompted.map_err(|error| failed(&error))?)
        })
    }
}

fn outcome(prompted: Prompted) -> Result<ToolOutput, ToolError> {
    let message = match prompted {
        Prompted::Stored(receipt) => return Ok(sent(receipt)),
        Prompted::Known(Lookup::Replayed { body, .. }) => match serde_json::from_str(&body) {
            Ok(receipt) => return Ok(sent(receipt)),
            Err(_) => "the prompt was sent before".to_owned(),
        },
        Prompted::Known(Lookup::JobDeleted) => "the job was deleted".to_owned(),
        Prompted::Known(Lookup::KeyMismatch) => "this call id was used for another call".to_owned(),
        Prompted::Finished(state) => format!("the job is {state} and accepts no more prompts; create a new job"),
        Prompted::Stopping => "the job is being cancelled and accepts no more prompts".to_owned(),
        Prompted::Closed => "the job accepts no more prompts".to_owned(),
        Prompted::Full => {
            let message = "too many prompts are waiting for this job".to_owned();
            return Err(rate_limited(message, FULL_RETRY_SECONDS));
        }
        Prompted::Missing => return Err(not_found()),
    };
    Err(ToolError::new(ToolErrorKind::Failed, message))
}

fn sent(receipt: PromptReceipt) -> ToolOutput {
    ToolOutput::success(json!({"prompt_id": receipt.prompt_id}))
}
