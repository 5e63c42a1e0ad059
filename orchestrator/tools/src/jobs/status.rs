//! `job_status`: the state, result and usage of a job.

use agent::{BoxFuture, Invocation, Tool, ToolError, ToolOutput, ToolSpec};
use serde_json::{Value, json};

use super::{
    access::{JobAccess, failed, job_id_schema, not_found},
    report::report,
    wait::MAX_WAIT,
};
use crate::builtin::{object, spec};

pub(super) struct JobStatus(pub(super) JobAccess);

impl Tool for JobStatus {
    fn spec(&self) -> ToolSpec {
        let properties = json!({
            "job_id": job_id_schema(),
            "wait": {"type": "boolean", "description": "Whether to wait for the end, for at most 50 s; false when left out."}
        });
        let parameters = object(&["job_id"], properties);
        ToolSpec { is_repeatable: true, ..spec("job_status", "Returns a job's state, result and usage.", parameters) }
    }

    fn call(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let until = self.0.submitter.clock.monotonic() + MAX_WAIT;
            let mut job = self.0.find(&invocation).await?;
            if invocation.arguments.get("wait").and_then(Value::as_bool).unwrap_or(false) {
                self.0.wait_for_end(&invocation, job.id, until).await?;
                let found = self.0.store().job(job.id).await.map_err(|error| failed(&error))?;
                job = found.ok_or_else(not_found)?;
            }
            Ok(report(&job))
        })
    }
}
