//! The seam to tools: what a tool is, what it gives, how it fails, and who may call it.

use std::{future::Future, pin::Pin, time::Duration};

use protocol::{JobId, ToolDefinition, ToolErrorKind, ToolFailure};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

/// Tools are kept in lists, so their futures are boxed.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What a tool says of itself.
#[derive(Debug, Clone)]
pub struct ToolSpec {
    /// Name, description, schema and domain, as the model sees them.
    pub definition: ToolDefinition,
    /// How long one call may take; 60 s unless the tool needs otherwise.
    pub timeout: Duration,
    /// Top-level parameters that never reach a log, an event or the audit.
    pub sensitive: &'static [&'static str],
    /// False when calls of one reply must not run beside others (they run alone, in order).
    pub parallel: bool,
}

/// One call, already resolved, allowed, coerced and valid.
#[derive(Debug)]
pub struct Invocation {
    /// Names the call; the same id again is the same call.
    pub call_id: String,
    /// Valid against the tool's schema.
    pub arguments: Value,
    /// On whose behalf.
    pub caller: CallerId,
    /// Fires on timeout, cancel and the job's end; the tool stops what it started.
    pub stop: CancellationToken,
}

/// On whose behalf a tool is called. Empty where the process serves one job alone (a worker).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CallerId {
    /// The job.
    pub job: Option<JobId>,
}

/// Something a model may call.
pub trait Tool: Send + Sync {
    /// What it is; asked once, when it is registered.
    fn spec(&self) -> ToolSpec;

    /// Whether a person must agree to this call.
    fn approval(&self, arguments: &Value) -> ApprovalRequirement {
        let _ = arguments;
        ApprovalRequirement::Never
    }

    /// Does it. The guarded path has checked everything before and caps, cleans and records after.
    fn call(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolOutput, ToolError>>;
}

/// What a tool gives: JSON, or plain text that reaches the model unescaped.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolOutput {
    /// A string is plain text; anything else is shown as JSON.
    pub content: Value,
    /// False for a result that the model should read as a failure though the tool ran (a shell's non-zero exit).
    pub success: bool,
}

/// Why a tool gave nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {}", .0.kind.as_str(), .0.message)]
pub struct ToolError(pub ToolFailure);

impl ToolError {
    /// Of this kind, with a message that says what to do.
    pub fn new(kind: ToolErrorKind, message: impl Into<String>) -> Self {
        Self(ToolFailure { kind, message: message.into(), retry_after_seconds: None })
    }
}

/// Whether a person must agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ApprovalRequirement {
    /// Runs.
    Never,
    /// In chat a gate unless always-allowed; autonomous it runs.
    UnlessAutoApproved,
    /// In chat a gate every time; autonomous only if the context names the tool.
    Always,
}

/// Who is there to agree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ApprovalContext {
    /// Nobody: a job, a routine, a worker. Carries the tools that `always` lets through by name.
    Autonomous {
        /// Tool names.
        allow: Vec<String>,
    },
    /// No context: everything but `never` needs a person.
    Unattended,
}
