//! One tool call: admitted or rejected, run with a time limit, and its result.
//!
//! Owns what a result looks like to the model. Never checks a call: the executor did.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use protocol::{CallId, ToolCallReply, ToolErrorKind, ToolFailure};
use serde_json::Value;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::{context::ToolContext, output, registry::RegisteredTool};
use crate::{Invocation, ToolError, ToolOutput};

/// Time for a tool that was told to stop to clean up, before its future is dropped.
pub(super) const STOP_GRACE: Duration = Duration::from_secs(1);

/// The decision about a call before it runs.
#[derive(Debug)]
pub enum Admission {
    /// Every check passed.
    Admitted(Admitted),
    /// A person is asked before it runs.
    NeedsApproval(NeedsApproval),
    /// A check failed.
    Rejected(Rejected),
}

/// A call that passed every check: resolved, coerced, valid and allowed.
#[derive(Debug)]
pub struct Admitted {
    pub(super) tool: Arc<RegisteredTool>,
    pub(super) context: Arc<ToolContext>,
    pub(super) call_id: CallId,
    pub(super) arguments: Value,
}

/// A call that waits for a person.
#[derive(Debug)]
pub struct NeedsApproval {
    pub(super) redacted_input: Value,
    pub(super) arguments: Value,
    pub(super) can_be_remembered: bool,
}

/// A call that is not run.
#[derive(Debug)]
pub struct Rejected {
    redacted_input: Value,
    result: CallResult,
}

/// The end of a call.
#[derive(Debug, Clone, PartialEq)]
pub struct CallResult {
    /// How it ended.
    pub outcome: CallOutcome,
    /// The text that the model reads; on an error, `error (<kind>): <message>`.
    pub output: String,
    /// Whether output was cut.
    pub truncated: bool,
    /// How long the tool ran; zero for a call that was rejected.
    pub duration: Duration,
}

/// How a call ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallOutcome {
    /// The tool ran and succeeded.
    Succeeded,
    /// The tool ran and its output reports a failure, such as a non-zero exit code.
    Failed,
    /// There is no output: the call was rejected, timed out, stopped or failed.
    Error(ToolFailure),
}

impl Admission {
    /// The arguments with sensitive parameters redacted, for events and audit.
    pub fn redacted_input(&self) -> Value {
        match self {
            Self::Admitted(call) => call.redacted_input(),
            Self::NeedsApproval(call) => call.redacted_input.clone(),
            Self::Rejected(call) => call.redacted_input.clone(),
        }
    }

    /// Whether the call must not run beside other calls.
    pub fn runs_alone(&self) -> bool {
        match self {
            Self::Admitted(call) => !call.tool.spec().parallel,
            Self::NeedsApproval(_) => true,
            Self::Rejected(_) => false,
        }
    }

    /// The same call, rejected for this reason whatever the checks said.
    #[must_use]
    pub fn reject(self, error: ToolError) -> Self {
        Self::Rejected(Rejected::new(self.redacted_input(), error))
    }

    /// The result of a rejected call, or the run of an admitted one. A call that needs approval is rejected.
    pub async fn finish(self, stop: &CancellationToken) -> CallResult {
        match self {
            Self::Admitted(call) => call.run(stop).await,
            Self::NeedsApproval(call) => {
                let error = ToolError::new(ToolErrorKind::NotAuthorized, "not run: a person would have to approve it");
                Rejected::new(call.redacted_input, error).into_result()
            }
            Self::Rejected(call) => call.into_result(),
        }
    }
}

impl NeedsApproval {
    /// The arguments with sensitive parameters redacted.
    pub const fn redacted_input(&self) -> &Value {
        &self.redacted_input
    }

    /// Exactly the arguments that run if the call is approved.
    pub const fn arguments(&self) -> &Value {
        &self.arguments
    }

    /// Whether the answer "always" can be remembered.
    pub const fn can_be_remembered(&self) -> bool {
        self.can_be_remembered
    }
}

impl Admitted {
    /// The arguments with sensitive parameters redacted, for events and audit.
    pub fn redacted_input(&self) -> Value {
        self.tool.redact(&self.arguments)
    }

