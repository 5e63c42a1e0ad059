//! `POST …/llm/complete` and `…/llm/complete_with_tools`: the model, paid once per call id.
//!
//! A call runs to its end and is recorded though the worker that asked has gone; it is aborted, and recorded so, at once
//! when its job is to stop.

use std::time::Duration;

use axum::{Json, extract::State};
use protocol::{Completion, CompletionRequest, ErrorCode, EventData};

use super::{
    WorkerApi,
    caller::{Caller, ended},
    check_call_id,
    seats::Entry,
    under_way::{Key, reused},
};
use crate::{
    auth,
    domain::job::JobRecord,
    failpoint,
    http::{
        extract::WorkerJsonBytes,
        problem::{ApiError, Carried},
    },
    llm::{AskError, CallContext, ErrorKind, Failure},
    store::{CallRow, Reserved, Store, StoreError},
};

pub(super) async fn complete(
    State(api): State<WorkerApi>,
    Caller { job }: Caller,
    mut body: WorkerJsonBytes<CompletionRequest>,
) -> Result<Json<Completion>, Carried> {
    body.value.tools.clear();
    answer(api, job, body).await
}

pub(super) async fn complete_with_tools(
    State(api): State<WorkerApi>,
    Caller { job }: Caller,
    body: WorkerJsonBytes<CompletionRequest>,
) -> Result<Json<Completion>, Carried> {
    answer(api, job, body).await
}

async fn answer(
    api: WorkerApi,
    job: JobRecord,
    body: WorkerJsonBytes<CompletionRequest>,
) -> Result<Json<Completion>, Carried> {
    let WorkerJsonBytes { value: request, bytes } = body;
    check_call_id(&request.call_id)?;
    // A worker that asks again sends the same bytes.
    let digest = auth::digest(&bytes);
    let key = (job.id, job.attempt, request.call_id.clone());
    let calls = api.model_calls.clone();
    let question = Question { job, key: key.clone(), request, digest: digest.clone() };
    let answer = calls.join(key, &digest, async move { question.ask(&api).await }).await?;
    Ok(Json(Completion::clone(&answer)))
}

struct Question {
    job: JobRecord,
    key: Key,
    request: CompletionRequest,
    digest: String,
}

impl Question {
    /// Looks for the recorded answer; else asks, records, and only then lets the answer be used.
    async fn ask(self, api: &WorkerApi) -> Result<Completion, ApiError> {
        let Self { job, key, mut request, digest } = self;
        // The loop keeps this limit too; a worker that is not our loop does not get past it here.
        let limit = job.limits.max_iterations;
        let look = async {
            let (known, made) = api.store.model_calls_made(key.0, key.1, &key.2).await?;
            // One that failed may be made again.
            let known = known.filter(|known| known.answer.is_some() || !known.asked(&digest));
            Ok::<_, StoreError>((known, made))
        };
        let entry = api.model_seats.enter(key.0, limit.into(), look).await?;
        if let Entry::Known(known) = entry {
            let same = known.asked(&digest);
            return known.answer.filter(|_| same).ok_or_else(reused);
        }
        if job.cancel_requested_at.is_some() {
            return Err(cancelled());
        }
        let Entry::Free(seat) = entry else {
            return Err(ApiError::new(
                ErrorCode::IterationLimit,
                format!("limits.max_iterations = {limit} is reached"),
            ));
        };
        let reserved = reserve(api, &job, &request).await?;
        request.max_tokens = Some(reserved.amount.max_output_tokens);
        let _in_flight = api.pulse.in_flight(job.id, job.attempt);
        let context = CallContext { job_title: Some(&job.title), model: Some(&job.model) };
        let asked = api.gateway.ask(&request, &context, unwanted(&api.store, &job)).await;
        let (spent, answer, result) = match asked {
            Ok(answer) => (answer.spent, Ok(answer.completion.clone()), Ok(answer.completion)),
            Err(AskError { failure, spent }) => (spent, Err(failure.to_string()), Err(failure)),
        };
        let row = CallRow {
            job: key.0,
            attempt: key.1,
            call_id: key.2,
            request_digest: digest,
            at: api.clock.now(),
            provider: spent.provider,
            model: spent.model,
            usage: spent.usage,
            cost_micro_usd: spent.cost_micro_usd,
            duration_ms: u64::try_from(spent.duration.as_millis()).unwrap_or(u64::MAX),
            reserved,
            answer,
        };
        failpoint::reach("llm.after_answer");
        let (store, record) = (&api.store, &row);
        let record = api.written(job.id, move || store.record_model_call(record));
        let notice = seat.leave(record).await?;
        match result {
            Ok(completion) => Ok(Completion { notice, ..completion }),
            Err(failure) => Err(refusal(failure, is_to_stop(&api.store, &job).await?)),
        }
    }
}

