//! The public API: one resource per file. Owns the state that endpoints share, and the order of what wraps them.

mod account;
mod chat;
mod dashboard;
mod docs;
mod events;
mod gates;
mod health;
mod home;
mod jobs;
mod mcp;
mod memory;
mod operation;
mod request;
mod response;
mod routines;
mod session;
mod tools;
mod usage;

use std::{path::PathBuf, sync::Arc, time::Duration};

use ::chat::Chats;
use ::secrets::{LeakDetectors, Secrets};
use ::tools::BuiltinTools;
use auth::{Identity, SigningKey};
use axum::{Json, Router, middleware, routing::get};
use base::{
    clock::Clock,
    per_user_semaphore::{PerUserSemaphore, Permit},
};
use dispatch::{DispatcherWaker, JobSubmitter, Readiness, RoutineEditor};
use domain::settings::SettingsBounds;
use llm::Gateway;
use protocol::{ErrorCode, InstanceId, LlmCallRecord, Page, ToolActionRecord, WorkId};
use store::{CallPosition, PUBLIC_READERS, SEARCH_READERS, Store};
use telemetry::metrics::Metrics;
use tokio_util::task::TaskTracker;
use utoipa_axum::router::OpenApiRouter;
use workspace::{FileWork, RetentionPeriod, UploadRegistry, Workspaces};

use crate::{metrics::MetricsEndpoint, problem::ApiError};

pub use docs::document;
pub use health::Health;
pub use routines::Inbound;

use self::{
    request::{PageParams, audit_entry, cursor, user_rate::UserRate},
    response::compression,
    session::FailedLogins,
};

/// Maximum body of a request, unless its route has another limit.
pub const MAX_BODY_BYTES: usize = 1024 * 1024;

/// The state of the public endpoints.
#[derive(Clone)]
pub struct PublicApi(Arc<PublicParts>);

/// What all requests share: limits of streams, of failed logins, of reads of many rows and searches, of audit entries
/// for refused requests, and of text for memory.
pub struct RequestLimits {
    failed_logins: FailedLogins,
    refusals: UserRate,
    memory_kib: UserRate,
    list_reads: PerUserSemaphore,
    searches: PerUserSemaphore,
    streams: PerUserSemaphore,
}

impl Default for RequestLimits {
    fn default() -> Self {
        Self {
            failed_logins: FailedLogins::default(),
            refusals: UserRate::of_refusals(),
            memory_kib: UserRate::of_memory_kib(),
            list_reads: PerUserSemaphore::new(MAX_LIST_READS, MAX_LIST_READS_PER_USER),
            searches: PerUserSemaphore::new(SEARCH_READERS as usize, MAX_SEARCHES_PER_USER),
            streams: PerUserSemaphore::new(MAX_STREAMS, MAX_STREAMS_PER_USER),
        }
    }
}

/// Concurrent event streams in total: half of the public connections, so that streams never take all of them.
const MAX_STREAMS: usize = 2_048;
/// Concurrent event streams of one user.
const MAX_STREAMS_PER_USER: usize = 256;
/// `Retry-After` for a stream over the limit.
const STREAM_RETRY: Duration = Duration::from_secs(5);

/// Concurrent reads of many rows in total: one less than the public API has read connections.
const MAX_LIST_READS: usize = PUBLIC_READERS as usize - 1;
/// Concurrent reads of many rows of one user: each uses a core while it reads.
const MAX_LIST_READS_PER_USER: usize = 2;
/// Concurrent searches of one user. In total there are as many as there are connections for them.
const MAX_SEARCHES_PER_USER: usize = 1;

/// The parts of [`PublicApi`].
pub struct PublicParts {
    pub store: Store,
    /// Whether the dashboard and its sessions are served.
    pub has_dashboard: bool,
    /// The installation.
    pub instance: InstanceId,
    /// Verifies tokens.
    pub key: Arc<SigningKey>,
    pub clock: Clock,
    /// Whether jobs can run.
    pub readiness: Readiness,
    pub workspaces: Workspaces,
    /// How long workspaces are kept.
    pub retention: RetentionPeriod,
    pub secrets: Arc<Secrets>,
    /// Finds secrets in texts of users that others read.
    pub detectors: LeakDetectors,
    /// What users may choose in their settings.
    pub settings_bounds: SettingsBounds,
    /// Access to the models.
    pub gateway: Arc<Gateway>,
    pub waker: DispatcherWaker,
    /// The tools of chats and jobs.
    pub tools: Arc<BuiltinTools>,
    pub submitter: Arc<JobSubmitter>,
    /// Decides about what arrives from outside.
    pub inbound: Inbound,
    /// Threads of users.
    pub chats: Arc<Chats>,
    /// Creates, changes and fires routines.
    pub routines: Arc<RoutineEditor>,
    /// Directory of containers' saved output.
    pub logs: PathBuf,
    /// Owns tasks that run to their end even if the client disconnects.
    pub tasks: TaskTracker,
    /// Counts streams and refusals.
    pub metrics: Metrics,
    pub metrics_endpoint: MetricsEndpoint,
    /// Limits file operations.
    pub file_work: FileWork,
    pub uploads: UploadRegistry,
    /// Cancelled when the process drains: streams end, so that clients reconnect to the next process.
    pub drain: tokio_util::sync::CancellationToken,
    /// Limits that all requests share.
    pub limits: RequestLimits,
}

