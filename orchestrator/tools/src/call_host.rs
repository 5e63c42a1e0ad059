//! The orchestrator as the host of tool calls: hooks, rates for each user and tool, the audit row of each call, and the
//! owner's secrets, which are neither shown nor sent.
//!
//! Owns how much of a call is kept, and that its row is open before the tool runs. Never checks a call and never runs a
//! tool.

use std::{borrow::Cow, fmt, sync::Arc};

use agent::{
    BoxFuture, CallHost, CallResult, CheckedCall, OpenedRow, RecordError, ToolContext, ToolError, ToolExecutor,
    ToolPolicy,
    safety::{LeakDetector, REDACTED, StreamRedactor, screen_outbound},
};
use protocol::{CallId, Execution, NotApproved, ToolCall, ToolErrorKind, ToolFailure, WorkId};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::message;
use base::{clock::Clock, digest::sha256_hex_of_parts, failpoint, rate_limit::ToolRateLimits};
use config::HookPoint;
use hooks::{HookEvent, Hooks};
use llm::metering::retry_write;
use secrets::LeakDetectors;
use store::{CallKey, ClosedToolCall, NewToolCall, OpenedToolCall, Store, StoreError, ToolCallOutcome, WaitingTurn};

/// Size of a call's arguments that its row keeps: enough to see what was asked for.
const MAX_KEPT_INPUT_BYTES: usize = 64 * 1024;

/// Length of a text that is scanned for secrets without leaving the runtime's thread: about a millisecond.
const MAX_INLINE_SCAN_BYTES: usize = 64 * 1024;

const SECRETS_UNKNOWN: &str = "withheld: the owner's stored secrets could not be read, so it is not known what must not be shown; try again later";

const POLICY_UNKNOWN: &str = "not run: it could not be read whether the tool is allowed; try again later";

/// What all calls share.
pub(super) struct CallServices {
    pub(super) store: Store,
    pub(super) clock: Clock,
    pub(super) limits: ToolRateLimits,
    pub(super) detectors: LeakDetectors,
    pub(super) hooks: Arc<Hooks>,
    /// Cancelled when the process drains: a busy database is no longer waited for.
    pub(super) drain: CancellationToken,
}

/// The host of the calls of one attempt of a job or of a run of a routine, or of one turn of a chat.
pub(super) struct ToolCallHost {
    pub(super) services: Arc<CallServices>,
    pub(super) execution: Execution,
    /// The loop keeps this limit, too; a worker that does not is held to it here. `None`: the loop of this process
    /// keeps it alone, and its calls beyond the limit are recorded.
    pub(super) max_calls: Option<u32>,
}

impl fmt::Debug for ToolCallHost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ToolCallHost").field("execution", &self.execution).finish_non_exhaustive()
    }
}

impl ToolCallHost {
    fn key(&self, call_id: &CallId) -> CallKey {
        CallKey { execution: self.execution, call_id: call_id.clone() }
    }

    async fn new_row(&self, call: &CheckedCall) -> NewToolCall {
        NewToolCall {
            key: self.key(&call.call_id),
            request_digest: call.request_digest.clone(),
            at: self.services.clock.now(),
            tool: self.shown_name(call).await,
            input: kept(&call.input),
            reasoning: self.shown_reasoning(call).await,
            estimated_cost_micro_usd: call.estimated_cost_micro_usd,
            // A call that a person approved runs at most once.
            is_repeatable: call.is_repeatable && self.execution.work.job().is_some(),
            max_calls: self.max_calls.map(u64::from),
        }
    }

    async fn open_row(&self, call: &CheckedCall) -> Result<OpenedRow, RecordError> {
        let new = self.new_row(call).await;
        let opened = self.services.store.open_tool_call(&new).await.map_err(not_recorded)?;
        match opened {
            OpenedToolCall::Open => {
                failpoint::reach("tool.after_open");
                Ok(OpenedRow::New)
            }
            OpenedToolCall::Recorded(reply) => Ok(OpenedRow::Recorded(reply)),
            OpenedToolCall::IdReused => Err(RecordError::IdReused),
            OpenedToolCall::LimitReached => {
                Ok(OpenedRow::LimitReached(limit_reached(new.max_calls.unwrap_or_default())))
            }
        }
    }

    /// The tool's name as the model wrote it, which may be anything.
    async fn shown_name(&self, call: &CheckedCall) -> String {
        match self.services.detector(&call.context).await {
            Ok(detector) => detector.redact(&call.tool).0.into_owned(),
            Err(_) => REDACTED.to_owned(),
        }
    }

