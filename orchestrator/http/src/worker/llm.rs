//! `POST …/llm/complete` and `…/llm/complete_with_tools`: a model call of the job, with the tools that the body names.
//!
//! Maps between HTTP and the metered call: recording, budgets and permits are `llm::metering`'s. A call runs to its end even if
//! its worker disconnects, and is aborted at once when its job is to stop.

use std::sync::Arc;

use agent::DeltaSink;
use axum::{Json, extract::State};
use protocol::{CONTEXT_LENGTH, Completion, ErrorCode};

use super::{
    WorkerApi,
    call_body::CallBody,
    call_id_reused,
    caller::{CallInFlight, ended},
    check_call_id, flight_failed, not_recorded, too_many_failed_calls,
};
use base::digest::sha256_hex;
use dispatch::{Attempt, AttemptStopCause};
use llm::{
    ErrorKind, Failure,
    metering::{CallError, CallName},
};

use crate::{
    extract::WorkerJson,
    problem::{ApiError, ErrorExtension},
};

pub(super) async fn complete(
    State(api): State<WorkerApi>,
    CallInFlight { job, attempt, in_flight }: CallInFlight,
    WorkerJson { value: body, bytes }: WorkerJson<CallBody>,
) -> Result<Json<Completion>, ErrorExtension> {
    check_call_id(&body.call_id)?;
    attempt.limits().failed_model_calls.check(api.clock.monotonic()).map_err(too_many_failed_calls)?;
    // A worker that retries sends the same bytes.
    let name = CallName { id: body.call_id.clone(), request_digest: sha256_hex(&bytes) };
    drop(bytes);
    let (id, digest) = (name.id.clone(), name.request_digest.clone());
    let own = Arc::clone(&attempt);
    let context = api.tools.context_of(&job).await.map_err(ApiError::from)?;
    let tools = if body.names_tools() { api.tools.offered(context).await } else { Vec::new() };
    let call = async move {
        let _in_flight = in_flight;
        let account = own.account();
        let request = || body.into_request(|| tools);
        let stop = || async {
            own.stopped().await;
        };
        let answer = api.meter.complete(&account, name, request, &DeltaSink::discard(), stop).await;
        if answer.is_err() {
            // Calls that were admitted together may find the bucket empty: the next one waits.
            let _ = own.limits().failed_model_calls.take(1, api.clock.monotonic());
        }
        answer.map(Arc::new)
    };
    let answer = attempt.model_calls.run(id, &digest, call).await.map_err(flight_failed)?;
    let answer = answer.map_err(|error| to_api_error(error, &attempt))?;
    Ok(Json(Completion::clone(&answer)))
}

fn to_api_error(error: CallError, attempt: &Attempt) -> ApiError {
    match error {
        CallError::IdReused => call_id_reused(),
        CallError::LimitReached(message) => ApiError::new(ErrorCode::IterationLimit, message),
        CallError::BudgetExceeded(budget) => {
            let code = if budget.is_cost_limit { ErrorCode::CostBudget } else { ErrorCode::TokenBudget };
            ApiError::new(code, budget.message())
        }
        CallError::Unpriced(unpriced) => ApiError::new(ErrorCode::CostBudget, unpriced.to_string()),
        CallError::Stopped | CallError::Failed(Failure::Failed { kind: ErrorKind::Aborted, .. }) => {
            match attempt.stop_cause().unwrap_or(AttemptStopCause::Ended) {
                AttemptStopCause::Cancelled => {
                    ApiError::new(ErrorCode::JobCancelled, "the job is being cancelled; stop and report")
                }
                AttemptStopCause::Ended => ended(),
            }
        }
        CallError::Failed(Failure::RateLimited { kind, retry_after, origin, message }) => {
            // The code already identifies a rate limit.
            let detail = if kind == ErrorKind::RateLimited { message } else { format!("{kind}: {message}") };
            let error = ApiError::new(ErrorCode::RateLimited, detail).with_reason(origin.as_str());
            match retry_after {
                Some(wait) => error.with_retry_after(wait),
                None => error,
            }
        }
        CallError::Failed(failed @ Failure::Failed { kind: ErrorKind::ContextLength, .. }) => {
            ApiError::new(ErrorCode::LlmError, failed.to_string()).with_reason(CONTEXT_LENGTH)
        }
        CallError::Failed(failed @ Failure::Failed { .. }) => ApiError::new(ErrorCode::LlmError, failed.to_string()),
        CallError::Unsearched(error) => error.into(),
        CallError::Store(error) => {
            let is_transient = error.is_transient();
            not_recorded(error, is_transient)
        }
    }
}
