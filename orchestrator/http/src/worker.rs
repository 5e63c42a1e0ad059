//! The worker API: requests that a container may make, over its own socket only. Contents and routes.

mod call_body;
mod caller;
mod complete;
mod events;
mod forward;
mod job;
mod llm;
mod prompt;
mod status;
mod tools;

use std::{error::Error, sync::Arc, time::Duration};

use ::llm::metering::{FlightError, Meter};
use ::tools::BuiltinTools;
use auth::WorkerTokens;
use axum::{
    Router,
    extract::DefaultBodyLimit,
    routing::{get, post},
};
use base::clock::Clock;
use dispatch::{AttemptRegistry, DispatcherWaker, EventIngestion, TokenFiles, WorkspaceMeasurer};
use egress::EgressClient;
use protocol::{
    CallId, ErrorCode, RateLimitOrigin,
    limits::{MAX_CALL_ID_BYTES, MAX_MODEL_BODY_BYTES},
};
use store::Store;
use telemetry::metrics::Metrics;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::problem::ApiError;

pub use self::forward::{Tunnels, intercept as intercept_proxy_requests};
pub use protocol::limits::MAX_WORKER_BODY_BYTES as MAX_BODY_BYTES;

/// The state of the worker's endpoints.
#[derive(Clone)]
pub struct WorkerApi {
    /// The store, by the control plane's connections.
    pub store: Store,
    pub auth: WorkerTokens,
    pub attempts: Arc<AttemptRegistry>,
    pub clock: Clock,
    pub waker: DispatcherWaker,
    /// Makes model calls.
    pub meter: Meter,
    pub ingestion: EventIngestion,
    pub tools: Arc<BuiltinTools>,
    /// Removes a token's file once its session is open.
    pub token_files: TokenFiles,
    /// Where a worker's first call is measured.
    pub metrics: Metrics,
    /// Measures workspaces before a report of success is accepted.
    pub workspace_measurer: WorkspaceMeasurer,
    /// Connects to hosts that jobs may reach.
    pub egress: EgressClient,
    /// Counts the connections to them.
    pub tunnels: Tunnels,
    /// Owns tasks that run to their end even if the worker disconnects.
    pub tasks: TaskTracker,
    /// How long a worker's lease lasts.
    pub lease: Duration,
    /// How long a worker retries a model that does not answer.
    pub outage_patience: Duration,
    /// How long after its lease has expired a worker gives up.
    pub worker_patience: Duration,
    /// Cancelled when the process drains: long polls end, so that workers ask the next process.
    pub drain: CancellationToken,
}

/// The routes. Requests carry the `Arc<Attempt>` of the socket that they came through.
pub fn router(api: WorkerApi) -> Router {
    let model = Router::new()
        .route("/worker/{job_id}/llm/complete", post(llm::complete))
        .route("/worker/{job_id}/llm/complete_with_tools", post(llm::complete))
        .layer(DefaultBodyLimit::max(MAX_MODEL_BODY_BYTES));
    let rest = Router::new()
        .route("/health", get(health))
        .route("/worker/{job_id}/health", get(health))
        .route("/worker/{job_id}/job", get(job::get))
        .route("/worker/{job_id}/tools", get(tools::list))
        .route("/worker/{job_id}/tools/{name}", post(tools::call))
        .route("/worker/{job_id}/events", post(events::append))
        .route("/worker/{job_id}/prompt", get(prompt::next))
        .route("/worker/{job_id}/status", post(status::heartbeat))
        .route("/worker/{job_id}/complete", post(complete::complete))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES));
    model.merge(rest).with_state(api)
}

fn check_call_id(call_id: &CallId) -> Result<(), ApiError> {
    if (1..=MAX_CALL_ID_BYTES).contains(&call_id.0.len()) {
        return Ok(());
    }
    Err(ApiError::field("call_id", format!("must be 1 to {MAX_CALL_ID_BYTES} bytes")))
}

/// The call id is that of another call.
fn call_id_reused() -> ApiError {
    ApiError::new(ErrorCode::CallIdReused, "call_id was used for another request; use a new one")
}

/// A call without a result.
fn flight_failed(error: FlightError) -> ApiError {
    match error {
        FlightError::IdReused => call_id_reused(),
        FlightError::Abandoned => ApiError::internal(error),
    }
}

/// A call that could not be recorded.
fn not_recorded(error: impl Into<Box<dyn Error + Send + Sync>>, is_transient: bool) -> ApiError {
    if is_transient {
        ApiError::new(ErrorCode::Unavailable, "the database is busy; try again in a moment").with_source(error)
    } else {
        ApiError::internal(error)
    }
}

/// Refuses a call while too many others of the job have just failed.
fn too_many_failed_calls(wait: Duration) -> ApiError {
    ApiError::new(ErrorCode::RateLimited, "too many calls of this job have failed; wait before the next one")
        .with_reason(RateLimitOrigin::Local.as_str())
        .with_retry_after(wait)
}

async fn health() -> axum::Json<serde_json::Value> {
    axum::Json(serde_json::json!({"status": "ok"}))
}