    /// The model's reason for the call, without secrets.
    async fn shown_reasoning(&self, call: &CheckedCall) -> Option<String> {
        let reasoning = call.reasoning.as_deref()?;
        let detector = self.services.detector(&call.context).await.ok()?;
        Some(detector.redact(reasoning).0.into_owned())
    }

    async fn close_row(&self, call_id: &CallId, result: &CallResult, was_run: bool) -> Result<(), RecordError> {
        failpoint::reach("tool.after_run");
        let key = self.key(call_id);
        let outcome = ToolCallOutcome {
            at: self.services.clock.now(),
            input: (!was_run && !self.keeps_refused_input()).then_some(Value::Null),
            output: result.output.clone(),
            cost_micro_usd: result.cost_micro_usd,
            reply: result.to_reply(),
        };
        let store = &self.services.store;
        let closed = retry_write(&self.services.drain, &key, || store.close_tool_call(&key, &outcome)).await;
        closed.map_err(not_recorded)
    }

    /// Whether the arguments of a call that was refused are kept. A worker may be refused again and again, and did
    /// nothing; what a person refused in a chat is worth knowing.
    const fn keeps_refused_input(&self) -> bool {
        matches!(self.execution.work, WorkId::Thread(_))
    }

    /// Asks the hooks before a call. A notification is a message to a person as well.
    async fn ask_before(&self, call: &CheckedCall) -> Result<Option<Value>, ToolError> {
        let hooks = &self.services.hooks;
        let changed = hooks.ask(&hook_event(HookPoint::BeforeToolCall, call), &call.input).await?;
        if call.tool != message::NAME {
            return Ok(changed);
        }
        let shown = changed.as_ref().unwrap_or(&call.input);
        let as_message = hooks.ask(&hook_event(HookPoint::OutboundMessage, call), shown).await?;
        Ok(as_message.or(changed))
    }

    async fn ask_after(&self, call: &CheckedCall, text: &str) -> Result<Option<String>, ToolError> {
        let event = HookEvent { input: Some(&call.input), ..hook_event(HookPoint::AfterToolCall, call) };
        Ok(self.services.hooks.ask_about_text(&event, text).await?)
    }
}

/// The rows of calls that the user of a chat stopped before they ran, with what the model reads of them.
pub(super) async fn stopped_calls(
    executor: &ToolExecutor,
    host: &ToolCallHost,
    turn: &WaitingTurn,
) -> Vec<ClosedToolCall> {
    let mut stopped = Vec::new();
    for ToolCall { id, name, arguments, .. } in &turn.calls {
        let (call_id, error) =
            (CallId(id.clone()), ToolError::new(ToolErrorKind::NotAuthorized, NotApproved::Stopped.to_string()));
        let refused = executor.refuse(call_id.clone(), name, arguments.clone(), error.clone()).await;
        let call = host.new_row(&refused.with_reasoning(&turn.reasoning).call).await;
        let result = CallResult::of_error(error);
        let reply = result.to_reply();
        let outcome = ToolCallOutcome { at: call.at, input: None, output: result.output, cost_micro_usd: None, reply };
        stopped.push(ClosedToolCall { call, outcome });
    }
    stopped
}

/// The error of a call of a worker that makes too many.
fn limit_reached(max_calls: u64) -> ToolError {
    let message = format!("the job makes no more than limits.max_tool_calls = {max_calls}; report what there is");
    ToolError::new(ToolErrorKind::NotAuthorized, message)
}

impl CallHost for ToolCallHost {
    fn current_policy<'a>(&'a self, context: &'a ToolContext) -> BoxFuture<'a, Result<Option<ToolPolicy>, ToolError>> {
        Box::pin(async move {
            let policy = self.services.store.tool_policy_of(context.owner.as_str()).await;
            policy.map(Some).map_err(|error| {
                tracing::error!(error = &error as &dyn std::error::Error, "a user's tool policy could not be read");
                ToolError::new(ToolErrorKind::Failed, POLICY_UNKNOWN)
            })
        })
    }

    fn request_digest(&self, tool: &str, arguments: &Value) -> String {
        sha256_hex_of_parts(&[tool.as_bytes(), b"\0", arguments.to_string().as_bytes()])
    }

    fn invocation_id(&self, call_id: &CallId) -> CallId {
        // The attempts of a job or a run, and the turns of a thread, may repeat each other's ids.
        CallId(format!("{}:{call_id}", self.execution.attempt))
    }

