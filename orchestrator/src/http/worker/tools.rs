//! `GET …/tools` and `POST …/tools/{name}`: the orchestrator's tools, through the one executor, once per call id.
//!
//! Owns how much of a call is read and kept. Never judges a call: permission, rate and policy are the executor's.

use std::sync::Arc;

use axum::{Json, extract::State};
use protocol::{
    CallId, ErrorCode, RateLimitOrigin, ToolCallReply, ToolErrorKind, ToolFailure, ToolList,
    limits::MAX_TOOL_ARGUMENT_BYTES,
};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};
use tokio_util::sync::CancellationToken;

use super::{
    WorkerApi, call_id_reused,
    caller::{CallInFlight, Caller},
    check_call_id, flight_failed, not_recorded, too_many_failed_calls,
};
use crate::{
    digest::sha256_hex_of_parts,
    dispatch::{Attempt, ToolCallError},
    domain::job::JobRecord,
    failpoint,
    http::{
        extract::{ApiPath, WorkerJson},
        problem::{ApiError, ErrorExtension},
    },
    llm::metering::retry_write,
    store::{CallKey, NewToolCall, OpenedToolCall, ToolCallOutcome},
};

/// Size of a call's arguments that its row keeps: enough to see what was asked for.
const MAX_KEPT_INPUT_BYTES: usize = 64 * 1024;

/// The body: arguments are looked into only once they are known to be small enough.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ToolCallBody {
    call_id: CallId,
    arguments: Box<RawValue>,
}

/// One call, as it is made.
struct ToolCall {
    call_id: CallId,
    tool: String,
    arguments: Box<RawValue>,
    digest: String,
}

pub(super) async fn list(State(api): State<WorkerApi>, Caller { job, .. }: Caller) -> Result<Json<ToolList>, ApiError> {
    Ok(Json(ToolList { tools: api.tools.offered(api.tools.context_of(&job).await?) }))
}

pub(super) async fn call(
    State(api): State<WorkerApi>,
    CallInFlight { job, attempt, in_flight }: CallInFlight,
    ApiPath((_, tool)): ApiPath<(String, String)>,
    WorkerJson { value: ToolCallBody { call_id, arguments }, .. }: WorkerJson<ToolCallBody>,
) -> Result<Json<ToolCallReply>, ErrorExtension> {
    check_call_id(&call_id)?;
    let now = api.clock.monotonic();
    attempt.limits().failed_tool_calls.check(now).map_err(too_many_failed_calls)?;
    attempt.limits().take_events(1, arguments.get().len(), now).map_err(|wait| {
        let error = ApiError::new(ErrorCode::RateLimited, "too many tool calls; make this one again later");
        error.with_reason(RateLimitOrigin::Local.as_str()).with_retry_after(wait)
    })?;
    // A worker that calls again sends the same bytes.
    let digest = sha256_hex_of_parts(&[tool.as_bytes(), b"\0", arguments.get().as_bytes()]);
    let (id, request_digest) = (call_id.clone(), digest.clone());
    let call = ToolCall { call_id, tool, arguments, digest };
    let own = Arc::clone(&attempt);
    let once = async move {
        let _in_flight = in_flight;
        let reply = run_once(&api, &job, &own, call).await;
        if reply.as_ref().map_or(true, is_refused) {
            // Calls that were admitted together may find the bucket empty: the next one waits.
            let _ = own.limits().failed_tool_calls.take(1, api.clock.monotonic());
        }
        reply.map(Arc::new)
    };
    let reply = attempt.tool_calls.run(id, &request_digest, once).await.map_err(flight_failed)?;
    let reply = reply.map_err(|error| match error {
        ToolCallError::IdReused => call_id_reused(),
        ToolCallError::Store(error) => not_recorded(&error),
    })?;
    Ok(Json(ToolCallReply::clone(&reply)))
}

