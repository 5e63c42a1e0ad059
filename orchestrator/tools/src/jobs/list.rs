//! `list_jobs`: the jobs that the caller reaches, newest first.

use agent::{BoxFuture, Invocation, Tool, ToolError, ToolOutput, ToolSpec};
use protocol::JobState;
use serde_json::{Value, json};

use super::access::{JobAccess, failed, text};
use store::ListedJob;

use crate::builtin::{object, spec};

/// Jobs in a list: more than a job can have below it, and a page for a person.
const MAX_ITEMS: u32 = 50;

pub(super) struct ListJobs(pub(super) JobAccess);

impl Tool for ListJobs {
    fn spec(&self) -> ToolSpec {
        let states: Vec<&str> = JobState::ALL.iter().map(|state| state.as_str()).collect();
        let properties =
            json!({"state": {"type": "string", "enum": states, "description": "Only jobs in this state."}});
        let parameters = object(&[], properties);
        ToolSpec {
            is_repeatable: true,
            ..spec("list_jobs", "Lists jobs, newest first. A job lists the jobs below it.", parameters)
        }
    }

    fn call(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let state = JobState::parse(text(&invocation, "state"));
            let scope = self.0.scope(&invocation).await?;
            // One more, to know whether the list is complete.
            let jobs = self.0.store().scoped_jobs(&scope, state, MAX_ITEMS + 1).await;
            let mut jobs = jobs.map_err(|error| failed(&error))?;
            let truncated = jobs.len() > MAX_ITEMS as usize;
            jobs.truncate(MAX_ITEMS as usize);
            let items: Vec<Value> = jobs.iter().map(item).collect();
            Ok(ToolOutput { truncated, ..ToolOutput::success(json!({"items": items})) })
        })
    }
}

fn item(job: &ListedJob) -> Value {
    json!({
        "job_id": job.id,
        "title": job.title,
        "state": job.state,
        "parent_id": job.parent_id,
        "created_at": job.created_at,
    })
}
