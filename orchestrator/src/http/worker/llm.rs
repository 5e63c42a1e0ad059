//! `POST …/llm/complete` and `…/llm/complete_with_tools`: the model, paid once per call id.
//!
//! Owns the calls under way: one runs to its end and is recorded though the worker that asked has gone; a worker that asks
//! again joins it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{Json, extract::State};
use futures_util::{
    FutureExt,
    future::{BoxFuture, Shared},
};
use protocol::{CallId, Completion, CompletionRequest, ErrorCode, JobId};
use tokio_util::task::TaskTracker;

use super::{WorkerApi, caller::Caller, check_call_id};
use crate::{
    domain::job::JobRecord,
    http::{extract::WorkerJson, problem::ApiError},
    llm::{self, AskError, CallContext},
    store::CallRow,
};

type Key = (JobId, u32, CallId);
type Asked = Result<Arc<Completion>, Failure>;

/// Why there is no answer, for everyone who waits for it.
#[derive(Debug, Clone)]
enum Failure {
    RateLimited { retry_after: Option<Duration>, message: String },
    Failed { message: String },
    NotRecorded,
}

/// The calls under way.
pub(super) struct Calls {
    tasks: TaskTracker,
    under_way: Mutex<HashMap<Key, Shared<BoxFuture<'static, Asked>>>>,
}

impl Calls {
    pub(super) fn new(tasks: TaskTracker) -> Self {
        Self { tasks, under_way: Mutex::new(HashMap::new()) }
    }

    fn join(&self, key: Key, start: impl FnOnce() -> BoxFuture<'static, Asked>) -> Shared<BoxFuture<'static, Asked>> {
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        under_way
            .entry(key)
            .or_insert_with(|| {
                let task = self.tasks.spawn(start());
                task.map(|done| done.unwrap_or(Err(Failure::NotRecorded))).boxed().shared()
            })
            .clone()
    }

    fn forget(&self, key: &Key) {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

pub(super) async fn complete(
    State(api): State<WorkerApi>,
    Caller { job }: Caller,
    WorkerJson(mut request): WorkerJson<CompletionRequest>,
) -> Result<Json<Completion>, ApiError> {
    request.tools.clear();
    answer(api, job, request).await
}

pub(super) async fn complete_with_tools(
    State(api): State<WorkerApi>,
    Caller { job }: Caller,
    WorkerJson(request): WorkerJson<CompletionRequest>,
) -> Result<Json<Completion>, ApiError> {
    answer(api, job, request).await
}

async fn answer(api: WorkerApi, job: JobRecord, request: CompletionRequest) -> Result<Json<Completion>, ApiError> {
    check_call_id(&request.call_id)?;
    if let Some(known) = api.store.model_answer(job.id, job.attempt, &request.call_id).await? {
        return Ok(Json(known));
    }
    // The loop keeps this limit too; a worker that is not our loop does not get past it here.
    if job.usage.iterations >= u64::from(job.limits.max_iterations) {
        let limit = job.limits.max_iterations;
        return Err(ApiError::new(ErrorCode::IterationLimit, format!("limits.max_iterations = {limit} is reached")));
    }
    let key = (job.id, job.attempt, request.call_id.clone());
    let asking = api.calls.join(key.clone(), || {
        let api = api.clone();
        async move { ask(&api, &job, &key, &request).await }.boxed()
    });
    match asking.await {
        Ok(completion) => Ok(Json(Completion::clone(&completion))),
        Err(Failure::RateLimited { retry_after, message }) => {
            let error = ApiError::new(ErrorCode::RateLimited, message);
            Err(match retry_after {
                Some(wait) => error.with_retry_after(wait),
                None => error,
            })
        }
        Err(Failure::Failed { message }) => Err(ApiError::new(ErrorCode::LlmError, message)),
        Err(Failure::NotRecorded) => Err(ApiError::new(ErrorCode::Internal, "the model call could not be recorded")),
    }
}

/// Asks, records, and only then lets the answer be used.
async fn ask(api: &WorkerApi, job: &JobRecord, key: &Key, request: &CompletionRequest) -> Asked {
    // An earlier task with this name may have ended after the caller looked and before it joined: not paid twice.
    if let Ok(Some(known)) = api.store.model_answer(key.0, key.1, &key.2).await {
        api.calls.forget(key);
        return Ok(Arc::new(known));
    }
    let _in_flight = api.pulse.in_flight(job.id, job.attempt);
    let context = CallContext { job_title: Some(&job.title), model: Some(&job.model) };
    let (spent, answer, result) = match api.gateway.ask(request, &context).await {
        Ok(answer) => (answer.spent, Ok(answer.completion.clone()), Ok(Arc::new(answer.completion))),
        Err(error) => {
            let (told, failed) = (error.to_string(), failure(&error));
            (error.spent, Err(told), Err(failed))
        }
    };
    let row = CallRow {
        job: key.0,
        attempt: key.1,
        call_id: key.2.clone(),
        at: api.clock.now(),
        provider: spent.provider,
        model: spent.model,
        usage: spent.usage,
        cost_micro_usd: spent.cost_micro_usd,
        duration_ms: u64::try_from(spent.duration.as_millis()).unwrap_or(u64::MAX),
        answer,
    };
    let recorded = api.store.record_model_call(&row).await;
    api.calls.forget(key);
    match recorded {
        Ok(()) => result,
        Err(error) => {
            tracing::error!(job.id = %key.0, error = &error as &dyn std::error::Error, "a model call could not be recorded");
            Err(Failure::NotRecorded)
        }
    }
}

fn failure(error: &AskError) -> Failure {
    match &error.failure {
        llm::Failure::RateLimited { retry_after, message } => {
            Failure::RateLimited { retry_after: *retry_after, message: message.clone() }
        }
        failed @ llm::Failure::Failed { .. } => Failure::Failed { message: failed.to_string() },
    }
}
