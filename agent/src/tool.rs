//! The interface to tools: what a tool declares, what it returns and how it fails.

use std::{sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use protocol::{ApprovalRequirement, CallId, ToolDefinition, ToolErrorKind, ToolFailure};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::ToolContext;

/// The declaration of a tool.
#[derive(Debug, Clone)]
pub struct ToolSpec {
    /// Name, description, schema and domain, as the model sees them.
    pub definition: ToolDefinition,
    /// Time limit of one call; 60 s unless the tool needs another.
    pub timeout: Duration,
    /// Whether calls of one reply may run beside others; otherwise they run alone, in order.
    pub parallel: bool,
    /// What a call costs at worst, in millionths of a US dollar; 0 for a tool that costs nothing.
    pub estimated_cost_micro_usd: u64,
    /// The approval that its calls need.
    pub approval: ApprovalRequirement,
    /// Whether a call that a crash interrupted may run again with its id, because the tool finds what the call did
    /// before.
    pub is_repeatable: bool,
}

impl ToolSpec {
    /// A tool whose calls may run beside others, cost nothing and need no approval.
    pub const fn new(definition: ToolDefinition, timeout: Duration) -> Self {
        Self {
            definition,
            timeout,
            parallel: true,
            estimated_cost_micro_usd: 0,
            approval: ApprovalRequirement::Never,
            is_repeatable: false,
        }
    }

    /// The definition with everything that another process needs to declare the same tool.
    pub fn to_wire(&self) -> ToolDefinition {
        ToolDefinition {
            parallel: self.parallel,
            timeout_seconds: Some(self.timeout.as_secs()),
            ..self.definition.clone()
        }
    }
}

/// One call, already resolved, allowed, coerced and valid.
#[derive(Debug)]
pub struct Invocation {
    /// The call's id; the same id again is the same call.
    pub call_id: CallId,
    /// Valid against the tool's schema.
    pub arguments: Value,
    /// Who calls, and under which policy.
    pub context: Arc<ToolContext>,
    /// Cancelled on timeout, on cancel and at the job's end; the tool then stops what it started.
    pub stop: CancellationToken,
}

/// A function that a model may call.
pub trait Tool: Send + Sync {
    /// Declares the tool; called once, when it is registered.
    fn spec(&self) -> ToolSpec;

    /// The schema of the arguments that the tool takes, where that is more than it declares: some model providers take one type
    /// for each value only.
    fn accepted_parameters(&self) -> Option<Value> {
        None
    }

    /// The approval that a call with these arguments needs, of a tool where it depends on them.
    fn approval(&self, arguments: &Value) -> Option<ApprovalRequirement> {
        let _ = arguments;
        None
    }

    /// Refuses arguments that a call would refuse in any case, so that no person is asked about it. Waits for nothing.
    fn check(&self, arguments: &Value) -> Result<(), ToolError> {
        let _ = arguments;
        Ok(())
    }

    /// Runs one call. The executor checks the call before it, and caps and cleans its output.
    fn call(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolOutput, ToolError>>;
}

/// The output of a tool: JSON, or plain text that reaches the model unescaped.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolOutput {
    /// A string is plain text; anything else is rendered as JSON.
    pub content: Value,
    /// False where the tool ran and its output reports a failure, such as a non-zero exit code.
    pub success: bool,
    /// Whether the tool cut the content itself.
    pub truncated: bool,
    /// What the call cost, in millionths of a US dollar, where the tool knows it.
    pub cost_micro_usd: Option<u64>,
}

impl ToolOutput {
    /// A complete output of a call that succeeded.
    pub fn success(content: impl Into<Value>) -> Self {
        Self { content: content.into(), success: true, truncated: false, cost_micro_usd: None }
    }

    /// A complete output that reports a failure.
    pub fn failure(content: impl Into<Value>) -> Self {
        Self { content: content.into(), success: false, truncated: false, cost_micro_usd: None }
    }
}

/// Why a call has no output.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {}", .0.kind.as_str(), .0.message)]
pub struct ToolError(pub ToolFailure);

impl ToolError {
    /// An error of this kind, with a message that tells the model what to do.
    pub fn new(kind: ToolErrorKind, message: impl Into<String>) -> Self {
        Self(ToolFailure { kind, message: message.into(), retry_after_seconds: None })
    }
}