/// Puts the worst case aside in every budget that holds this call.
async fn reserve(api: &WorkerApi, job: &JobRecord, request: &CompletionRequest) -> Result<Reserved, ApiError> {
    let quote = api.gateway.quote(request, &job.model);
    let limits = &job.limits;
    let held =
        limits.max_tokens > 0 || limits.max_cost_usd > 0.0 || job.parent_id.is_some() || !api.day_limits.is_none();
    if !held {
        return Ok(Reserved::nothing(quote.max_output_tokens));
    }
    if limits.max_cost_usd > 0.0 && quote.prices.is_none() && job.usage.llm_calls == 0 {
        let message =
            format!("the price of {} is not known: limits.max_cost_usd is not held, only tokens are", job.model);
        let told = EventData::Status { message, iteration: 0 };
        api.store.tell(job.id, job.attempt, api.clock.now(), told).await?;
    }
    let reserved = api.store.reserve(job.id, &job.user_id, api.clock.now(), (&quote, &api.day_limits)).await?;
    reserved.map_err(|spent| {
        let code = if spent.cost { ErrorCode::CostBudget } else { ErrorCode::TokenBudget };
        ApiError::new(code, spent.message())
    })
}

/// What becomes of a job's call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Yes,
    /// The job is to stop.
    Cancelled,
    /// The attempt is over.
    Ended,
}

/// The job was read a moment ago: what happened to it since then is looked for only in calls that take a while.
const FIRST_LOOK: Duration = Duration::from_millis(50);

/// Returns once nobody waits for the answers of this attempt any more.
async fn unwanted(store: &Store, job: &JobRecord) {
    let mut bell = store.feed().follow(job.id);
    tokio::select! {
        () = bell.changed() => {}
        () = tokio::time::sleep(FIRST_LOOK) => {}
    }
    loop {
        match is_to_stop(store, job).await {
            // A store that is not well is heard of when the call is recorded.
            Ok(Wanted::Yes) | Err(_) => bell.changed().await,
            Ok(Wanted::Cancelled | Wanted::Ended) => return,
        }
    }
}

async fn is_to_stop(store: &Store, job: &JobRecord) -> Result<Wanted, StoreError> {
    Ok(match store.is_to_stop(job.id, job.attempt).await? {
        Some(true) => Wanted::Cancelled,
        Some(false) => Wanted::Yes,
        None => Wanted::Ended,
    })
}

fn cancelled() -> ApiError {
    ApiError::new(ErrorCode::JobCancelled, "the job is to stop; report what there is")
}

fn refusal(failure: Failure, wanted: Wanted) -> ApiError {
    match failure {
        Failure::RateLimited { retry_after, message } => {
            let error = ApiError::new(ErrorCode::RateLimited, message);
            match retry_after {
                Some(wait) => error.with_retry_after(wait),
                None => error,
            }
        }
        Failure::Failed { kind: ErrorKind::Aborted, .. } if wanted == Wanted::Cancelled => cancelled(),
        Failure::Failed { kind: ErrorKind::Aborted, .. } => ended(),
        failed @ Failure::Failed { .. } => ApiError::new(ErrorCode::LlmError, failed.to_string()),
    }
}