    /// Runs the tool within its time limit. A panic, a timeout and a stop are results, too.
    pub async fn run(self, stop: &CancellationToken) -> CallResult {
        let span = tracing::info_span!("tool.call", tool.name = self.tool.name(), duration_ms = tracing::field::Empty);
        let began = Instant::now();
        let result = self.execute(stop).instrument(span.clone()).await;
        let duration = began.elapsed();
        span.record("duration_ms", u64::try_from(duration.as_millis()).unwrap_or(u64::MAX));
        let result = match result {
            Ok(output) => CallResult::of_output(&output),
            Err(error) => CallResult::of_error(error),
        };
        CallResult { duration, ..result }
    }

    async fn execute(self, stop: &CancellationToken) -> Result<ToolOutput, ToolError> {
        let Self { tool, context, call_id, arguments } = self;
        let tool_stop = stop.child_token();
        let invocation = Invocation { call_id, arguments, context, stop: tool_stop.clone() };
        // The call is made inside the async block, so that a panic before the first await is caught as well.
        let work = AssertUnwindSafe(async { tool.tool().call(invocation).await }).catch_unwind();
        tokio::pin!(work);
        if stop.is_cancelled() {
            return Err(ToolError::new(ToolErrorKind::Failed, "stopped before it started"));
        }
        let timeout = tool.spec().timeout;
        let unfinished = tokio::select! {
            biased;
            done = &mut work => {
                return done.unwrap_or_else(|_| Err(ToolError::new(ToolErrorKind::Failed, "the tool panicked")));
            }
            () = stop.cancelled() => ToolError::new(ToolErrorKind::Failed, "stopped before it finished"),
            () = tokio::time::sleep(timeout) => {
                let message = format!("not finished after {} s; do less in one call", timeout.as_secs_f64());
                ToolError::new(ToolErrorKind::Timeout, message)
            }
        };
        tool_stop.cancel();
        // A result that arrives now is discarded; the tool only gets the time to stop what it started.
        let _late = tokio::time::timeout(STOP_GRACE, work).await;
        Err(unfinished)
    }
}

impl Rejected {
    /// A call with this input that was rejected for this reason.
    pub fn new(redacted_input: Value, error: ToolError) -> Self {
        Self { redacted_input, result: CallResult::of_error(error) }
    }

    /// The arguments with sensitive parameters redacted, for events and audit.
    pub const fn redacted_input(&self) -> &Value {
        &self.redacted_input
    }

    /// The result that the model reads.
    pub fn into_result(self) -> CallResult {
        self.result
    }
}

impl CallResult {
    /// The result of a tool that ran.
    fn of_output(output: &ToolOutput) -> Self {
        let (text, cut) = output::render(&output.content);
        let outcome = if output.success { CallOutcome::Succeeded } else { CallOutcome::Failed };
        Self { outcome, output: text, truncated: cut || output.truncated, duration: Duration::ZERO }
    }

    /// The result of a call without output.
    pub fn of_error(ToolError(mut failure): ToolError) -> Self {
        let (output, truncated) = output::clean(&format!("error ({}): {}", failure.kind.as_str(), failure.message));
        failure.message = output::clean(&failure.message).0;
        Self { outcome: CallOutcome::Error(failure), output, truncated, duration: Duration::ZERO }
    }

    /// Whether the call succeeded.
    pub const fn success(&self) -> bool {
        matches!(self.outcome, CallOutcome::Succeeded)
    }

    /// Why there is no output, if there is none.
    pub const fn failure(&self) -> Option<&ToolFailure> {
        match &self.outcome {
            CallOutcome::Error(failure) => Some(failure),
            CallOutcome::Succeeded | CallOutcome::Failed => None,
        }
    }

    /// The duration in whole milliseconds.
    pub fn duration_ms(&self) -> u64 {
        u64::try_from(self.duration.as_millis()).unwrap_or(u64::MAX)
    }

    /// The answer of the worker API.
    pub fn to_reply(&self) -> ToolCallReply {
        ToolCallReply {
            success: self.success(),
            output: self.failure().is_none().then(|| Value::String(self.output.clone())),
            truncated: self.truncated,
            duration_ms: self.duration_ms(),
            error: self.failure().cloned(),
        }
    }
}
