//! The guarded path: the one way from a tool call that somebody asked for to its result.
//!
//! Owns the order of the checks, time limits, and what a result looks like to the model. Never decides what is done
//! with a result: the loop, or the orchestrator's tools endpoint, journals and delivers it.

mod coerce;
mod output;
mod reach;
mod registry;

use std::{panic::AssertUnwindSafe, sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use protocol::{ToolDefinition, ToolErrorKind, ToolFailure};
use serde_json::Value;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

pub use output::MAX_OUTPUT_BYTES;
pub use reach::Reach;
pub use registry::{RegisterError, ToolRegistry};

use crate::{CallerId, Invocation, RateLimits, ToolError, ToolOutput};
use registry::Entry;

/// What a tool that was told to stop gets to clean up after itself before its future is dropped.
const STOP_GRACE: Duration = Duration::from_secs(1);

/// Every tool call goes through here, whoever makes it.
#[derive(Debug, Clone)]
pub struct ToolPath {
    registry: Arc<ToolRegistry>,
    reach: Reach,
    caller: CallerId,
    limited: Option<Limited>,
}

/// Whose calls are counted, and what time it is.
#[derive(Debug, Clone)]
struct Limited {
    limits: Arc<RateLimits>,
    user: String,
    now: Duration,
}

/// One call from end to end, refused and unknown ones too.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCallRecord {
    /// The arguments as they may be shown: sensitive parameters redacted.
    pub input_shown: Value,
    /// Whether it worked.
    pub success: bool,
    /// What the model reads; on a failure, `error (<kind>): <message>`.
    pub output: String,
    /// Whether the output was cut.
    pub truncated: bool,
    /// How long the tool took; zero when it did not run.
    pub duration: Duration,
    /// Why there is no result, if there is none.
    pub error: Option<ToolFailure>,
}

impl ToolCallRecord {
    fn ran(output: &ToolOutput) -> Self {
        let (text, truncated) = output::present(&output.content);
        Self {
            input_shown: Value::Null,
            success: output.success,
            output: text,
            truncated,
            duration: Duration::ZERO,
            error: None,
        }
    }

    fn refused(ToolError(mut failure): ToolError) -> Self {
        let (output, truncated) = output::clean(&format!("error ({}): {}", failure.kind.as_str(), failure.message));
        failure.message = output::clean(&failure.message).0;
        Self {
            input_shown: Value::Null,
            success: false,
            output,
            truncated,
            duration: Duration::ZERO,
            error: Some(failure),
        }
    }
}

impl ToolPath {
    /// A path over these tools for one context.
    pub const fn new(registry: Arc<ToolRegistry>, reach: Reach) -> Self {
        Self { registry, reach, caller: CallerId { job: None }, limited: None }
    }

    /// The same path for calls on somebody's behalf.
    #[must_use]
    pub const fn on_behalf_of(mut self, caller: CallerId) -> Self {
        self.caller = caller;
        self
    }

    /// The same path, held to what one user may do at this (monotonic) time.
    #[must_use]
    pub fn limited(mut self, limits: Arc<RateLimits>, user: &str, now: Duration) -> Self {
        self.limited = Some(Limited { limits, user: user.to_owned(), now });
        self
    }

    /// What the model of this context may see, by name.
    pub fn definitions(&self) -> Vec<ToolDefinition> {
        self.registry
            .entries()
            .filter(|entry| self.reach.offers(entry))
            .map(|entry| entry.spec.definition.clone())
            .collect()
    }

    /// Whether a call by this name would be offered to the model.
    pub fn offers(&self, name: &str) -> bool {
        self.registry.get(name).is_some_and(|entry| self.reach.offers(entry))
    }

    /// Whether anything is offered to the model at all.
    pub fn offers_any(&self) -> bool {
        self.registry.entries().any(|entry| self.reach.offers(entry))
    }

    /// Whether this tool's calls must not run beside others.
    pub fn runs_alone(&self, name: &str) -> bool {
        self.registry.get(name).is_some_and(|entry| !entry.spec.parallel)
    }

