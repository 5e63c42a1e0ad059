//! `GET …/tools` and `POST …/tools/{name}`: the orchestrator's tools, through the one executor, once per call id.
//!
//! Owns how much of a call is read. Never checks, records or runs a call: the executor does.

use std::sync::Arc;

use agent::{RecordError, ToolError};
use axum::{Json, extract::State};
use protocol::{
    CallId, ErrorCode, RateLimitOrigin, ToolCallReply, ToolErrorKind, ToolList, limits::MAX_TOOL_ARGUMENT_BYTES,
};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};
use tokio_util::sync::CancellationToken;

use super::{
    WorkerApi, call_id_reused,
    caller::{CallInFlight, Caller},
    check_call_id, flight_failed, not_recorded, too_many_failed_calls,
};
use base::digest::sha256_hex_of_parts;
use dispatch::Attempt;
use domain::job::JobRecord;

use crate::{
    extract::{ApiPath, WorkerJson},
    problem::{ApiError, ErrorExtension},
};

/// The body: arguments are looked into only once they are known to be small enough.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ToolCallBody {
    call_id: CallId,
    arguments: Box<RawValue>,
}

pub(super) async fn list(State(api): State<WorkerApi>, Caller { job, .. }: Caller) -> Result<Json<ToolList>, ApiError> {
    Ok(Json(ToolList { tools: api.tools.offered(api.tools.context_of(&job).await?).await }))
}

pub(super) async fn call(
    State(api): State<WorkerApi>,
    CallInFlight { job, attempt, in_flight }: CallInFlight,
    ApiPath((_, tool)): ApiPath<(String, String)>,
    WorkerJson { value: body, .. }: WorkerJson<ToolCallBody>,
) -> Result<Json<ToolCallReply>, ErrorExtension> {
    check_call_id(&body.call_id)?;
    let now = api.clock.monotonic();
    attempt.limits().failed_tool_calls.check(now).map_err(too_many_failed_calls)?;
    attempt.limits().take_events(1, body.arguments.get().len(), now).map_err(|wait| {
        let error = ApiError::new(ErrorCode::RateLimited, "too many tool calls; make this one again later");
        error.with_reason(RateLimitOrigin::Local.as_str()).with_retry_after(wait)
    })?;
    // A worker that calls again sends the same bytes.
    let digest = sha256_hex_of_parts(&[tool.as_bytes(), b"\0", body.arguments.get().as_bytes()]);
    let id = body.call_id.clone();
    let own = Arc::clone(&attempt);
    let once = async move {
        let _in_flight = in_flight;
        let reply = run_once(&api, &job, &own, &tool, body).await;
        if reply.as_ref().map_or(true, is_refused) {
            // Calls that were admitted together may find the bucket empty: the next one waits.
            let _ = own.limits().failed_tool_calls.take(1, api.clock.monotonic());
        }
        reply.map(Arc::new)
    };
    let reply = attempt.tool_calls.run(id, &digest, once).await.map_err(flight_failed)?;
    let reply = reply.map_err(to_api_error)?;
    Ok(Json(ToolCallReply::clone(&reply)))
}

/// Runs the call through the executor, which records it. A call that was recorded before is not run again.
async fn run_once(
    api: &WorkerApi,
    job: &JobRecord,
    attempt: &Attempt,
    tool: &str,
    ToolCallBody { call_id, arguments }: ToolCallBody,
) -> Result<ToolCallReply, RecordError> {
    let executor = api.tools.executor_for_job(job, attempt.key().attempt, Some(tool)).await?;
    let admission = match readable(&arguments) {
        Ok(arguments) => executor.admit(call_id, tool, arguments).await,
        Err(error) => executor.refuse(call_id, tool, Value::Null, error).await,
    };
    let result = until_stopped(attempt.stopped(), |stop| async move { admission.finish(&stop).await }).await?;
    Ok(result.to_reply())
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
fn readable(arguments: &RawValue) -> Result<Value, ToolError> {
    let bytes = arguments.get().len();
    let message = if bytes > MAX_TOOL_ARGUMENT_BYTES {
        format!("the arguments have {bytes} bytes; a call takes at most {MAX_TOOL_ARGUMENT_BYTES}")
    } else {
        match serde_json::from_str(arguments.get()) {
            Ok(value) => return Ok(value),
            Err(error) => format!("the arguments cannot be read: {error}"),
        }
    };
    Err(ToolError::new(ToolErrorKind::InvalidParameters, message))
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

fn to_api_error(error: RecordError) -> ApiError {
    match error {
        RecordError::IdReused => call_id_reused(),
        RecordError::Unavailable { source, is_transient } => not_recorded(source, is_transient),
    }
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
