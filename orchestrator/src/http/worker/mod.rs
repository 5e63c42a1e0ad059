//! The worker's side: what a container may ask of the orchestrator, over its own socket only. Contents and routes.

mod call_body;
mod caller;
mod complete;
mod event_quota;
mod events;
mod failures;
mod job;
mod llm;
mod pace;
mod polls;
mod prompt;
mod seats;
mod status;
mod tools;
mod under_way;

use std::{sync::Arc, time::Duration};

use axum::{
    Router,
    extract::DefaultBodyLimit,
    routing::{get, post},
};
use protocol::{CallId, Completion, JobId, JobState, ToolCallReply};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::{
    event_quota::EventQuota, failures::FailureLimiter, pace::Pace, polls::Polls, seats::Seats, under_way::UnderWay,
};
use crate::{
    auth::WorkerTokens,
    clock::Clock,
    dispatch::{DiskGauge, Pulse, TokenFiles, Wake},
    domain::{budget::DayLimits, job::JobRecord},
    http::problem::ApiError,
    llm::Gateway,
    store::{Store, StoreError},
    telemetry::metrics::Metrics,
    tools::BuiltinTools,
};

/// Bodies of model calls (contract: sandbox, Worker API).
const MAX_MODEL_BODY_BYTES: usize = 32 * 1024 * 1024;
/// Bodies of everything else.
pub const MAX_BODY_BYTES: usize = 1024 * 1024;

/// Between tries to write down what a call came to, growing from the first to the longest.
const FIRST_REST: Duration = Duration::from_millis(200);
const LONGEST_REST: Duration = Duration::from_secs(10);

/// What the worker's endpoints need.
#[derive(Clone)]
pub struct WorkerApi {
    pub(crate) store: Store,
    pub(crate) auth: WorkerTokens,
    pub(crate) clock: Clock,
    pub(crate) wake: Wake,
    pub(crate) gateway: Arc<Gateway>,
    pub(crate) tools: Arc<BuiltinTools>,
    pub(crate) pulse: Pulse,
    pub(crate) day_limits: DayLimits,
    pub(crate) metrics: Metrics,
    pub(crate) gauge: DiskGauge,
    pub(crate) lease: Duration,
    pub(crate) outage_patience: Duration,
    pub(crate) drain: CancellationToken,
    model_calls: Arc<UnderWay<Completion>>,
    tool_calls: Arc<UnderWay<ToolCallReply>>,
    model_seats: Arc<Seats>,
    tool_seats: Arc<Seats>,
    failed_model_calls: Arc<FailureLimiter>,
    failed_tool_calls: Arc<FailureLimiter>,
    pace: Arc<Pace>,
    quota: Arc<EventQuota>,
    polls: Arc<Polls>,
    pub(crate) token_files: TokenFiles,
}

/// What [`WorkerApi`] is made of.
pub struct WorkerApiParts {
    /// The truth.
    pub store: Store,
    /// Reads the workers' tokens.
    pub auth: WorkerTokens,
    /// Time.
    pub clock: Clock,
    /// The dispatcher's bell.
    pub wake: Wake,
    /// The way to the models.
    pub gateway: Arc<Gateway>,
    /// The orchestrator's tools.
    pub tools: Arc<BuiltinTools>,
    /// Removes a token once its session is open.
    pub token_files: TokenFiles,
    /// Who is alive.
    pub pulse: Pulse,
    /// What each user has for a day.
    pub day_limits: DayLimits,
    /// Where a worker's first call is measured.
    pub metrics: Metrics,
    /// Measures workspaces before a report of success is taken.
    pub gauge: DiskGauge,
    /// A worker's lease.
    pub lease: Duration,
    /// How long a worker asks a model that does not answer.
    pub outage_patience: Duration,
    /// Owns the calls under way: they outlive the request that asked, so that what they cost and did is recorded.
    pub tasks: TaskTracker,
    /// Fires when the process drains: long polls end, so that workers ask the next process.
    pub drain: CancellationToken,
}

