//! The public API: one endpoint per file. Owns the routes and the state that endpoints share.

mod actions;
mod audit;
mod audit_entry;
mod caller;
mod cancel;
mod chat;
mod compression;
mod create;
mod cursor;
mod delete;
mod docs;
mod events;
mod files;
mod gates;
mod get;
mod health;
mod home;
mod id_part;
mod idempotent;
mod inbound;
mod instance_events;
mod instance_stream;
mod job_stream;
mod json_text;
mod list;
mod llm_calls;
mod logs;
mod mcp;
mod memory;
mod metrics;
mod name_list;
mod negotiate;
mod notifications;
mod prompt;
mod ready;
mod refusal_rate;
mod restart;
mod review;
mod routines;
mod rpc;
mod runs;
mod secrets;
mod settings;
mod start;
mod stream;
mod summary;
mod tools;
mod usage;

use std::{path::PathBuf, sync::Arc, time::Duration};

use ::chat::Chats;
use ::secrets::{LeakDetectors, Secrets};
use ::tools::BuiltinTools;
use auth::{Identity, SigningKey};
use axum::{Router, extract::DefaultBodyLimit, middleware, routing::get};
use base::{
    clock::Clock,
    per_user_semaphore::{PerUserSemaphore, Permit},
};
use dispatch::{DispatcherWaker, JobSubmitter, RoutineEditor, Sandbox};
use domain::settings::SettingsBounds;
use llm::Gateway;
use protocol::ErrorCode;
use store::{PUBLIC_READERS, Store};
use telemetry::metrics::Metrics;
use tokio_util::task::TaskTracker;
use utoipa_axum::{router::OpenApiRouter, routes};
use workspace::{FileWork, RetentionPeriod, UploadRegistry, Workspaces};

use crate::{metrics::MetricsEndpoint, problem::ApiError};

pub use docs::document;
pub use inbound::Inbound;

use self::{audit_entry::audited, refusal_rate::RefusalRate};

/// Maximum body of a new job: a prompt and inline files as base64. Larger files are uploaded as an archive.
const MAX_CREATE_BODY_BYTES: usize = 24 * 1024 * 1024;
/// Maximum body of other requests.
pub const MAX_BODY_BYTES: usize = 1024 * 1024;

/// The state of the public endpoints.
#[derive(Clone)]
pub struct PublicApi(Arc<PublicParts>);

/// What all requests share: limits of streams, of reads of many rows, and of audit entries for refused requests.
pub struct RequestLimits {
    refusals: RefusalRate,
    list_reads: PerUserSemaphore,
    streams: PerUserSemaphore,
}

impl Default for RequestLimits {
    fn default() -> Self {
        Self {
            refusals: RefusalRate::default(),
            list_reads: PerUserSemaphore::new(MAX_LIST_READS, MAX_LIST_READS_PER_USER),
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

/// The parts of [`PublicApi`].
pub struct PublicParts {
    pub store: Store,
    /// Verifies tokens.
    pub key: Arc<SigningKey>,
    pub clock: Clock,
    /// Whether jobs can run.
    pub sandbox: Arc<Sandbox>,
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

    /// Limits audit entries for refused requests.
    fn refusals(&self) -> &RefusalRate {
        &self.limits.refusals
    }
}

impl std::ops::Deref for PublicApi {
    type Target = PublicParts;
    fn deref(&self) -> &PublicParts {
        &self.0
    }
}

/// The endpoints with their OpenAPI descriptions, but for those of secrets, whose answers are never compressed.
fn described() -> OpenApiRouter<PublicApi> {
    let create = audited("job.create", routes!(create::create)).layer(DefaultBodyLimit::max(MAX_CREATE_BODY_BYTES));
    OpenApiRouter::new()
        .routes(routes!(list::list))
        .merge(create)
        .routes(routes!(summary::summary))
        .routes(routes!(get::get))
        .merge(audited("job.cancel", routes!(cancel::cancel)))
        .merge(audited("job.delete", routes!(delete::delete)))
        .merge(audited("job.start", routes!(start::start)))
        .merge(audited("job.prompt", routes!(prompt::prompt)))
        .merge(audited("job.restart", routes!(restart::restart)))
        .merge(audited("job.accept", routes!(review::accept)))
        .merge(audited("job.reject", routes!(review::reject)))
        .routes(routes!(events::events))
        .routes(routes!(instance_events::events))
        .routes(routes!(files::list::list))
        .routes(routes!(files::read::read))
        .routes(routes!(files::changes::changes))
        .merge(audited("files.write", routes!(files::put::put)))
        .routes(routes!(files::pack::pack))
        .merge(audited("files.write", routes!(files::unpack::unpack)))
        .routes(routes!(actions::actions))
        .routes(routes!(llm_calls::llm_calls))
        .routes(routes!(logs::logs))
        .merge(memory::routes())
        .merge(chat::routes())
        .merge(inbound::routes())
        .merge(routines::routes())
        .merge(runs::routes())
        .routes(routes!(usage::usage))
        .routes(routes!(settings::get::get))
        .merge(audited("settings.put", routes!(settings::put::put)))
        .routes(routes!(gates::list::list))
        .routes(routes!(gates::get::get))
        .merge(audited("gate.resolve", routes!(gates::resolve::resolve)))
        .merge(audited("gate.resolve", routes!(gates::by_thread::approval)))
        .merge(audited("gate.resolve", routes!(gates::by_thread::gate)))
        .routes(routes!(notifications::list::list))
        .merge(audited("notification.read", routes!(notifications::read::read)))
        .routes(routes!(audit::audit))
        .routes(routes!(tools::list::list))
        .merge(audited("tool.permission", routes!(tools::permission::set)))
        .routes(routes!(tools::policy::get))
        .merge(audited("tool.policy", routes!(tools::policy::set)))
        .routes(routes!(mcp::list::list))
        .merge(audited("mcp.approve", routes!(mcp::approve::approve)))
        .merge(rpc::routes())
        .routes(routes!(metrics::metrics))
        .routes(routes!(health::health))
        .routes(routes!(ready::ready))
}

pub fn router(api: PublicApi) -> Router {
    let (router, _) = described().split_for_parts();
    let (secrets, _) = secrets::routes().split_for_parts();
    let refusals = middleware::from_fn_with_state(api.clone(), audit_entry::refusals);
    let router = router.layer(compression::layer()).merge(secrets).with_state(api).layer(refusals);
    router.merge(docs::router()).route("/", get(home::home))
}
