//! The daemon: builds every part once, runs it, and drains it.
//!
//! The only module that knows all parts. Never decides anything about a job.

mod build;
mod data_dir_lock;
mod error;
mod gate_expiry;
mod listeners;
mod migrating;
mod rotate_key;
mod supervise;
mod ticks;

use std::{net::SocketAddr, sync::Arc};

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use build::check;
pub use data_dir_lock::{LockError, is_in_use};
pub use error::{DatabaseError, ServeError};
pub use rotate_key::{RotateKeyError, rotate_master_key};

use self::{
    data_dir_lock::DataDirLock,
    gate_expiry::GateExpiry,
    listeners::{MetricsServer, PublicServer},
    ticks::Ticks,
};
use base::clock::Clock;
use chat::{ChatEngine, Heartbeats};
use config::Config;
use dispatch::{
    DatabaseWatch, DiskSweep, Dispatcher, EngineWatch, EventHandler, JobSubmitter, NotificationSender, Prober,
    ReadinessWatch, WorkerListeners,
};
use egress::LookUp;
use engine::Engine;
use hooks::JobEndNotices;
use http_api::server::raise_descriptor_limit;
use mcp::McpClient;
use routine::{RoutineScheduler, Runner};
use store::Store;
use telemetry::metrics::Metrics;
use workspace::{ReadDiskSpace, RetentionSweep};

/// Replacements of real parts in tests.
#[derive(Default)]
pub struct TestOverrides {
    /// Default: Docker, as configured.
    pub engine: Option<Arc<dyn Engine>>,
    /// Default: the system's clock.
    pub clock: Option<Clock>,
    /// Default: `statvfs`.
    pub space: Option<ReadDiskSpace>,
    /// Resolves the names of hosts that jobs and users ask for. Default: the system's resolver.
    pub look_up: Option<LookUp>,
}

/// The loops that control containers.
struct ControlLoops {
    prober: Prober,
    dispatcher: Dispatcher,
    engine_watch: EngineWatch,
    database_watch: DatabaseWatch,
    disk_sweep: DiskSweep,
}

/// The daemon, built and not yet running.
pub struct App {
    store: Store,
    control: ControlLoops,
    worker_listeners: Arc<WorkerListeners>,
    chat_engine: Arc<ChatEngine>,
    runner: Runner,
    routine_scheduler: RoutineScheduler,
    heartbeats: Heartbeats,
    retention: RetentionSweep,
    mcp: Arc<McpClient>,
    submitter: Arc<JobSubmitter>,
    job_end_notices: JobEndNotices,
    readiness_watch: ReadinessWatch,
    gate_expiry: GateExpiry,
    ticks: Ticks,
    pending_events: Arc<EventHandler>,
    notification_sender: NotificationSender,
    public_server: PublicServer,
    metrics_server: Option<MetricsServer>,
    metrics: Metrics,
    /// Tasks that outlive the requests that started them: model calls and submissions.
    request_tasks: TaskTracker,
    drain: CancellationToken,
    _lock: DataDirLock,
}

/// Runs the daemon until SIGTERM or SIGINT.
pub async fn serve(config: Config) -> Result<(), ServeError> {
    let address = config.bind;
    log_warnings(&config);
    let io_error = |action| move |source| ServeError::Io { action, source };
    let mut terminate = signal(SignalKind::terminate()).map_err(io_error("cannot listen for SIGTERM"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(io_error("cannot listen for SIGINT"))?;
    if let Err(error) = raise_descriptor_limit() {
        tracing::warn!(%error, "cannot raise the limit on open files; fewer connections are accepted");
    }
    let app = App::build(config, TestOverrides::default()).await?;
    // Probed before it listens, so that the first request finds the sandbox's state.
    app.first_probe().await;
    let listener = listeners::bind(address, "GANTRY_BIND").await?;
    let drain = app.drain.clone();
    let running = app.run(listener);
    tokio::pin!(running);
    loop {
        tokio::select! {
            result = &mut running => return result,
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("draining: no job is started, running containers keep running");
        drain.cancel();
    }
}

fn log_warnings(config: &Config) {
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    if config.llm.is_demo {
        tracing::info!(
            "no model is configured: using the built-in demo script. Set GANTRY_LLM_PROVIDER (openai, anthropic, \
             ollama), GANTRY_LLM_MODEL and GANTRY_LLM_API_KEY or GANTRY_LLM_API_KEY_FILE to use one"
        );
    }
    if !rustix::process::geteuid().is_root() {
        tracing::warn!(
            "not running as root: a job that creates a directory which other users may not read ends with disk_limit, \
             and the files of jobs cannot be removed after their retention period"
        );
    }
}

impl App {
    /// Probes the sandbox once.
    pub async fn first_probe(&self) {
        self.control.prober.probe().await;
    }

    /// The metrics' own address, if they have one.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics_server.as_ref().and_then(|server| server.listener.local_addr().ok())
    }

    /// Creates jobs, as the API, chats and tools do.
    pub fn submitter(&self) -> Arc<JobSubmitter> {
        Arc::clone(&self.submitter)
    }

    /// The token that makes [`App::run`] drain and return.
    pub fn drain(&self) -> CancellationToken {
        self.drain.clone()
    }
}
