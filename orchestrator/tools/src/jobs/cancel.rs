//! `cancel_job`: requests that a job stops.

use agent::{ApprovalRequirement, BoxFuture, Invocation, Tool, ToolError, ToolOutput, ToolSpec};
use protocol::{JobState, ToolErrorKind, WorkId};
use serde_json::json;

use super::{
    access::{JobAccess, failed, job_id_schema, not_found},
    report::brief,
};
use store::Transition;

use crate::builtin::{object, spec};

pub(super) struct CancelJob(pub(super) JobAccess);

impl Tool for CancelJob {
    fn spec(&self) -> ToolSpec {
        let parameters = object(&["job_id"], json!({"job_id": job_id_schema()}));
        ToolSpec {
            approval: ApprovalRequirement::UnlessAutoApproved,
            is_repeatable: true,
            ..spec("cancel_job", "Cancels a job. One that runs is stopped within seconds.", parameters)
        }
    }

    fn call(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let job = self.0.find_to_change(&invocation).await?;
            if job.state() == JobState::Cancelled {
                return Ok(ToolOutput::success(brief(&job, job.state())));
            }
            let now = self.0.submitter.clock.now();
            let entry = self.0.audit_entry(&invocation, "job.cancel", Some(job.id));
            let by_job = matches!(invocation.context.work, WorkId::Job(_));
            let cancel = self.0.store().transition(job.id, now, Some(&entry), move |job| {
                if by_job { job.cancel_by_ancestor(now) } else { job.request_cancel(now, None) }
            });
            match cancel.await.map_err(|error| failed(&error))? {
                Transition::Applied(job) => {
                    self.0.submitter.waker.wake();
                    tracing::info!(job.id = %job.id, user = job.brief.user_id, "cancel requested by a tool call");
                    let mut content = brief(&job, job.state());
                    content["cancel_requested"] = json!(true);
                    Ok(ToolOutput::success(content))
                }
                // Cancelled by another request since it was read.
                Transition::Refused(refused) if refused.state == JobState::Cancelled => {
                    Ok(ToolOutput::success(brief(&job, refused.state)))
                }
                Transition::Refused(refused) => {
                    Err(ToolError::new(ToolErrorKind::Failed, format!("the job is already {}", refused.state)))
                }
                Transition::NotFound => Err(not_found()),
            }
        })
    }
}
