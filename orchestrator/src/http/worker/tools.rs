//! `GET …/tools` and `POST …/tools/{name}`: the orchestrator's tools, through the one executor, once per call id.
//!
//! Owns how much of a call is read and kept. Never judges a call: permission, rate and policy are the executor's.

use std::sync::Arc;

use axum::{Json, extract::State};
use protocol::{CallId, ErrorCode, RateLimitOrigin, ToolCallReply, ToolErrorKind, ToolFailure, ToolList};
use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};
use tokio_util::sync::CancellationToken;

use super::{
    WorkerApi, call_id_reused,
    caller::{CallInFlight, Caller},
    check_call_id, flight_failed, too_many_failed_calls,
};
use crate::{
    auth,
    dispatch::{Admission, Attempt},
    domain::job::JobRecord,
    http::{
        extract::{ApiPath, WorkerJson},
        problem::{ApiError, Carried},
    },
    store::{ActionRow, KnownAction},
    tools,
};

/// Of one call (contract: api, sizes).
const MAX_ARGUMENT_BYTES: usize = 256 * 1024;
/// Of a call's arguments, what its row keeps: enough to see what was asked for.
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

pub(super) async fn list(State(api): State<WorkerApi>, Caller { job, .. }: Caller) -> Json<ToolList> {
    Json(ToolList { tools: api.tools.offered(job.brief.tools.as_deref()) })
}

pub(super) async fn call(
    State(api): State<WorkerApi>,
    CallInFlight { job, attempt, in_flight }: CallInFlight,
    ApiPath((_, tool)): ApiPath<(String, String)>,
    WorkerJson(ToolCallBody { call_id, arguments }): WorkerJson<ToolCallBody>,
) -> Result<Json<ToolCallReply>, Carried> {
    check_call_id(&call_id)?;
    let now = api.clock.monotonic();
    attempt.limits().failed_tool_calls.check(now).map_err(too_many_failed_calls)?;
    attempt.limits().take_events(1, arguments.get().len(), now).map_err(|wait| {
        let error = ApiError::new(ErrorCode::RateLimited, "too many tool calls; make this one again later");
        error.with_reason(RateLimitOrigin::Local.as_str()).with_retry_after(wait)
    })?;
    // A worker that calls again sends the same bytes.
    let digest = auth::digest(&[tool.as_bytes(), b"\0", arguments.get().as_bytes()].concat());
    let key = (attempt.key(), call_id.clone());
    let (calls, question) = (api.tool_calls.clone(), digest.clone());
    let call = ToolCall { call_id, tool, arguments, digest };
    let once = async move {
        let _in_flight = in_flight;
        let reply = once(&api, &job, &attempt, call).await;
        if reply.as_ref().map_or(true, is_refused) {
            // Calls that were admitted together may find the bucket empty: the next one waits.
            let _ = attempt.limits().failed_tool_calls.take(1, api.clock.monotonic());
        }
        reply.map(Arc::new).map_err(Carried::from)
    };
    let reply = calls.run(key, &question, once).await.map_err(flight_failed)??;
    Ok(Json(ToolCallReply::clone(&reply)))
}

/// Looks for the recorded reply; else calls, records, and only then answers.
async fn once(api: &WorkerApi, job: &JobRecord, attempt: &Attempt, call: ToolCall) -> Result<ToolCallReply, ApiError> {
    // The loop keeps this limit too; a worker that is not our loop does not get past it here.
    let limit = job.brief.limits.max_tool_calls;
    let look = async {
        let (known, made) = api.store.tool_calls_made(job.id, job.attempt, &call.call_id).await?;
        Ok::<_, crate::store::StoreError>((known, u64::from(limit).saturating_sub(made)))
    };
    let permit = match attempt.limits().admit_tool_call(look).await? {
        Admission::Recorded(known) => return replayed(known, &call),
        Admission::LimitReached => return Ok(limit_reached(limit)),
        Admission::Granted(permit) => permit,
    };
    let (reply, input, output) = match readable(&call.arguments) {
        Ok(arguments) => {
            let context = tools::autonomous(job.id, &job.brief.user_id, job.brief.tools.as_deref());
            let admission = api.tools.admit(context, call.call_id.clone(), &call.tool, arguments);
            let input = admission.redacted_input();
            let result = admission.finish(&CancellationToken::new()).await;
            (result.to_reply(), input, result.output)
        }
        Err(failure) => {
            let output = failure.message.clone();
            (refused(failure), Value::Null, output)
        }
    };
    // A call that was refused did nothing: what it would have done is not kept.
    let input = if is_refused(&reply) { Value::Null } else { kept(input, call.arguments.get().len()) };
    let row = ActionRow {
        job: job.id,
        attempt: job.attempt,
        call_id: &call.call_id,
        request_digest: &call.digest,
        at: api.clock.now(),
        tool: &call.tool,
        input: &input,
        output: &output,
        reply: &reply,
    };
    let (store, record) = (&api.store, &row);
    permit.complete(api.record_outcome(job.id, move || store.record_tool_call(record))).await?;
    Ok(reply)
}

fn replayed(known: KnownAction, call: &ToolCall) -> Result<ToolCallReply, ApiError> {
    if known.asked(&call.tool, &call.digest) { Ok(known.reply) } else { Err(call_id_reused()) }
}

/// The arguments as a value, unless they are too large or too deep.
fn readable(arguments: &RawValue) -> Result<Value, ToolFailure> {
    let bytes = arguments.get().len();
    let message = if bytes > MAX_ARGUMENT_BYTES {
        format!("the arguments have {bytes} bytes; a call takes at most {MAX_ARGUMENT_BYTES}")
    } else {
        match serde_json::from_str(arguments.get()) {
            Ok(value) => return Ok(value),
            Err(error) => format!("the arguments cannot be read: {error}"),
        }
    };
    Err(ToolFailure { kind: ToolErrorKind::InvalidParameters, message, retry_after_seconds: None })
}

/// What of the input is kept.
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