/// Opens the call's row, runs the tool, closes the row, and only then replies. A call that was opened before is not run again.
async fn run_once(
    api: &WorkerApi,
    job: &JobRecord,
    attempt: &Attempt,
    call: ToolCall,
) -> Result<ToolCallReply, ToolCallError> {
    let key = CallKey { job: job.id, attempt: attempt.key().attempt, call_id: call.call_id.clone() };
    let context = api.tools.context_of(job).await?;
    let admission = readable(&call.arguments).map(|arguments| {
        // Unique among the job's attempts, which may repeat each other's ids: tools use it as an idempotency key.
        let call_id = CallId(format!("{}:{}", key.attempt, call.call_id.0));
        api.tools.admit(context, call_id, &call.tool, arguments)
    });
    let input = match &admission {
        Ok(admission) => kept(admission.redacted_input(), call.arguments.get().len()),
        Err(_) => Value::Null,
    };
    let max_tool_calls = job.brief.limits.max_tool_calls;
    let new = NewToolCall {
        key: key.clone(),
        request_digest: call.digest,
        at: api.clock.now(),
        tool: call.tool,
        input,
        // The loop keeps this limit too; another worker is held to it here.
        max_calls: u64::from(max_tool_calls),
    };
    match api.store.open_tool_call(&new).await? {
        OpenedToolCall::Open => {}
        OpenedToolCall::Recorded(reply) => return Ok(reply),
        OpenedToolCall::IdReused => return Err(ToolCallError::IdReused),
        OpenedToolCall::LimitReached => return Ok(limit_reached(max_tool_calls)),
    }
    failpoint::reach("tool.after_open");
    let (reply, output) = match admission {
        Ok(admission) => {
            let result = until_stopped(attempt.stopped(), |stop| async move { admission.finish(&stop).await }).await;
            (result.to_reply(), result.output)
        }
        Err(failure) => {
            let output = failure.message.clone();
            (refused(failure), output)
        }
    };
    failpoint::reach("tool.after_run");
    // A call that was refused did nothing: its arguments are not kept.
    let input = is_refused(&reply).then_some(Value::Null);
    let outcome = ToolCallOutcome { at: api.clock.now(), input, output, reply };
    retry_write(&api.drain, job.id, || api.store.close_tool_call(&key, &outcome)).await?;
    Ok(outcome.reply)
}

/// Runs a call with a token that is cancelled once the attempt is stopped. A stopped call still ends by itself.
async fn until_stopped<T, F: Future<Output = T>>(stopped: impl Future, call: impl FnOnce(CancellationToken) -> F) -> T {
    let stop = CancellationToken::new();
    let call = call(stop.clone());
    tokio::pin!(call);
    tokio::select! {
        biased;
        result = &mut call => return result,
        _ = stopped => stop.cancel(),
    }
    call.await
}

/// The arguments as a value, unless they are too large or too deep.
fn readable(arguments: &RawValue) -> Result<Value, ToolFailure> {
    let bytes = arguments.get().len();
    let message = if bytes > MAX_TOOL_ARGUMENT_BYTES {
        format!("the arguments have {bytes} bytes; a call takes at most {MAX_TOOL_ARGUMENT_BYTES}")
    } else {
        match serde_json::from_str(arguments.get()) {
            Ok(value) => return Ok(value),
            Err(error) => format!("the arguments cannot be read: {error}"),
        }
    };
    Err(ToolFailure { kind: ToolErrorKind::InvalidParameters, message, retry_after_seconds: None })
}

/// The part of the input that is stored.
fn kept(input: Value, bytes: usize) -> Value {
    if bytes <= MAX_KEPT_INPUT_BYTES {
        return input;
    }
    let text = input.to_string();
    let head = &text[..text.floor_char_boundary(MAX_KEPT_INPUT_BYTES)];
    json!({ "truncated": head, "bytes": text.len() })
}

/// Whether the call was not made at all.
fn is_refused(reply: &ToolCallReply) -> bool {
    reply.error.as_ref().is_some_and(|failure| match failure.kind {
        ToolErrorKind::InvalidParameters
        | ToolErrorKind::NotAuthorized
        | ToolErrorKind::RateLimited
        | ToolErrorKind::AutonomousUnavailable
        | ToolErrorKind::NotFound => true,
        ToolErrorKind::Failed | ToolErrorKind::Timeout | ToolErrorKind::External | ToolErrorKind::Sandbox => false,
    })
}

fn limit_reached(max_tool_calls: u32) -> ToolCallReply {
    refused(ToolFailure {
        kind: ToolErrorKind::NotAuthorized,
        message: format!("the job makes no more than limits.max_tool_calls = {max_tool_calls}; report what there is"),
        retry_after_seconds: None,
    })
}

const fn refused(failure: ToolFailure) -> ToolCallReply {
    ToolCallReply { success: false, output: None, truncated: false, duration_ms: 0, error: Some(failure) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_call_is_stopped_with_its_attempt() {
        let waits = |stop: CancellationToken| async move {
            stop.cancelled().await;
            "stopped"
        };
        assert_eq!(until_stopped(async {}, waits).await, "stopped");
        assert_eq!(until_stopped(std::future::pending::<()>(), |_| async { "done" }).await, "done");
    }
}