    fn redact_input<'a>(
        &'a self,
        context: &'a ToolContext,
        mut input: Value,
    ) -> BoxFuture<'a, Result<Value, ToolError>> {
        Box::pin(async move {
            let detector = self.services.detector(context).await?;
            detector.redact_arguments(&mut input);
            Ok(input)
        })
    }

    fn before_call<'a>(&'a self, call: &'a CheckedCall) -> BoxFuture<'a, Result<Option<Value>, ToolError>> {
        Box::pin(self.ask_before(call))
    }

    fn screen_arguments<'a>(
        &'a self,
        context: &'a ToolContext,
        mut arguments: Value,
    ) -> BoxFuture<'a, Result<Value, ToolError>> {
        Box::pin(async move {
            let detector = self.services.detector(context).await?;
            screen_outbound(&detector, &mut arguments)?;
            Ok(arguments)
        })
    }

    fn take_rate(&self, context: &ToolContext, tool: &str) -> Result<(), ToolError> {
        let now = self.services.clock.monotonic();
        self.services.limits.take(context.owner.as_str(), tool, now).map_err(|wait| {
            let seconds = u64::try_from(wait.as_millis().div_ceil(1_000)).unwrap_or(u64::MAX);
            ToolError(ToolFailure {
                kind: ToolErrorKind::RateLimited,
                message: format!("too many calls of {tool}; try again in {seconds} s"),
                retry_after_seconds: Some(seconds),
            })
        })
    }

    fn return_rate(&self, context: &ToolContext, tool: &str) {
        self.services.limits.give_back(context.owner.as_str(), tool);
    }

    fn open<'a>(&'a self, call: &'a CheckedCall) -> BoxFuture<'a, Result<OpenedRow, RecordError>> {
        Box::pin(self.open_row(call))
    }

    fn after_call<'a>(
        &'a self,
        call: &'a CheckedCall,
        text: &'a str,
    ) -> BoxFuture<'a, Result<Option<String>, ToolError>> {
        Box::pin(self.ask_after(call, text))
    }

    fn redact_output<'a>(
        &'a self,
        context: &'a ToolContext,
        text: String,
        is_complete: bool,
    ) -> BoxFuture<'a, Result<String, ToolError>> {
        Box::pin(async move {
            let detector = self.services.detector(context).await?;
            if text.len() <= MAX_INLINE_SCAN_BYTES {
                return Ok(redacted(detector, text, is_complete));
            }
            let scan = tokio::task::spawn_blocking(move || redacted(detector, text, is_complete)).await;
            scan.map_err(|_| ToolError::new(ToolErrorKind::Failed, SECRETS_UNKNOWN))
        })
    }

    fn close<'a>(
        &'a self,
        call: &'a CheckedCall,
        result: &'a CallResult,
        was_run: bool,
    ) -> BoxFuture<'a, Result<(), RecordError>> {
        Box::pin(self.close_row(&call.call_id, result, was_run))
    }
}

impl CallServices {
    /// The detector of the owner's secrets. Without it nothing is shown or sent.
    async fn detector(&self, context: &ToolContext) -> Result<Arc<LeakDetector>, ToolError> {
        self.detectors.of(context.owner.as_str()).await.map_err(|error| {
            let (user, error) = (context.owner.as_str(), &error as &dyn std::error::Error);
            tracing::error!(user, error, "a tool call is withheld: the owner's secrets are not known");
            ToolError::new(ToolErrorKind::Failed, SECRETS_UNKNOWN)
        })
    }
}

/// What a hook learns of a call.
fn hook_event(point: HookPoint, call: &CheckedCall) -> HookEvent<'_> {
    let event = HookEvent::new(point, call.context.owner.as_str());
    HookEvent { tool: Some(&call.tool), call_id: Some(&call.call_id), ..event.of(call.context.work) }
}

/// The text without secrets. What could be the beginning of one at the end of an incomplete text is removed as well.
fn redacted(detector: Arc<LeakDetector>, text: String, is_complete: bool) -> String {
    if is_complete {
        return match detector.redact(&text).0 {
            Cow::Borrowed(_) => text,
            Cow::Owned(redacted) => redacted,
        };
    }
    StreamRedactor::new(detector).push(&text)
}

/// A call whose record failed.
pub(super) fn not_recorded(error: StoreError) -> RecordError {
    RecordError::Unavailable { is_transient: error.is_transient(), source: Arc::new(error) }
}

/// The part of the input that is stored.
fn kept(input: &Value) -> Value {
    let text = input.to_string();
    if text.len() <= MAX_KEPT_INPUT_BYTES {
        return input.clone();
    }
    let head = &text[..text.floor_char_boundary(MAX_KEPT_INPUT_BYTES)];
    json!({ "truncated": head, "bytes": text.len() })
}