impl PublicApi {
    /// Assembles the API.
    pub fn new(parts: PublicParts) -> Self {
        Self(Arc::new(parts))
    }

    /// A permit for an event stream.
    fn stream_permit(&self, who: &Identity) -> Result<Permit, ApiError> {
        self.limits.streams.try_acquire(&who.user).ok_or_else(|| {
            let detail = format!("too many open event streams (at most {MAX_STREAMS_PER_USER} per user)");
            ApiError::new(ErrorCode::RateLimited, detail).with_retry_after(STREAM_RETRY)
        })
    }

    /// A permit to read many rows.
    async fn read_permit(&self, who: &Identity) -> Result<Permit, ApiError> {
        self.limits.list_reads.acquire(&who.user).await.map_err(ApiError::internal)
    }

    /// A page of the model calls of a job or run that the caller may see.
    async fn model_calls(
        &self,
        who: &Identity,
        work: impl Into<WorkId>,
        params: &PageParams,
    ) -> Result<Json<Page<LlmCallRecord>>, ApiError> {
        let (limit, after) = (params.limit()?, params.after::<CallPosition>()?);
        let _permit = self.read_permit(who).await?;
        // One more, to know whether there is a next page.
        let calls = self.store.model_calls(work, after.as_ref(), limit + 1).await?;
        Ok(Json(cursor::page(calls, limit, ToString::to_string)))
    }

    /// The same of its tool calls.
    async fn tool_calls(
        &self,
        who: &Identity,
        work: impl Into<WorkId>,
        params: &PageParams,
    ) -> Result<Json<Page<ToolActionRecord>>, ApiError> {
        let (limit, after) = (params.limit()?, params.after::<CallPosition>()?);
        let _permit = self.read_permit(who).await?;
        let calls = self.store.tool_calls(work, after.as_ref(), limit + 1).await?;
        Ok(Json(cursor::page(calls, limit, ToString::to_string)))
    }

    /// A permit to read a list that may be a search. Searches wait for each other only.
    async fn list_permit(&self, who: &Identity, is_search: bool) -> Result<Permit, ApiError> {
        if !is_search {
            return self.read_permit(who).await;
        }
        self.limits.searches.acquire(&who.user).await.map_err(ApiError::internal)
    }
}

impl std::ops::Deref for PublicApi {
    type Target = PublicParts;
    fn deref(&self) -> &PublicParts {
        &self.0
    }
}

/// The endpoints with their OpenAPI descriptions, but for those of secrets and sessions, whose answers are never
/// compressed.
fn described() -> OpenApiRouter<PublicApi> {
    OpenApiRouter::new()
        .merge(jobs::routes())
        .merge(events::routes())
        .merge(memory::routes())
        .merge(chat::routes())
        .merge(routines::routes())
        .merge(account::settings::routes())
        .merge(gates::routes())
        .merge(account::notifications::routes())
        .merge(tools::routes())
        .merge(mcp::routes())
        .merge(operation::routes())
        .merge(usage::routes())
        .merge(health::routes())
}

pub fn router(api: PublicApi) -> Router {
    let has_dashboard = api.has_dashboard;
    let (router, _) = described().split_for_parts();
    let (secrets, _) = account::secrets::routes().merge(session::routes(has_dashboard)).split_for_parts();
    let refusals = middleware::from_fn_with_state(api.clone(), audit_entry::refusals);
    let router = router.layer(compression::layer()).merge(secrets).with_state(api).layer(refusals);
    let router = router.merge(docs::router());
    if has_dashboard { router.merge(dashboard::router()) } else { router.route("/", get(home::home)) }
}
