//! The public API: one endpoint per file. Contents, routes and what they share.

mod accept;
mod actions;
mod audit;
mod audit_log;
mod caller;
mod cancel;
mod create;
mod cursor;
mod deeds;
mod docs;
mod events;
mod file_work;
mod files;
mod get;
mod health;
mod idempotent;
mod list;
mod llm_calls;
mod logs;
mod metrics;
mod negotiate;
mod prompt;
mod ready;
mod refusal_rate;
mod reject;
mod restart;
mod start;
mod stream;
mod summary;
mod usage;

use std::{path::PathBuf, sync::Arc, time::Duration};

use axum::{Router, extract::DefaultBodyLimit, middleware};
use protocol::ErrorCode;
use tokio_util::task::TaskTracker;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    auth::{Identity, SigningKey},
    clock::Clock,
    dispatch::{Sandbox, Wake},
    domain::request::Ceiling,
    http::{
        metrics::MetricsEndpoint,
        per_user_semaphore::{PerUserSemaphore, Permit},
        problem::ApiError,
    },
    llm::Gateway,
    store::{PUBLIC_READERS, Store},
    telemetry::metrics::Metrics,
    workspace::{RetentionPeriod, UploadRegistry, Workspaces},
};

pub use docs::document;
pub use file_work::FileWork;

use self::refusal_rate::RefusalRate;

/// Inline files as base64 and a prompt fit; more goes by tar.
const MAX_CREATE_BODY_BYTES: usize = 24 * 1024 * 1024;
/// Everything else.
pub const MAX_BODY_BYTES: usize = 1024 * 1024;

/// What the public endpoints need.
#[derive(Clone)]
pub struct PublicApi(Arc<Shared>);

struct Shared {
    parts: PublicParts,
    refusals: RefusalRate,
    list_reads: PerUserSemaphore,
    streams: PerUserSemaphore,
}

/// Event streams at once, of all users: half of the public connections, so that streams alone never take them all.
const MAX_STREAMS: usize = 2_048;
/// The same of one user.
const MAX_STREAMS_PER_USER: usize = 256;
/// When to ask again for a stream.
const STREAM_RETRY: Duration = Duration::from_secs(5);

/// Reads of many rows at once, of all users: one less than the public API has read connections.
const MAX_LIST_READS: usize = PUBLIC_READERS as usize - 1;
/// The same of one user: each takes a core for as long as it reads.
const MAX_LIST_READS_PER_USER: usize = 2;

/// What [`PublicApi`] is made of.
pub struct PublicParts {
    /// The truth.
    pub store: Store,
    /// Reads tokens.
    pub key: Arc<SigningKey>,
    /// Time.
    pub clock: Clock,
    /// Whether jobs can run.
    pub sandbox: Arc<Sandbox>,
    /// Where jobs work.
    pub workspaces: Workspaces,
    /// How long what they leave is kept.
    pub retention: RetentionPeriod,
    /// The way to the models.
    pub gateway: Arc<Gateway>,
    /// The dispatcher's bell.
    pub wake: Wake,
    /// What a request may ask for.
    pub ceiling: Ceiling,
    /// Where containers' output is kept.
    pub logs: PathBuf,
    /// Owns what is finished though the client that asked for it has gone.
    pub tasks: TaskTracker,
    /// Where streams are counted.
    pub metrics: Metrics,
    /// Where the metrics are read.
    pub metrics_endpoint: MetricsEndpoint,
    /// Bounds the work on files.
    pub file_work: FileWork,
    /// What is being received.
    pub uploads: UploadRegistry,
    /// Fires when the process drains: streams end, so that their readers go to the next process.
    pub drain: tokio_util::sync::CancellationToken,
}

impl PublicApi {
    /// From its parts.
    pub fn new(parts: PublicParts) -> Self {
        let list_reads = PerUserSemaphore::new(MAX_LIST_READS, MAX_LIST_READS_PER_USER);
        let streams = PerUserSemaphore::new(MAX_STREAMS, MAX_STREAMS_PER_USER);
        Self(Arc::new(Shared { parts, refusals: RefusalRate::default(), list_reads, streams }))
    }

    /// A place for an event stream.
    fn stream_place(&self, who: &Identity) -> Result<Permit, ApiError> {
        self.0.streams.try_acquire(&who.user).ok_or_else(|| {
            let detail = format!("too many event streams are open (at most {MAX_STREAMS_PER_USER} a user); close some");
            ApiError::new(ErrorCode::RateLimited, detail).with_retry_after(STREAM_RETRY)
        })
    }

    /// The turn of a user to read many rows.
    async fn list_read(&self, who: &Identity) -> Result<Permit, ApiError> {
        self.0.list_reads.acquire(&who.user).await
    }

    /// How many refusals are recorded.
    fn refusals(&self) -> &RefusalRate {
        &self.0.refusals
    }
}

impl std::ops::Deref for PublicApi {
    type Target = PublicParts;
    fn deref(&self) -> &PublicParts {
        &self.0.parts
    }
}

/// The endpoints with their descriptions.
fn described() -> OpenApiRouter<PublicApi> {
    OpenApiRouter::new()
        .routes(routes!(list::list))
        .merge(OpenApiRouter::new().routes(routes!(create::create)).layer(DefaultBodyLimit::max(MAX_CREATE_BODY_BYTES)))
        .routes(routes!(summary::summary))
        .routes(routes!(get::get))
        .routes(routes!(cancel::cancel))
        .routes(routes!(start::start))
        .routes(routes!(prompt::prompt))
        .routes(routes!(restart::restart))
        .routes(routes!(accept::accept))
        .routes(routes!(reject::reject))
        .routes(routes!(events::events))
        .routes(routes!(files::list::list))
        .routes(routes!(files::read::read, files::put::put))
        .routes(routes!(files::pack::pack, files::unpack::unpack))
        .routes(routes!(actions::actions))
        .routes(routes!(llm_calls::llm_calls))
        .routes(routes!(logs::logs))
        .routes(routes!(usage::usage))
        .routes(routes!(audit_log::audit_log))
        .routes(routes!(metrics::metrics))
        .routes(routes!(health::health))
        .routes(routes!(ready::ready))
}

/// The routes.
pub fn router(api: PublicApi) -> Router {
    let (router, document) = described().split_for_parts();
    let audited = middleware::from_fn_with_state(api.clone(), deeds::refusals);
    router.with_state(api).layer(audited).merge(docs::router(docs::finish(document)))
}