    /// The arguments as they may be shown before the call is made: sensitive parameters redacted.
    pub fn shown(&self, name: &str, arguments: &Value) -> Value {
        match self.registry.get(name) {
            Some(entry) => {
                let coerced = coerce::to_schema(arguments.clone(), &entry.spec.definition.parameters);
                entry.redact(&coerced)
            }
            None => arguments.clone(),
        }
    }

    /// Makes the call. Always answers: a refusal, a failure, a panic and a stop are records too.
    ///
    /// The order is the contract's: resolve, approval context, rate limit, coerce and validate, run with a time limit,
    /// sanitise and cap. What joins later has its place in it: admin policy and permission before the approval context, hooks
    /// around the run.
    pub async fn call(&self, call_id: &str, name: &str, arguments: Value, stop: &CancellationToken) -> ToolCallRecord {
        // A name that is nobody's is a text that the model made up.
        let known = self.registry.get(name).map(|entry| entry.spec.definition.name.as_str());
        let span = tracing::info_span!("tool.call", tool.name = known, duration_ms = tracing::field::Empty);
        let input_shown = self.shown(name, &arguments);
        let begun = Instant::now();
        let mut record = match self.admit(name, arguments) {
            Ok((entry, arguments)) => {
                let invocation = Invocation {
                    call_id: call_id.to_owned(),
                    arguments,
                    caller: self.caller,
                    stop: stop.child_token(),
                };
                let result = run(entry, invocation, stop).instrument(span.clone()).await;
                let mut record = match result {
                    Ok(output) => ToolCallRecord::ran(&output),
                    Err(error) => ToolCallRecord::refused(error),
                };
                record.duration = begun.elapsed();
                record
            }
            Err(error) => ToolCallRecord::refused(error),
        };
        record.input_shown = input_shown;
        span.record("duration_ms", u64::try_from(record.duration.as_millis()).unwrap_or(u64::MAX));
        record
    }

    /// Every check that comes before the run.
    fn admit(&self, name: &str, arguments: Value) -> Result<(&Entry, Value), ToolError> {
        let entry = self.reach.resolve(&self.registry, name)?;
        // The approval is judged on the arguments that will run, not on a spelling of them that coercion changes.
        let arguments = coerce::to_schema(arguments, &entry.spec.definition.parameters);
        self.reach.approve(entry, &arguments)?;
        self.within_rate(name)?;
        entry.validate(&arguments)?;
        Ok((entry, arguments))
    }

    fn within_rate(&self, name: &str) -> Result<(), ToolError> {
        let Some(Limited { limits, user, now }) = &self.limited else { return Ok(()) };
        limits.take(user, name, *now).map_err(|wait| {
            let seconds = wait.as_millis().div_ceil(1_000);
            let message = format!("too many calls of {name}; the next one may be made in {seconds} s");
            let mut error = ToolError::new(ToolErrorKind::RateLimited, message);
            error.0.retry_after_seconds = u64::try_from(seconds).ok();
            error
        })
    }
}

/// Runs the tool within its time limit; a panic is a failed result.
async fn run(entry: &Entry, invocation: Invocation, stop: &CancellationToken) -> Result<ToolOutput, ToolError> {
    let told = invocation.stop.clone();
    // The call itself is made inside, so that a panic before the first await is caught as well.
    let work = AssertUnwindSafe(async { entry.tool.call(invocation).await }).catch_unwind();
    tokio::pin!(work);
    if stop.is_cancelled() {
        return Err(ToolError::new(ToolErrorKind::Failed, "stopped before it began"));
    }
    let unfinished = tokio::select! {
        biased;
        done = &mut work => {
            return done.unwrap_or_else(|_| Err(ToolError::new(ToolErrorKind::Failed, "the tool panicked")));
        }
        () = stop.cancelled() => ToolError::new(ToolErrorKind::Failed, "stopped before it was done"),
        () = tokio::time::sleep(entry.spec.timeout) => ToolError::new(
            ToolErrorKind::Timeout,
            format!("not done after {} s; do less in one call", entry.spec.timeout.as_secs_f64()),
        ),
    };
    told.cancel();
    // What it returns now is too late to count; it only gets the time to stop what it started.
    let _late = tokio::time::timeout(STOP_GRACE, work).await;
    Err(unfinished)
}

#[cfg(test)]
mod tests;
