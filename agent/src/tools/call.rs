//! One tool call: admitted or rejected, recorded, run with a time limit, and its result.
//!
//! Owns what happens to a call after its checks, in this order: rate, audit row, run, cleaning, hook, row closed. Never
//! checks a call: the executor did. This is the only place that calls a tool.

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use protocol::{CallId, ToolCallReply, ToolErrorKind, ToolFailure};
use serde_json::Value;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::{
    context::ToolContext,
    host::{CallHost, OpenedRow, RecordError},
    output,
    registry::RegisteredTool,
};
use crate::{Invocation, ToolError, ToolOutput};

/// Error of a call that the loop was stopped before.
pub(crate) const STOPPED_BEFORE_START: &str = "stopped before it started";

/// Time for a tool that was told to stop to clean up, before its future is dropped.
pub(super) const STOP_GRACE: Duration = Duration::from_secs(1);

/// Why a call that needs approval is not run where no person can be asked.
const NOT_ASKED: &str = "not run: a person would have to approve it";

/// A call after its checks.
#[derive(Debug)]
pub struct Admission {
    /// What the model asked for, checked.
    pub call: CheckedCall,
    /// What is done with it.
    pub decision: Decision,
}

/// The decision about a call before it runs.
#[derive(Debug)]
pub enum Decision {
    /// Every check passed: this tool runs with these arguments.
    Run(Arc<RegisteredTool>, Value),
    /// A person is asked before it runs.
    Ask {
        /// Exactly the arguments that run if the call is approved.
        arguments: Value,
        /// Whether the answer "always" can be remembered.
        can_be_remembered: bool,
    },
    /// A check failed.
    Reject(ToolError),
}

/// A call that is going to be recorded, whatever becomes of it: what its host learns of it.
#[derive(Debug)]
pub struct CheckedCall {
    pub(super) host: Arc<dyn CallHost>,
    /// Who calls, and under which policy.
    pub context: Arc<ToolContext>,
    /// The call's id, unique within its attempt or turn.
    pub call_id: CallId,
    /// The tool's name, as the model wrote it.
    pub tool: String,
    /// The arguments, redacted.
    pub input: Value,
    /// Why the model makes the call, if it gave a reason.
    pub reasoning: Option<String>,
    /// [`CallHost::request_digest`] of the tool and the arguments as they were sent.
    pub request_digest: String,
    /// What the tool declares that a call costs, in millionths of a US dollar.
    pub estimated_cost_micro_usd: u64,
    /// Whether the call may run again if a crash interrupted it.
    pub is_repeatable: bool,
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
    /// What the call cost, in millionths of a US dollar, where the tool knows it.
    pub cost_micro_usd: Option<u64>,
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
    /// The same call with the model's reason for it; empty if it gave none.
    #[must_use]
    pub fn with_reasoning(mut self, reasoning: &str) -> Self {
        self.call.reasoning = Some(reasoning).filter(|text| !text.is_empty()).map(str::to_owned);
        self
    }

    /// The arguments, redacted, for events.
    pub fn redacted_input(&self) -> Value {
        self.call.input.clone()
    }

    /// Whether the call must not run beside other calls.
    pub fn runs_alone(&self) -> bool {
        match &self.decision {
            Decision::Run(tool, _) => !tool.spec().parallel,
            Decision::Ask { .. } => true,
            Decision::Reject(_) => false,
        }
    }

    /// Records the call and runs it, if it was admitted. One that needs approval is rejected.
    pub async fn finish(self, stop: &CancellationToken) -> Result<CallResult, RecordError> {
        match self.decision {
            Decision::Run(tool, arguments) => self.call.finish(&tool, arguments, stop).await,
            Decision::Ask { .. } => {
                self.call.finish_rejected(ToolError::new(ToolErrorKind::NotAuthorized, NOT_ASKED)).await
            }
            Decision::Reject(error) => self.call.finish_rejected(error).await,
        }
    }
}

impl CheckedCall {
    /// Counts, records and runs the call. A call that ran before is not run again.
    async fn finish(
        self,
        tool: &RegisteredTool,
        arguments: Value,
        stop: &CancellationToken,
    ) -> Result<CallResult, RecordError> {
        let rate = self.host.take_rate(&self.context, tool.name());
        let opened = self.host.open(&self).await;
        if rate.is_ok() && !matches!(opened, Ok(OpenedRow::New)) {
            self.host.return_rate(&self.context, tool.name());
        }
        match opened? {
            OpenedRow::New => {}
            OpenedRow::Recorded(reply) => return Ok(CallResult::of_reply(reply)),
            OpenedRow::LimitReached(error) => return Ok(self.clean(Err(error).into()).await),
        }
        if let Err(error) = rate {
            return self.close_refused(error).await;
        }
        let invocation = Invocation {
            call_id: self.host.invocation_id(&self.call_id),
            arguments,
            context: Arc::clone(&self.context),
            stop: stop.child_token(),
        };
        let (ended, duration) = run(tool, invocation, stop).await;
        let result = CallResult { duration, ..self.conclude(ended.into()).await };
        self.host.close(&self, &result, true).await?;
        Ok(result)
    }

    /// Records a call that is not run.
    async fn finish_rejected(self, error: ToolError) -> Result<CallResult, RecordError> {
        match self.host.open(&self).await? {
            OpenedRow::New => self.close_refused(error).await,
            OpenedRow::Recorded(reply) => Ok(CallResult::of_reply(reply)),
            // The reason why it was rejected says more.
            OpenedRow::LimitReached(_) => Ok(self.clean(Err(error).into()).await),
        }
    }

