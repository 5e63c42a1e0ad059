//! Orchestrator-domain tools, called over the socket and identified by their call id.
//!
//! Never authorizes a call: permission, rate and policy are checked in the orchestrator.

use std::{sync::Arc, time::Duration};

use agent::{BoxFuture, Invocation, Tool, ToolError, ToolOutput, ToolSpec};
use protocol::{ToolCallReply, ToolCallRequest, ToolDefinition, ToolErrorKind, ToolFailure};
use serde_json::Value;

use crate::client::{Call, CallError, OrchestratorClient};

/// Timeout of a tool that declares none. Older orchestrators send none.
const DEFAULT_TIMEOUT_SECONDS: u64 = 600;
/// The orchestrator applies each tool's own timeout. The worker waits this much longer, for a response in transit and
/// for retries after 429.
const RESPONSE_MARGIN_SECONDS: u64 = 60;
/// Retry delay after a 429 without Retry-After.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// A tool that runs in the orchestrator.
pub(crate) struct RemoteTool {
    /// The definition that the orchestrator sent.
    pub(crate) definition: ToolDefinition,
    /// Sends the calls.
    pub(crate) client: Arc<OrchestratorClient>,
}

impl Tool for RemoteTool {
    fn spec(&self) -> ToolSpec {
        let definition = ToolDefinition { timeout_seconds: None, ..self.definition.clone() };
        ToolSpec { parallel: self.definition.parallel, ..ToolSpec::new(definition, self.timeout()) }
    }

    fn call(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let Invocation { call_id, arguments, .. } = invocation;
            let request = ToolCallRequest { call_id, arguments };
            let reply = self.reply(&request).await.map_err(|error| failed(&error))?;
            if let Some(failure) = reply.error {
                return Err(ToolError(failure));
            }
            let content = reply.output.unwrap_or(Value::Null);
            Ok(ToolOutput { content, success: reply.success, truncated: reply.truncated, cost_micro_usd: None })
        })
    }
}

impl RemoteTool {
    /// The tool's own timeout, which the orchestrator applies, plus [`RESPONSE_MARGIN_SECONDS`].
    fn timeout(&self) -> Duration {
        let own = self.definition.timeout_seconds.unwrap_or(DEFAULT_TIMEOUT_SECONDS);
        Duration::from_secs(own.saturating_add(RESPONSE_MARGIN_SECONDS))
    }

    /// Sends the call, and retries while the orchestrator responds with 429, which a model cannot act on. Bounded by
    /// the tool's timeout.
    async fn reply(&self, request: &ToolCallRequest) -> Result<ToolCallReply, CallError> {
        loop {
            let call = Call::post(&["tools", &self.definition.name], request)?;
            match self.client.ask(call.timeout(self.timeout())).await {
                Err(CallError::Refused(refusal)) if refusal.status == 429 => {
                    tokio::time::sleep(refusal.retry_after.unwrap_or(RETRY_DELAY)).await;
                }
                answer => return answer,
            }
        }
    }
}

fn failed(error: &CallError) -> ToolError {
    let kind = match error {
        CallError::Refused(refusal) if refusal.status == 404 => ToolErrorKind::NotFound,
        _ => ToolErrorKind::External,
    };
    ToolError(ToolFailure { kind, message: error.to_string(), retry_after_seconds: None })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use protocol::{JobId, ToolDomain};
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::{
        client::Identity,
        session::{secret::SessionSecret, stop::StopSwitch},
    };

    #[rstest]
    #[case::alone(false, Some(5), 65)]
    #[case::parallel(true, Some(5), 65)]
    #[case::no_timeout(true, None, 660)]
    fn a_remote_tool_is_declared_as_the_orchestrator_declares_it(
        #[case] parallel: bool,
        #[case] timeout_seconds: Option<u64>,
        #[case] expected_seconds: u64,
    ) {
        let session = SessionSecret::generate().unwrap();
        let identity = Identity { job_id: JobId::nil(), token: "token", session: &session, traceparent: None };
        let client = OrchestratorClient::new(Path::new("/nonexistent"), &identity, StopSwitch::default()).unwrap();
        let declared = ToolDefinition {
            parallel,
            timeout_seconds,
            ..ToolDefinition::new("remote", "d", json!({"type": "object"}), ToolDomain::Orchestrator)
        };
        let spec = RemoteTool { definition: declared, client: Arc::new(client) }.spec();
        assert_eq!((spec.parallel, spec.timeout), (parallel, Duration::from_secs(expected_seconds)));
        assert_eq!(spec.definition.timeout_seconds, None, "the model does not need it");
    }
}
