//! `POST …/llm/complete` and `…/llm/complete_with_tools`: the model, paid once per call id.
//!
//! A call runs to its end and is recorded though the worker that asked has gone; it is aborted, and recorded so, at once
//! when its job is to stop.

use std::sync::Arc;

use axum::{Json, extract::State};
use protocol::{CONTEXT_LENGTH, CallId, Completion, CompletionRequest, ErrorCode, EventData};

use super::{
    WorkerApi,
    call_body::CallBody,
    call_id_reused,
    caller::{CallInFlight, ended},
    check_call_id, flight_failed, too_many_failed_calls,
};
use crate::{
    auth,
    dispatch::{Admission, Attempt, InFlightCall, Permit, StopCause},
    domain::job::JobRecord,
    failpoint,
    http::{
        extract::WorkerJsonBytes,
        problem::{ApiError, Carried},
    },
    llm::{Answer, AskError, CallContext, Caller, ErrorKind, Failure},
    store::{CallRow, CallsMade, Reserved, StoreError},
};

/// Calls of any end for each that may be answered, and those that every job may make besides (contract: agent, Gateway).
const CALLS_PER_ITERATION: u64 = 3;
const EXTRA_CALLS: u64 = 10;

pub(super) async fn complete(
    State(api): State<WorkerApi>,
    call: CallInFlight,
    body: WorkerJsonBytes<CallBody>,
) -> Result<Json<Completion>, Carried> {
    let body = WorkerJsonBytes { value: body.value.without_tools(), bytes: body.bytes };
    answer(api, call, body).await
}

pub(super) async fn complete_with_tools(
    State(api): State<WorkerApi>,
    call: CallInFlight,
    body: WorkerJsonBytes<CallBody>,
) -> Result<Json<Completion>, Carried> {
    answer(api, call, body).await
}

async fn answer(
    api: WorkerApi,
    CallInFlight { job, attempt, in_flight }: CallInFlight,
    body: WorkerJsonBytes<CallBody>,
) -> Result<Json<Completion>, Carried> {
    let WorkerJsonBytes { value: body, bytes } = body;
    check_call_id(&body.call_id)?;
    attempt.limits().failed_model_calls.check(api.clock.monotonic()).map_err(too_many_failed_calls)?;
    // A worker that asks again sends the same bytes.
    let digest = auth::digest(&bytes);
    drop(bytes);
    let key = (attempt.key(), body.call_id.clone());
    let calls = api.model_calls.clone();
    let question = Question { job, attempt, body, digest: digest.clone(), _in_flight: in_flight };
    let answer = calls
        .run(key, &digest, async move { question.ask(&api).await.map(Arc::new).map_err(Carried::from) })
        .await
        .map_err(flight_failed)??;
    Ok(Json(Completion::clone(&answer)))
}

struct Question {
    job: Arc<JobRecord>,
    attempt: Arc<Attempt>,
    body: CallBody,
    digest: String,
    /// The call is in flight for as long as this lives.
    _in_flight: InFlightCall,
}

impl Question {
    async fn ask(self, api: &WorkerApi) -> Result<Completion, ApiError> {
        let attempt = Arc::clone(&self.attempt);
        let answer = self.ask_once(api).await;
        if answer.is_err() {
            // Calls that were admitted together may find the bucket empty: the next one waits.
            let _ = attempt.limits().failed_model_calls.take(1, api.clock.monotonic());
        }
        answer
    }

    /// Looks for the recorded answer; else asks, records, and only then lets the answer be used.
    async fn ask_once(self, api: &WorkerApi) -> Result<Completion, ApiError> {
        let Self { job, attempt, body, digest, _in_flight } = self;
        let key = (attempt.key(), body.call_id.clone());
        let mut made = CallsMade::default();
        let look = async {
            let (known, calls) = api.store.model_calls_made(job.id, job.attempt, &key.1).await?;
            made = calls;
            // One that failed may be made again.
            let known = known.filter(|known| known.answer.is_some() || !known.asked(&digest));
            Ok::<_, StoreError>((known, calls_left(&job, calls)))
        };
        let admission = attempt.limits().admit_model_call(look).await?;
        if let Admission::Recorded(known) = admission {
            let same = known.asked(&digest);
            return known.answer.filter(|_| same).ok_or_else(call_id_reused);
        }
        if let Some(cause) = attempt.stop_cause() {
            return Err(stopped(cause));
        }
        let Admission::Granted(permit) = admission else { return Err(limit_reached(&job, made)) };
        let caller = Caller { job: job.id, user: &job.brief.user_id };
        let context = CallContext { caller, job_title: Some(&job.brief.title), model: Some(&job.brief.model) };
        // What no provider would be asked for reserves nothing.
        if let Some(failure) = api.gateway.refusal(&context) {
            return Err(refusal(&attempt, failure));
        }
        let slot = tokio::select! {
            biased;
            cause = attempt.stopped() => return Err(stopped(cause)),
            slot = permit.in_flight() => slot,
        };
        let mut request = body.into_request(|| api.tools.offered(job.brief.tools.as_deref()));
        let reserved = reserve(api, &job, &request).await?;
        request.max_tokens = Some(reserved.amount.max_output_tokens);
        let stop = async {
            attempt.stopped().await;
        };
        let asked = api.gateway.ask(&request, &context, stop).await;
        drop((slot, request));
        match asked {
            Err(AskError { failure, reached_provider: false, .. }) => {
                let (store, user, reserved) = (&api.store, &job.brief.user_id, &reserved);
                api.record_outcome(job.id, || store.release(job.id, user, reserved)).await?;
                Err(refusal(&attempt, failure))
            }
            asked => Call { attempt: &attempt, id: key.1, digest, reserved, permit }.record(api, asked).await,
        }
    }
}