    async fn close_refused(&self, error: ToolError) -> Result<CallResult, RecordError> {
        let result = self.clean(Err(error).into()).await;
        self.host.close(self, &result, false).await?;
        Ok(result)
    }

    /// The result that is shown. The hook after the call gets it as the model would read it; what the hook makes of it
    /// is cleaned again.
    async fn conclude(&self, ended: Ended) -> CallResult {
        let result = self.clean(ended).await;
        let changed = match self.host.after_call(self, result.text()).await {
            Ok(None) => return result,
            Ok(Some(text)) => {
                let CallResult { outcome, truncated, cost_micro_usd, .. } = result;
                Ended { outcome, text, truncated, cost_micro_usd }
            }
            Err(error) => Ended { cost_micro_usd: result.cost_micro_usd, ..Err(error).into() },
        };
        self.clean(changed).await
    }

    /// The result that is shown: sanitised, without secrets, capped.
    async fn clean(&self, ended: Ended) -> CallResult {
        let Ended { outcome, text, truncated, cost_micro_usd } = ended;
        let bytes = text.len();
        let (text, is_complete) = output::sanitize(text);
        let result = match self.host.redact_output(&self.context, text, is_complete).await {
            Ok(text) => {
                let (text, was_cut) = output::cap(text, bytes, is_complete);
                CallResult::of_text(outcome, text, truncated || was_cut)
            }
            Err(ToolError(mut failure)) => {
                let message = std::mem::take(&mut failure.message);
                CallResult::of_text(CallOutcome::Error(failure), message, false)
            }
        };
        CallResult { cost_micro_usd, ..result }
    }
}

/// How a call ended, as the tool says.
struct Ended {
    outcome: CallOutcome,
    /// The output, or the message of the error.
    text: String,
    /// Whether the tool cut the text.
    truncated: bool,
    cost_micro_usd: Option<u64>,
}

impl From<Result<ToolOutput, ToolError>> for Ended {
    fn from(ended: Result<ToolOutput, ToolError>) -> Self {
        match ended {
            Ok(ToolOutput { content, success, truncated, cost_micro_usd }) => {
                let outcome = if success { CallOutcome::Succeeded } else { CallOutcome::Failed };
                Self { outcome, text: output::render(content), truncated, cost_micro_usd }
            }
            Err(ToolError(mut failure)) => {
                let text = std::mem::take(&mut failure.message);
                Self { outcome: CallOutcome::Error(failure), text, truncated: false, cost_micro_usd: None }
            }
        }
    }
}

/// Runs the tool within its time limit. A panic, a timeout and a stop are results, too.
async fn run(
    tool: &RegisteredTool,
    invocation: Invocation,
    stop: &CancellationToken,
) -> (Result<ToolOutput, ToolError>, Duration) {
    let span = tracing::info_span!("tool.call", tool.name = tool.name(), duration_ms = tracing::field::Empty);
    let began = Instant::now();
    let ended = execute(tool, invocation, stop).instrument(span.clone()).await;
    let duration = began.elapsed();
    span.record("duration_ms", u64::try_from(duration.as_millis()).unwrap_or(u64::MAX));
    (ended, duration)
}

async fn execute(
    tool: &RegisteredTool,
    invocation: Invocation,
    stop: &CancellationToken,
) -> Result<ToolOutput, ToolError> {
    let tool_stop = invocation.stop.clone();
    // The call is made inside the async block, so that a panic before the first await is caught as well.
    let work = AssertUnwindSafe(async { tool.tool().call(invocation).await }).catch_unwind();
    tokio::pin!(work);
    if stop.is_cancelled() {
        return Err(ToolError::new(ToolErrorKind::Failed, STOPPED_BEFORE_START));
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

impl CallResult {
    /// The result with this clean text. The text of an error is its message.
    fn of_text(outcome: CallOutcome, text: String, truncated: bool) -> Self {
        let (outcome, output) = match outcome {
            CallOutcome::Error(failure) => {
                let output = format!("error ({}): {text}", failure.kind.as_str());
                (CallOutcome::Error(ToolFailure { message: text, ..failure }), output)
            }
            CallOutcome::Succeeded | CallOutcome::Failed => (outcome, text),
        };
        Self { outcome, output, truncated, duration: Duration::ZERO, cost_micro_usd: None }
    }

    /// The result of a call that was recorded with this reply.
    fn of_reply(reply: ToolCallReply) -> Self {
        let ToolCallReply { success, output, truncated, duration_ms, error } = reply;
        let result = if let Some(failure) = error {
            let text = failure.message.clone();
            Self::of_text(CallOutcome::Error(failure), text, truncated)
        } else {
            let outcome = if success { CallOutcome::Succeeded } else { CallOutcome::Failed };
            Self::of_text(outcome, output.map(output::render).unwrap_or_default(), truncated)
        };
        Self { duration: Duration::from_millis(duration_ms), ..result }
    }

    /// The result of a call that is not run.
    pub fn of_error(ToolError(failure): ToolError) -> Self {
        let text = failure.message.clone();
        Self::of_text(CallOutcome::Error(failure), text, false)
    }

    /// The result of a call that could not be recorded.
    pub(crate) fn of_record_error(error: &RecordError) -> Self {
        let failure = ToolFailure { kind: ToolErrorKind::Failed, message: String::new(), retry_after_seconds: None };
        Self::of_text(CallOutcome::Error(failure), format!("{error}; its result is not available"), false)
    }

    /// The output, or the message of the error.
    fn text(&self) -> &str {
        self.failure().map_or(&self.output, |failure| &failure.message)
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