impl WorkerApi {
    /// From its parts.
    pub fn new(parts: WorkerApiParts) -> Self {
        Self {
            store: parts.store,
            auth: parts.auth,
            clock: parts.clock,
            wake: parts.wake,
            gateway: parts.gateway,
            tools: parts.tools,
            pulse: parts.pulse,
            day_limits: parts.day_limits,
            metrics: parts.metrics,
            gauge: parts.gauge,
            lease: parts.lease,
            outage_patience: parts.outage_patience,
            drain: parts.drain,
            model_calls: UnderWay::new(parts.tasks.clone()),
            tool_calls: UnderWay::new(parts.tasks),
            model_seats: Arc::default(),
            tool_seats: Arc::default(),
            failed_model_calls: Arc::default(),
            failed_tool_calls: Arc::default(),
            pace: Arc::new(Pace::default()),
            quota: Arc::default(),
            polls: Arc::default(),
            token_files: parts.token_files,
        }
    }
}

impl WorkerApi {
    /// The attempt got somewhere; a job that was taken for stuck is not.
    async fn got_somewhere(&self, job: &JobRecord) -> Result<(), StoreError> {
        self.pulse.active(job.id, job.attempt);
        if job.state == JobState::Stuck {
            self.store.change(job.id, self.clock.now(), JobRecord::revived).await?;
        }
        Ok(())
    }

    /// A database that is busy or full for a while costs no answer that was paid for, has no call made twice, and leaves nothing
    /// reserved: what a call came to is written down once that goes again, or the process ends. Whoever asks again meanwhile
    /// waits for the same.
    async fn written<T, W>(&self, job: JobId, write: impl Fn() -> W) -> Result<T, StoreError>
    where
        W: Future<Output = Result<T, StoreError>>,
    {
        let mut rest = FIRST_REST;
        loop {
            let error = match write().await {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            if self.drain.is_cancelled() || !error.may_pass() {
                return Err(error);
            }
            tracing::warn!(job.id = %job, error = &error as &dyn std::error::Error, "a call is not written down yet");
            drop(error);
            tokio::select! {
                () = tokio::time::sleep(rest) => rest = (rest * 2).min(LONGEST_REST),
                () = self.drain.cancelled() => {}
            }
        }
    }
}

/// The routes. Requests carry a `SocketJob` extension that says whose socket they came through.
pub fn router(api: WorkerApi) -> Router {
    let model = Router::new()
        .route("/worker/{job_id}/llm/complete", post(llm::complete))
        .route("/worker/{job_id}/llm/complete_with_tools", post(llm::complete_with_tools))
        .layer(DefaultBodyLimit::max(MAX_MODEL_BODY_BYTES));
    let rest = Router::new()
        .route("/health", get(health))
        .route("/worker/{job_id}/health", get(health))
        .route("/worker/{job_id}/job", get(job::get))
        .route("/worker/{job_id}/tools", get(tools::list))
        .route("/worker/{job_id}/tools/{name}", post(tools::call))
        .route("/worker/{job_id}/events", post(events::append))
        .route("/worker/{job_id}/prompt", get(prompt::next))
        .route("/worker/{job_id}/status", post(status::beat))
        .route("/worker/{job_id}/complete", post(complete::complete))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES));
    model.merge(rest).with_state(api)
}

/// A call id is a name, not a text.
const MAX_CALL_ID_BYTES: usize = 200;

fn check_call_id(call_id: &CallId) -> Result<(), ApiError> {
    if (1..=MAX_CALL_ID_BYTES).contains(&call_id.0.len()) {
        return Ok(());
    }
    Err(ApiError::field("call_id", format!("must be 1 to {MAX_CALL_ID_BYTES} bytes")))
}

async fn health() -> axum::Json<serde_json::Value> {
    axum::Json(serde_json::json!({"status": "ok"}))
}