/// A call that a provider was asked to answer.
struct Call<'a> {
    attempt: &'a Attempt,
    id: CallId,
    digest: String,
    reserved: Reserved,
    permit: Permit,
}

impl Call<'_> {
    /// Writes down what it came to, and only then gives the answer.
    async fn record(self, api: &WorkerApi, asked: Result<Answer, AskError>) -> Result<Completion, ApiError> {
        let Self { attempt, id, digest, reserved, permit } = self;
        let (cost, answer, result) = match asked {
            Ok(answer) => (answer.cost, Ok(answer.completion.clone()), Ok(answer.completion)),
            Err(AskError { failure, cost, .. }) => (cost, Err(failure.to_string()), Err(failure)),
        };
        let row = CallRow {
            job: attempt.key().job,
            attempt: attempt.key().attempt,
            call_id: id,
            request_digest: digest,
            at: api.clock.now(),
            provider: cost.provider,
            model: cost.model,
            usage: cost.usage,
            cost_micro_usd: cost.cost_micro_usd,
            duration_ms: u64::try_from(cost.duration.as_millis()).unwrap_or(u64::MAX),
            reserved,
            answer,
        };
        failpoint::reach("llm.after_answer");
        let (store, record) = (&api.store, &row);
        let record = api.record_outcome(attempt.key().job, move || store.record_model_call(record));
        let notice = permit.complete(record).await?;
        match result {
            Ok(completion) => Ok(Completion { notice, ..completion }),
            Err(failure) => Err(refusal(attempt, failure)),
        }
    }
}

/// How many more calls the job may make: so many answers, and so many calls of any end.
fn calls_left(job: &JobRecord, made: CallsMade) -> u64 {
    let iterations = u64::from(job.brief.limits.max_iterations);
    let answers = iterations.saturating_sub(made.answered);
    answers.min(max_calls(iterations).saturating_sub(made.all))
}

const fn max_calls(max_iterations: u64) -> u64 {
    max_iterations * CALLS_PER_ITERATION + EXTRA_CALLS
}

fn limit_reached(job: &JobRecord, made: CallsMade) -> ApiError {
    let iterations = u64::from(job.brief.limits.max_iterations);
    let message = if made.answered < iterations && made.all >= max_calls(iterations) {
        format!("the job has made {} model calls, failed ones included; it may make no more", max_calls(iterations))
    } else {
        format!("limits.max_iterations = {iterations} is reached")
    };
    ApiError::new(ErrorCode::IterationLimit, message)
}

/// Puts the worst case aside in every budget that holds this call.
async fn reserve(api: &WorkerApi, job: &JobRecord, request: &CompletionRequest) -> Result<Reserved, ApiError> {
    let quote = api.gateway.quote(request, &job.brief.model);
    let limits = &job.brief.limits;
    let held = limits.max_tokens > 0
        || limits.max_cost_usd > 0.0
        || job.brief.parent_id.is_some()
        || !api.day_limits.is_none();
    if !held {
        return Ok(Reserved::nothing(quote.max_output_tokens));
    }
    if limits.max_cost_usd > 0.0 && quote.prices.is_none() && job.usage.llm_calls == 0 {
        let message =
            format!("the price of {} is not known: limits.max_cost_usd is not held, only tokens are", job.brief.model);
        let told = EventData::Status { message, iteration: 0 };
        api.store.append_if_live(job.id, job.attempt, api.clock.now(), told).await?;
    }
    let reserved = api.store.reserve(job.id, &job.brief.user_id, api.clock.now(), (&quote, &api.day_limits)).await?;
    reserved.map_err(|spent| {
        let code = if spent.cost { ErrorCode::CostBudget } else { ErrorCode::TokenBudget };
        ApiError::new(code, spent.message())
    })
}

/// What a worker is told whose call nobody waits for.
fn stopped(cause: StopCause) -> ApiError {
    match cause {
        StopCause::Cancelled => ApiError::new(ErrorCode::JobCancelled, "the job is being cancelled; stop and report"),
        StopCause::Ended => ended(),
    }
}

fn refusal(attempt: &Attempt, failure: Failure) -> ApiError {
    match failure {
        Failure::RateLimited { kind, retry_after, origin, message } => {
            // The code says already that it is a rate limit.
            let detail = if kind == ErrorKind::RateLimited { message } else { format!("{kind}: {message}") };
            let error = ApiError::new(ErrorCode::RateLimited, detail).with_reason(origin.as_str());
            match retry_after {
                Some(wait) => error.with_retry_after(wait),
                None => error,
            }
        }
        Failure::Failed { kind: ErrorKind::Aborted, .. } => stopped(attempt.stop_cause().unwrap_or(StopCause::Ended)),
        failed @ Failure::Failed { kind: ErrorKind::ContextLength, .. } => {
            ApiError::new(ErrorCode::LlmError, failed.to_string()).with_reason(CONTEXT_LENGTH)
        }
        failed @ Failure::Failed { .. } => ApiError::new(ErrorCode::LlmError, failed.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use protocol::JobState;
    use rstest::rstest;

    use super::*;
    use crate::domain::job::sample;

    #[rstest]
    #[case::none(0, 0, 2)]
    #[case::answers_count(1, 1, 1)]
    #[case::failed_ones_leave_the_iterations(1, 9, 1)]
    #[case::calls_of_any_end_have_a_cap(1, 16, 0)]
    #[case::at_the_cap(0, 15, 1)]
    #[case::beyond(9, 99, 0)]
    fn calls_of_any_end_are_capped(#[case] answered: u64, #[case] all: u64, #[case] left: u64) {
        let mut job = sample::job(JobState::InProgress);
        job.brief_mut().limits.max_iterations = 2;
        assert_eq!(calls_left(&job, CallsMade { answered, all }), left);
    }
}
