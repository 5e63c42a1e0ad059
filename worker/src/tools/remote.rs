//! Tools of the orchestrator's domain, as the worker's loop calls them: over the socket, named by their call id.
//!
//! Never judges a call: permission, rate and policy are decided where the tool runs.

use std::{sync::Arc, time::Duration};

use agent::{BoxFuture, Invocation, Tool, ToolError, ToolOutput, ToolSpec};
use protocol::{CallId, ToolCallReply, ToolCallRequest, ToolDefinition, ToolErrorKind, ToolFailure};
use serde_json::Value;

use crate::{
    client::{Call, CallError, OrchestratorClient},
    stop::{StopCause, StopSwitch},
};

/// The orchestrator keeps each tool's own limit; this one is for an orchestrator that does not come back.
const REMOTE_TIMEOUT_SECONDS: u64 = 600;
/// Until a call is made again that came too soon, when the refusal does not say.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// One of them.
pub(crate) struct RemoteTool {
    /// As the orchestrator tells it.
    pub(crate) definition: ToolDefinition,
    /// The way there.
    pub(crate) client: Arc<OrchestratorClient>,
    /// Thrown when the attempt turns out to be over.
    pub(crate) stop: StopSwitch,
}

impl Tool for RemoteTool {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            definition: self.definition.clone(),
            timeout: Duration::from_secs(REMOTE_TIMEOUT_SECONDS),
            sensitive: &[],
            parallel: true,
        }
    }

    fn call(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let Invocation { call_id, arguments, .. } = invocation;
            let request = ToolCallRequest { call_id: CallId(call_id), arguments };
            let reply = self.reply(&request).await.map_err(|error| self.failed(&error))?;
            match reply.error {
                Some(failure) => Err(ToolError(failure)),
                None => Ok(ToolOutput { content: reply.output.unwrap_or(Value::Null), success: reply.success }),
            }
        })
    }
}

impl RemoteTool {
    /// Sends the call, again and again while the orchestrator takes no more calls of this job: that is nothing the model can
    /// act on. The tool's own time limit ends it.
    async fn reply(&self, request: &ToolCallRequest) -> Result<ToolCallReply, CallError> {
        loop {
            let call = Call::post(&["tools", &self.definition.name], request)?;
            match self.client.ask(call.timeout(Duration::from_secs(REMOTE_TIMEOUT_SECONDS))).await {
                Err(CallError::Refused(refusal)) if refusal.status == 429 => {
                    tokio::time::sleep(refusal.retry_after.unwrap_or(RETRY_PAUSE)).await;
                }
                answer => return answer,
            }
        }
    }

    fn failed(&self, error: &CallError) -> ToolError {
        match error {
            CallError::Over => self.stop.stop(StopCause::AttemptOver),
            CallError::Lost => self.stop.stop(StopCause::OrchestratorLost),
            CallError::Refused(_) | CallError::Garbled(_) | CallError::Unsendable(_) => {}
        }
        let kind = match error {
            CallError::Refused(refusal) if refusal.status == 404 => ToolErrorKind::NotFound,
            _ => ToolErrorKind::External,
        };
        ToolError(ToolFailure { kind, message: error.to_string(), retry_after_seconds: None })
    }
}
