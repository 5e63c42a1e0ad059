//! Builds all parts of the daemon from the configuration, lower layers first.
//!
//! Starts nothing.

mod jobs;
mod limits;
mod open;
mod routines;

use std::{path::PathBuf, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use self::open::check;
use self::{
    limits::{heartbeat_settings, settings_bounds, workspace_retention},
    open::{
        egress_client, free_space, notification_destinations, open_secrets, open_store, open_workspaces, own_addresses,
    },
};
use super::{
    App, ControlLoops, DataDirLock, GateExpiry, ServeError, TestOverrides,
    listeners::Listeners,
    ticks::{Tick, Ticks},
};
use auth::{SigningKey, WorkerTokens};
use base::clock::Clock;
use chat::{ChatEngine, ChatParts, Chats, Heartbeats, LiveEvents, send_rates};
use config::{Config, SandboxMode};
use dispatch::{
    AttemptRegistry, DispatcherWaker, JobSubmitter, NotificationDestinations, OpenJobs, Prober, Readiness,
    ReadinessWatch, RoutineEditor, RoutineMatchers, RoutineWaker, Sandbox, WorkerListeners, WorkspaceMeasurer,
};
use egress::EgressClient;
use engine::{Docker, DockerSettings, Engine};
use hooks::{Hooks, JobEndNotices};
use http_api::{
    metrics::MetricsEndpoint,
    public::{self, PublicApi, PublicParts, RequestLimits},
    server::Descriptors,
};
use llm::Gateway;
use mcp::{McpClient, McpParts};
use protocol::InstanceId;
use secrets::{LeakDetectors, Secrets};
use store::Store;
use telemetry::metrics::Metrics;
use tools::BuiltinTools;
use workspace::{FileWork, FreeSpace, UploadRegistry, Workspaces};

impl App {
    /// Builds all parts and starts none.
    pub async fn build(config: Config, overrides: TestOverrides) -> Result<Self, ServeError> {
        let lock = DataDirLock::acquire(&config.data_dir, &config.run_dir)?;
        let descriptors = Descriptors::in_force(config.max_parallel_jobs)?;
        let (core, prober) = Core::build(&config, overrides, descriptors).await?;
        let (tools, submitter) = core.tools_and_submitter(&config)?;
        let listeners = Listeners::new(&core.metrics, descriptors);
        let worker_listeners = Arc::new(WorkerListeners::new(
            config.run_dir.clone(),
            listeners.worker(core.worker_api(&config, &tools, descriptors.tunnels)),
            Arc::clone(&core.attempts),
        ));
        let dispatcher = core.dispatcher(&config, &worker_listeners, &tools);
        let (metrics_endpoint, metrics_server) = listeners.metrics(config.metrics_bind, core.store.clone()).await?;
        let submitter_of_runs = core.submitter(&config, core.store.control(), submitter.ceiling.clone());
        let runner = core.runner(&config, &tools, submitter_of_runs);
        let routines = core.routine_editor(&config, Arc::clone(&submitter));
        let chats = core.chats(&config, &tools, Arc::clone(&submitter));
        let chat_engine = Arc::clone(&chats.engine);
        let ticks = core.ticks();
        let pending_events = core.event_handler(core.store.control());
        let notification_sender = core.notification_sender();
        let readiness_watch = core.readiness_watch(&config);
        let public_api = core.public_api(&config, tools, (chats, routines), metrics_endpoint);
        Ok(Self {
            control: ControlLoops {
                prober,
                dispatcher,
                engine_watch: core.engine_watch(),
                database_watch: core.database_watch(),
                disk_sweep: core.disk_sweep(),
            },
            worker_listeners,
            heartbeats: Heartbeats::new(Arc::clone(&chat_engine), heartbeat_settings(&config)),
            chat_engine,
            runner,
            routine_scheduler: core.routine_scheduler(&config),
            retention: core.retention_sweep(&config),
            mcp: core.mcp,
            submitter,
            job_end_notices: JobEndNotices {
                hooks: Arc::clone(&core.hooks),
                store: core.store.control(),
                metrics: core.metrics.clone(),
            },
            readiness_watch,
            gate_expiry: GateExpiry { store: core.store.control(), clock: core.clock.clone() },
            ticks,
            pending_events,
            notification_sender,
            public_server: listeners.public(config.allowed_hosts, public::router(public_api)),
            metrics_server,
            store: core.store,
            metrics: core.metrics,
            request_tasks: core.request_tasks,
            drain: core.drain,
            _lock: lock,
        })
    }
}

/// The parts below the control loops and the APIs, which share them.
struct Core {
    instance: InstanceId,
    clock: Clock,
    started_at: DateTime<Utc>,
    metrics: Metrics,
    store: Store,
    open_jobs: Arc<OpenJobs>,
    attempts: Arc<AttemptRegistry>,
    engine: Arc<dyn Engine>,
    sandbox: Arc<Sandbox>,
    key: Arc<SigningKey>,
    tokens: WorkerTokens,
    secrets: Arc<Secrets>,
    detectors: LeakDetectors,
    hooks: Arc<Hooks>,
    gateway: Arc<Gateway>,
    egress: EgressClient,
    notification_destinations: NotificationDestinations,
    routine_matchers: Arc<RoutineMatchers>,
    routine_waker: RoutineWaker,
    mcp: Arc<McpClient>,
    workspaces: Workspaces,
    workspace_measurer: WorkspaceMeasurer,
    free_space: FreeSpace,
    uploads: UploadRegistry,
    file_work: FileWork,
    logs: PathBuf,
    waker: DispatcherWaker,
    request_tasks: TaskTracker,
    drain: CancellationToken,
}

impl Core {
    /// The parts, and the task that probes the engine.
    async fn build(
        config: &Config,
        overrides: TestOverrides,
        descriptors: Descriptors,
    ) -> Result<(Self, Prober), ServeError> {
        let clock = overrides.clock.unwrap_or_else(Clock::system);
        let metrics = Metrics::default();
        let request_tasks = TaskTracker::new();
        let waker = DispatcherWaker::default();
        let open_jobs = OpenJobs::new(waker.clone());
        let attempts = AttemptRegistry::new(clock.clone(), request_tasks.clone());
        let (store, instance) =
            open_store(config, &metrics, open_jobs.observer(&attempts), &clock, descriptors).await?;
        // Also if the sandbox is disabled: containers that were started before are still supervised.
        let docker = || -> Arc<dyn Engine> { Arc::new(Docker::connect(DockerSettings::of(config, instance))) };
        let engine = overrides.engine.unwrap_or_else(docker);
        let (sandbox, prober) = match config.sandbox.mode {
            SandboxMode::Docker => Sandbox::new(Arc::clone(&engine), clock.clone()),
            SandboxMode::Disabled => Sandbox::disabled(Arc::clone(&engine), clock.clone()),
        };
        let sandbox = Arc::new(sandbox);
        let key = Arc::new(SigningKey::load(config.jwt_secret.as_ref(), &config.data_dir)?);
        let free_space = free_space(config, overrides.space);
        let workspaces = open_workspaces(config, &store).await;
        let secrets = Arc::new(open_secrets(config, &store).await?);
        let detectors = LeakDetectors::new(Arc::clone(&secrets))?;
        let own = own_addresses(config).await;
        let hooks = Arc::new(Hooks::new(&config.hooks, &own, detectors.clone(), clock.clone())?);
        let notification_destinations = notification_destinations(config, own.clone())?;
        let egress = egress_client(config, own, overrides.look_up)?;
        let mcp = Arc::new(McpClient::new(
            &config.mcp,
            McpParts {
                egress: egress.clone(),
                secrets: Arc::clone(&secrets),
                detectors: detectors.clone(),
                engine: Arc::clone(&engine),
                sandbox: Arc::clone(&sandbox),
                clock: clock.clone(),
            },
        )?);
        let core = Self {
            instance,
            tokens: WorkerTokens::new(Arc::clone(&key), instance),
            detectors,
            hooks,
            secrets,
            gateway: Arc::new(Gateway::new(&config.llm)?),
            workspace_measurer: WorkspaceMeasurer::new(workspaces.clone(), Arc::clone(&engine)),
            uploads: UploadRegistry::new(free_space.clone()),
            file_work: FileWork::default(),
            free_space,
            logs: config.data_dir.join("logs"),
            waker,
            routine_waker: RoutineWaker::default(),
            request_tasks,
            drain: CancellationToken::new(),
            routine_matchers: Arc::new(RoutineMatchers::new(clock.clone())),
            started_at: clock.now(),
            clock,
            metrics,
            store,
            open_jobs,
            attempts,
            engine,
            sandbox,
            egress,
            notification_destinations,
            key,
            mcp,
            workspaces,
        };
        Ok((core, prober))
    }

    fn chats(&self, config: &Config, tools: &Arc<BuiltinTools>, submitter: Arc<JobSubmitter>) -> Arc<Chats> {
        let engine = ChatEngine::new(ChatParts {
            store: self.store.control(),
            meter: self.meter(config),
            tools: Arc::clone(tools),
            hooks: Arc::clone(&self.hooks),
            clock: self.clock.clone(),
            live: LiveEvents::default(),
            max_turns: config.chat_max_turns,
            max_turns_per_user: config.chat_max_turns_per_user,
            default_model: config.llm.primary.model.clone(),
            models: settings_bounds(config).models,
            outage_patience: Duration::from_secs(config.llm.outage_patience_seconds),
        });
        Arc::new(Chats {
            store: self.store.clone(),
            engine,
            submitter,
            detectors: self.detectors.clone(),
            rates: send_rates(config.chat_send_burst),
            waker: self.waker.clone(),
            clock: self.clock.clone(),
        })
    }

    fn public_api(
        &self,
        config: &Config,
        tools: Arc<BuiltinTools>,
        (chats, routines): (Arc<Chats>, Arc<RoutineEditor>),
        metrics_endpoint: MetricsEndpoint,
    ) -> PublicApi {
        PublicApi::new(PublicParts {
            store: self.store.clone(),
            has_dashboard: config.dashboard,
            instance: self.instance,
            key: Arc::clone(&self.key),
            clock: self.clock.clone(),
            readiness: self.readiness(config),
            workspaces: self.workspaces.clone(),
            retention: workspace_retention(config),
            secrets: Arc::clone(&self.secrets),
            detectors: self.detectors.clone(),
            settings_bounds: settings_bounds(config),
            gateway: Arc::clone(&self.gateway),
            waker: self.waker.clone(),
            tools,
            inbound: self.inbound(config),
            submitter: Arc::clone(&chats.submitter),
            chats,
            routines,
            tasks: self.request_tasks.clone(),
            metrics: self.metrics.clone(),
            metrics_endpoint,
            logs: self.logs.clone(),
            file_work: self.file_work.clone(),
            uploads: self.uploads.clone(),
            drain: self.drain.clone(),
            limits: RequestLimits::default(),
        })
    }

    fn readiness(&self, config: &Config) -> Readiness {
        Readiness {
            sandbox: Arc::clone(&self.sandbox),
            gateway: Arc::clone(&self.gateway),
            free_space: self.free_space.clone(),
            model: config.defaults.model.as_ref().unwrap_or(&config.llm.primary.model).clone(),
            slots: config.max_parallel_jobs,
            started_at: self.started_at,
        }
    }

    fn readiness_watch(&self, config: &Config) -> ReadinessWatch {
        let (readiness, store) = (self.readiness(config), self.store.control());
        ReadinessWatch { readiness, store, clock: self.clock.clone() }
    }

    /// The ticks that wake control loops, besides what wakes them.
    fn ticks(&self) -> Ticks {
        let (waker, routines, runs) = (self.waker.clone(), self.routine_waker.clone(), self.routine_waker.clone());
        Ticks::default()
            .with(Tick::TenSeconds, move || waker.wake())
            .with(Tick::Second, move || routines.wake_scheduler())
            // Runs that another process has claimed.
            .with(Tick::TenSeconds, move || runs.wake_runs())
    }
}
