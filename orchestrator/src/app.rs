//! The daemon: builds everything once, owns every task, drains.
//!
//! The only place that sees every part. Never decides anything about a job.

mod doors;
mod hold;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use protocol::InstanceId;
use tokio::{
    net::TcpListener,
    signal::unix::{SignalKind, signal},
    task::JoinSet,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use hold::{HoldError, is_served};

use self::{
    doors::{Doors, Front, Scraped, answer, listen},
    hold::Hold,
};
use crate::{
    auth::{KeyError, SigningKey, WorkerTokens},
    clock::Clock,
    config::{Config, SandboxMode, mask_urls},
    dispatch::{
        AttemptRegistry, DiskGauge, DiskSweep, Dispatcher, DispatcherSettings, Prober, Sandbox, TokenFiles, Wake,
        WorkerListeners, plan::PlanLimits,
    },
    domain::{
        budget::{DayLimits, micro_dollars},
        request::Ceiling,
    },
    engine::{Docker, DockerSettings, Engine},
    http::{
        public::{self, FileWork, PublicApi, PublicParts},
        server::raise_descriptor_limit,
        worker::{self, SingleFlight, WorkerApi},
    },
    llm::{Gateway, GatewayError},
    store::{Kept, Store, StoreError},
    telemetry::metrics::Metrics,
    tools::BuiltinTools,
    workspace::{FreeSpace, ReadDiskSpace, RetentionPeriod, RetentionSweep, UploadRegistry, Workspaces},
};

/// What requests and containers at work get when the process drains. With the three below less than the 10 s that an
/// operator's `stop` grants before it kills; what is cut off is harmless, since the next process finds it in the store.
const DRAIN_TASKS: Duration = Duration::from_secs(5);
/// What model calls under way get to be recorded.
const DRAIN_CALLS: Duration = Duration::from_secs(3);
/// What workers' requests get after that.
const DRAIN_SOCKETS: Duration = Duration::from_secs(1);
/// What the database gets to be closed in.
const CLOSE_STORE: Duration = Duration::from_millis(500);

/// Why the daemon does not run, or no longer.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// Another process has the data folder, or it cannot be made.
    #[error(transparent)]
    Hold(#[from] HoldError),
    /// The database.
    #[error("the store at {url} cannot be used")]
    Store {
        /// Where.
        url: String,
        /// Why.
        #[source]
        source: StoreError,
    },
    /// The signing key.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A model's settings.
    #[error(transparent)]
    Model(#[from] GatewayError),
    /// A built-in tool is wrong.
    #[error(transparent)]
    Tool(#[from] agent::RegisterError),
    /// The address.
    #[error("cannot listen on {address}; is another program there? Set {setting} to choose another")]
    Listen {
        /// Which.
        address: String,
        /// What names it.
        setting: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The machine.
    #[error("{what}")]
    Io {
        /// What failed.
        what: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A task that should run for ever ended.
    #[error("{task} ended: {why}")]
    Ended {
        /// Which.
        task: &'static str,
        /// Why.
        why: String,
    },
}

/// What a test may bring instead of the real thing.
#[derive(Default)]
pub struct Seams {
    /// The engine; Docker by configuration when left out.
    pub engine: Option<Arc<dyn Engine>>,
    /// The time; the system's when left out.
    pub clock: Option<Clock>,
    /// The space of the file system that holds the workspaces; the system's when left out.
    pub space: Option<ReadDiskSpace>,
}

/// The loops that look after the jobs' containers.
struct ControlLoops {
    prober: Prober,
    dispatcher: Dispatcher,
    sweep: DiskSweep,
}

/// Everything, built.
pub struct App {
    store: Store,
    control: ControlLoops,
    listeners: Arc<WorkerListeners>,
    retention: RetentionSweep,
    front: Front,
    metrics: Metrics,
    calls: TaskTracker,
    drain: CancellationToken,
    _hold: Hold,
}

/// Runs the daemon until SIGTERM or SIGINT.
pub async fn serve(config: Config) -> Result<(), ServeError> {
    let address = config.bind;
    for warning in &config.warnings {
        tracing::warn!("{warning}");
    }
    if config.llm.is_demo {
        tracing::info!(
            "no model is set: the built-in demo script answers. Set GANTRY_LLM_PROVIDER (openai, anthropic, ollama), \
             GANTRY_LLM_MODEL and GANTRY_LLM_API_KEY or GANTRY_LLM_API_KEY_FILE to use one"
        );
    }
    let io_error = |what| move |source| ServeError::Io { what, source };
    let mut terminate = signal(SignalKind::terminate()).map_err(io_error("cannot listen for SIGTERM"))?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(io_error("cannot listen for SIGINT"))?;
    if let Err(error) = raise_descriptor_limit() {
        tracing::warn!(%error, "cannot raise the limit on open files; fewer connections are served");
    }
    let app = App::build(config, Seams::default()).await?;
    // It listens only once the first probe has answered.
    app.first_probe().await;
    let listener = listen(address, "GANTRY_BIND").await?;
    let drain = app.drain.clone();
    let running = app.run(listener);
    tokio::pin!(running);
    loop {
        tokio::select! {
            ended = &mut running => return ended,
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("draining: nothing new starts, containers keep running");
        drain.cancel();
    }
}

impl App {
    /// Builds everything. Nothing runs yet.
    #[expect(clippy::too_many_lines, reason = "a line for each part that another one is given")]
    pub async fn build(config: Config, seams: Seams) -> Result<Self, ServeError> {
        let hold = Hold::take(&config.data_dir, &config.run_dir)?;
        let clock = seams.clock.unwrap_or_else(Clock::system);
        let metrics = Metrics::default();
        let attempts = AttemptRegistry::new(clock.clone());
        let (store, instance) = open_store(&config, &metrics, &attempts).await?;
        let key = Arc::new(SigningKey::load(config.jwt_secret.as_ref(), &config.data_dir)?);
        let gateway = Arc::new(Gateway::new(&config.llm)?);
        let tools = Arc::new(BuiltinTools::new(store.control(), clock.clone(), config.tool_rates.clone())?);
        let tokens = WorkerTokens::new(Arc::clone(&key), instance);
        let ceiling = ceiling(&config, &tools);
        let lease = Duration::from_secs(config.lease_seconds);
        let (wake, drain, calls) = (Wake::default(), CancellationToken::new(), TaskTracker::new());
        let engine = engine(&config, instance, seams.engine);
        let (sandbox, prober) = sandbox(&config, &engine, &clock);
        let sandbox = Arc::new(sandbox);
        let space = free_space(&config, seams.space);
        let (workspaces, retention, records) = workspaces(&config, &store).await;
        let gauge = DiskGauge::new(workspaces.clone(), Arc::clone(&engine));
        let worker_side = worker::router(WorkerApi {
            token_files: TokenFiles::new(config.run_dir.clone()),
            attempts: Arc::clone(&attempts),
            model_calls: SingleFlight::new(calls.clone()),
            tool_calls: SingleFlight::new(calls.clone()),
            store: store.control(),
            auth: tokens.clone(),
            clock: clock.clone(),
            wake: wake.clone(),
            gateway: Arc::clone(&gateway),
            tools,
            day_limits: day_limits(&config),
            metrics: metrics.clone(),
            gauge: gauge.clone(),
            lease,
            outage_patience: Duration::from_secs(config.llm.outage_patience_seconds),
            drain: drain.clone(),
        });
        let doors = Doors::new(&metrics, config.max_parallel_jobs);
        let serve_socket = doors.worker(worker_side);
        let listeners = Arc::new(WorkerListeners::new(config.run_dir.clone(), serve_socket, Arc::clone(&attempts)));
        let logs = config.data_dir.join("logs");
        let sweep = DiskSweep {
            store: store.control(),
            gauge,
            space: space.clone(),
            attempts: Arc::clone(&attempts),
            wake: wake.clone(),
        };
        let settings = DispatcherSettings {
            store: store.control(),
            sandbox: Arc::clone(&sandbox),
            listeners: Arc::clone(&listeners),
            attempts,
            workspaces: workspaces.clone(),
            auth: tokens,
            clock: clock.clone(),
            logs: logs.clone(),
            lease,
            space: space.clone(),
            day_limits: day_limits(&config),
            metrics: metrics.clone(),
            limits: plan_limits(&config),
        };
        let control = ControlLoops { prober, dispatcher: Dispatcher::new(settings, engine, wake.clone()), sweep };
        let (metrics_door, scraped) = doors.scraped(config.metrics_bind, store.clone()).await?;
        let public_side = public::router(PublicApi::new(PublicParts {
            store: store.clone(),
            key,
            clock: clock.clone(),
            sandbox: Arc::clone(&sandbox),
            workspaces: workspaces.clone(),
            retention,
            gateway,
            wake,
            ceiling,
            tasks: calls.clone(),
            metrics: metrics.clone(),
            metrics_door,
            logs: logs.clone(),
            file_work: FileWork::default(),
            uploads: UploadRegistry::new(space),
            drain: drain.clone(),
        }));
        let front = doors.public(config.allowed_hosts, public_side, scraped);
        let retention = RetentionSweep { retention, records, store: store.clone(), workspaces, logs, clock };
        Ok(Self { store, control, listeners, retention, front, metrics, calls, drain, _hold: hold })
    }

    /// Probes the sandbox once, so that the first request meets an answer.
    pub async fn first_probe(&self) {
        self.control.prober.probe().await;
    }

    /// Where the metrics are read, when they have an address of their own.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.front.scraped.as_ref().and_then(|scraped| scraped.listener.local_addr().ok())
    }

    /// Fires the drain.
    pub fn drain(&self) -> CancellationToken {
        self.drain.clone()
    }

    /// Serves until the drain fires or a task that should not end does.
    pub async fn run(self, listener: TcpListener) -> Result<(), ServeError> {
        if let Ok(address) = listener.local_addr() {
            tracing::info!(%address, "listening");
        }
        let mut tasks: JoinSet<(&'static str, Result<(), String>)> = JoinSet::new();
        let drain = self.drain.clone();
        let stop = drain.clone();
        let Front { router, server, scraped } = self.front;
        let metrics = self.metrics;
        tasks.spawn(async move { ("the public API", answer(server, listener, router, stop).await) });
        if let Some(Scraped { listener, router, server }) = scraped {
            let stop = drain.clone();
            tasks.spawn(async move { ("the metrics", answer(server, listener, router, stop).await) });
        }
        let stop = drain.clone();
        tasks.spawn(async move { ("the upkeep of the metrics", doors::upkeep(metrics, stop).await) });
        let stop = drain.clone();
        let retention = self.retention;
        tasks.spawn(async move {
            retention.run(stop).await;
            ("the retention of workspaces", Ok(()))
        });
        let ControlLoops { prober, dispatcher, sweep } = self.control;
        let stop = drain.clone();
        tasks.spawn(async move {
            prober.run(stop).await;
            ("the prober of the sandbox", Ok(()))
        });
        let stop = drain.clone();
        tasks.spawn(async move {
            sweep.run(stop).await;
            ("the disk sweep", Ok(()))
        });
        let stop = drain.clone();
        tasks.spawn(async move {
            dispatcher.run(stop).await;
            ("the dispatcher", Ok(()))
        });
        let result = supervise(tasks, drain).await;
        self.calls.close();
        if tokio::time::timeout(DRAIN_CALLS, self.calls.wait()).await.is_err() {
            tracing::warn!("model calls were still under way");
        }
        if tokio::time::timeout(DRAIN_SOCKETS, self.listeners.stop()).await.is_err() {
            tracing::warn!("workers' requests were still under way");
        }
        // A database that somebody locks is not waited for: what was to be written has been, or is taken up at the next start.
        if tokio::time::timeout(CLOSE_STORE, self.store.close()).await.is_err() {
            tracing::warn!("the database was still busy");
        }
        result
    }
}

/// Waits for the drain to be over. A task that ends before it ends the process: what is half alive is worse than what is
/// started anew.
async fn supervise(
    mut tasks: JoinSet<(&'static str, Result<(), String>)>,
    drain: CancellationToken,
) -> Result<(), ServeError> {
    let mut result = Ok(());
    let overdue = async {
        drain.cancelled().await;
        tokio::time::sleep(DRAIN_TASKS).await;
    };
    tokio::pin!(overdue);
    loop {
        let ended = tokio::select! {
            ended = tasks.join_next() => ended,
            () = &mut overdue => {
                tracing::warn!("requests or containers were still at work");
                break;
            }
        };
        let Some(ended) = ended else { break };
        let (task, why) = match ended {
            Ok((task, Ok(()))) if drain.is_cancelled() => {
                tracing::debug!(task, "drained");
                continue;
            }
            Ok((task, Ok(()))) => (task, "it returned".to_owned()),
            Ok((task, Err(why))) => (task, why),
            Err(error) => ("a task", error.to_string()),
        };
        tracing::error!(task, why, "a task ended");
        drain.cancel();
        result = Err(ServeError::Ended { task, why });
    }
    result
}

async fn open_store(
    config: &Config,
    metrics: &Metrics,
    attempts: &Arc<AttemptRegistry>,
) -> Result<(Store, InstanceId), ServeError> {
    let at_url = |source| ServeError::Store { url: mask_urls(&config.database_url), source };
    let observer = attempts.observer();
    let store = Store::open_observed(&config.database_url, metrics.clone(), observer).await.map_err(at_url)?;
    let instance = match config.instance_id {
        Some(instance) => instance,
        None => store.instance_id().await.map_err(at_url)?,
    };
    store.free_reservations().await.map_err(at_url)?;
    Ok((store, instance))
}

/// With the sandbox disabled, too: what an earlier setting started is looked after to its end.
fn engine(config: &Config, instance_id: InstanceId, given: Option<Arc<dyn Engine>>) -> Arc<dyn Engine> {
    given.unwrap_or_else(|| Arc::new(Docker::connect(DockerSettings::of(config, instance_id))))
}

fn day_limits(config: &Config) -> DayLimits {
    DayLimits { max_tokens: config.user_day_max_tokens, max_micro_usd: micro_dollars(config.user_day_max_cost_usd) }
}

fn sandbox(config: &Config, engine: &Arc<dyn Engine>, clock: &Clock) -> (Sandbox, Prober) {
    let (engine, clock) = (Arc::clone(engine), clock.clone());
    match config.sandbox.mode {
        SandboxMode::Docker => Sandbox::on(engine, clock),
        SandboxMode::Disabled => Sandbox::disabled(engine, clock),
    }
}

async fn workspaces(config: &Config, store: &Store) -> (Workspaces, RetentionPeriod, Kept) {
    let workspaces = Workspaces::new(config.workspace_dir.clone());
    // What is staged belongs to requests, and those of an earlier process are over.
    workspaces.remove_staging_dirs();
    workspaces.clear_unborn(store, Duration::ZERO).await;
    let records = Kept {
        days: config.record_retention_days,
        audit_days: config.audit_retention_days,
        max_mb: config.record_retention_max_mb,
    };
    (workspaces, RetentionPeriod::from_days(config.workspace_retention_days), records)
}

fn free_space(config: &Config, given: Option<ReadDiskSpace>) -> FreeSpace {
    let space = FreeSpace::new(config.workspace_dir.clone(), config.disk_floor_mb);
    match given {
        Some(read) => space.with_reader(read),
        None => space,
    }
}

fn plan_limits(config: &Config) -> PlanLimits {
    PlanLimits {
        max_parallel: config.max_parallel_jobs as usize,
        max_parallel_per_user: config.max_parallel_jobs_per_user as usize,
        start_timeout: Duration::from_secs(config.start_timeout_seconds),
        lease: Duration::from_secs(config.lease_seconds),
        stuck_after: Duration::from_secs(config.stuck_after_seconds),
        max_repairs: config.max_repair_attempts,
    }
}

fn ceiling(config: &Config, tools: &BuiltinTools) -> Ceiling {
    Ceiling {
        limits: config.limits_ceiling,
        default_image: config.sandbox.image.clone(),
        images: config.sandbox.images.clone(),
        default_model: config.llm.primary.model.clone(),
        models: config.llm.models.clone(),
        tools: tools.offered(None).into_iter().map(|tool| tool.name).collect(),
    }
}

/// An error and its causes in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}
