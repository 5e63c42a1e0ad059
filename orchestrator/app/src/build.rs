//! Builds all parts of the daemon from the configuration, lower layers first.
//!
//! Starts nothing.

mod limits;
mod open;

use std::{path::PathBuf, sync::Arc, time::Duration};

use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub use self::open::check;
use self::{
    limits::{
        ceiling, day_limits, definition_limits, heartbeat_settings, plan_limits, record_retention, settings_bounds,
        workspace_retention,
    },
    open::{egress_client, notification_destinations, open_secrets, open_store, open_workspaces, own_addresses},
};
use super::{
    App, ControlLoops, DataDirLock, GateExpiry, ServeError, TestOverrides,
    listeners::Listeners,
    ticks::{Tick, Ticks},
};
use auth::{SigningKey, WorkerTokens};
use base::{clock::Clock, rate_limit::ToolRateLimits};
use chat::{ChatEngine, ChatParts, Chats, Heartbeats, LiveEvents, send_rates};
use config::{Config, SandboxMode};
use dispatch::{
    ActionExecutor, AttemptRegistry, DatabaseWatch, DiskSweep, Dispatcher, DispatcherWaker, EngineWatch, EventHandler,
    EventIngestion, HostRuns, JobSubmitter, NotificationDestinations, NotificationSender, OpenJobs, PendingEventWorker,
    Prober, RoutineEditor, RoutineMatchers, RoutineWaker, RunJobs, Sandbox, TokenFiles, WebhookHandler,
    WorkerListeners, WorkspaceMeasurer,
};
use domain::request::Ceiling;
use egress::EgressClient;
use engine::{Docker, DockerSettings, Engine};
use hooks::{Hooks, JobEndNotices};
use host_jobs::HostJobs;
use http_api::{
    metrics::MetricsEndpoint,
    public::{self, Inbound, PublicApi, PublicParts, RequestLimits},
    server::Descriptors,
    worker::{self, WorkerApi},
};
use llm::{Gateway, metering::Meter};
use mcp::{McpClient, McpParts};
use routine::{Lightweight, RoutineScheduler, Runner, RunnerParts};
use secrets::{LeakDetectors, Secrets};
use store::Store;
use telemetry::metrics::Metrics;
use tools::{BuiltinTools, JobAccess, McpTools, ToolServices};
use workspace::{FileWork, FreeSpace, RetentionSweep, UploadRegistry, Workspaces};

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
            listeners.worker(worker::router(core.worker_api(&config, &tools))),
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
        let pending_events = PendingEventWorker { handler: core.event_handler(core.store.control()) };
        let notification_sender = core.notification_sender();
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
    clock: Clock,
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
        let open_jobs = OpenJobs::new(metrics.clone(), waker.clone());
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
        let mut free_space = FreeSpace::new(config.workspace_dir.clone(), config.disk_floor_mb);
        if let Some(read) = overrides.space {
            free_space = free_space.with_reader(read);
        }
        let workspaces = open_workspaces(config, &store).await;
        let secrets = Arc::new(open_secrets(config, &store).await?);
        let detectors = LeakDetectors::new(Arc::clone(&secrets))?;
        let own = own_addresses(config).await;
        let hooks = Arc::new(Hooks::new(&config.hooks, &own, detectors.clone(), clock.clone())?);
        let notification_destinations = notification_destinations(config, own.clone())?;
        let egress = egress_client(config, own)?;
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

    /// The built-in tools, and what creates jobs for the public API. The tools create jobs as well, by the control
    /// plane's connections; what a job may ask for includes the names of the tools.
    fn tools_and_submitter(&self, config: &Config) -> Result<(Arc<BuiltinTools>, Arc<JobSubmitter>), ServeError> {
        let tools = BuiltinTools::new(ToolServices {
            store: self.store.control(),
            clock: self.clock.clone(),
            rates: config.tool_rates,
            egress: self.egress.clone(),
            mcp: McpTools::new(Arc::clone(&self.mcp), self.store.control(), self.clock.clone()),
            detectors: self.detectors.clone(),
            hooks: Arc::clone(&self.hooks),
            drain: self.drain.clone(),
        })?;
        let ceiling = ceiling(config, &tools);
        let access = JobAccess {
            submitter: self.submitter(config, self.store.control(), ceiling.clone()),
            attempts: Arc::clone(&self.attempts),
            drain: self.drain.clone(),
        };
        let routines = self.routine_editor(config, Arc::clone(&access.submitter));
        let tools = tools.with_job_tools(&access, &routines)?;
        Ok((Arc::new(tools), self.submitter(config, self.store.clone(), ceiling)))
    }

    fn worker_api(&self, config: &Config, tools: &Arc<BuiltinTools>) -> WorkerApi {
        WorkerApi {
            token_files: TokenFiles::new(config.run_dir.clone()),
            attempts: Arc::clone(&self.attempts),
            store: self.store.control(),
            auth: self.tokens.clone(),
            clock: self.clock.clone(),
            waker: self.waker.clone(),
            meter: self.meter(config),
            ingestion: self.event_ingestion(),
            tools: Arc::clone(tools),
            metrics: self.metrics.clone(),
            workspace_measurer: self.workspace_measurer.clone(),
            tasks: self.request_tasks.clone(),
            lease: Duration::from_secs(config.lease_seconds),
            outage_patience: Duration::from_secs(config.llm.outage_patience_seconds),
            worker_patience: Duration::from_secs(config.worker_patience_seconds),
            drain: self.drain.clone(),
        }
    }

    fn event_ingestion(&self) -> EventIngestion {
        EventIngestion {
            store: self.store.control(),
            detectors: self.detectors.clone(),
            hooks: Arc::clone(&self.hooks),
        }
    }

    fn meter(&self, config: &Config) -> Meter {
        Meter {
            store: self.store.control(),
            detectors: self.detectors.clone(),
            gateway: Arc::clone(&self.gateway),
            clock: self.clock.clone(),
            day_limits: day_limits(config),
            tasks: self.request_tasks.clone(),
            drain: self.drain.clone(),
        }
    }

    fn engine_watch(&self) -> EngineWatch {
        EngineWatch { engine: Arc::clone(&self.engine), waker: self.waker.clone() }
    }

    fn database_watch(&self) -> DatabaseWatch {
        DatabaseWatch { store: self.store.control(), jobs: Arc::clone(&self.open_jobs) }
    }

    fn disk_sweep(&self) -> DiskSweep {
        DiskSweep {
            store: self.store.control(),
            measurer: self.workspace_measurer.clone(),
            free_space: self.free_space.clone(),
            attempts: Arc::clone(&self.attempts),
            waker: self.waker.clone(),
        }
    }

    fn dispatcher(&self, config: &Config, listeners: &Arc<WorkerListeners>, tools: &Arc<BuiltinTools>) -> Dispatcher {
        let executor = ActionExecutor {
            host_runs: self.host_runs(config, tools),
            store: self.store.control(),
            jobs: Arc::clone(&self.open_jobs),
            sandbox: Arc::clone(&self.sandbox),
            engine: Arc::clone(&self.engine),
            listeners: Arc::clone(listeners),
            attempts: Arc::clone(&self.attempts),
            workspaces: self.workspaces.clone(),
            tokens: self.tokens.clone(),
            detectors: self.detectors.clone(),
            hooks: Arc::clone(&self.hooks),
            clock: self.clock.clone(),
            metrics: self.metrics.clone(),
            logs: self.logs.clone(),
            lease: Duration::from_secs(config.lease_seconds),
        };
        let (free_space, waker) = (self.free_space.clone(), self.waker.clone());
        Dispatcher::new(executor, free_space, day_limits(config), plan_limits(config), waker)
    }

    /// What runs the jobs that have no container.
    fn host_runs(&self, config: &Config, tools: &Arc<BuiltinTools>) -> HostRuns {
        let jobs = HostJobs {
            store: self.store.control(),
            ingestion: self.event_ingestion(),
            meter: self.meter(config),
            tools: Arc::clone(tools),
            clock: self.clock.clone(),
            waker: self.waker.clone(),
            outage_patience: Duration::from_secs(config.llm.outage_patience_seconds),
            drain: self.drain.clone(),
        };
        HostRuns { run: jobs.into_runner(), waker: self.waker.clone(), tasks: self.request_tasks.clone() }
    }

    fn submitter(&self, config: &Config, store: Store, ceiling: Ceiling) -> Arc<JobSubmitter> {
        Arc::new(JobSubmitter {
            store,
            sandbox: Arc::clone(&self.sandbox),
            workspaces: self.workspaces.clone(),
            retention: workspace_retention(config),
            uploads: self.uploads.clone(),
            file_work: self.file_work.clone(),
            ceiling,
            egress: Arc::clone(self.egress.policy()),
            hooks: Arc::clone(&self.hooks),
            gateway: Arc::clone(&self.gateway),
            detectors: self.detectors.clone(),
            day_limits: day_limits(config),
            clock: self.clock.clone(),
            waker: self.waker.clone(),
            tasks: self.request_tasks.clone(),
        })
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

    fn event_handler(&self, store: Store) -> Arc<EventHandler> {
        Arc::new(EventHandler::new(
            store,
            Arc::clone(&self.routine_matchers),
            self.routine_waker.clone(),
            self.clock.clone(),
        ))
    }

    fn inbound(&self, config: &Config) -> Inbound {
        let (secrets, matchers) = (Arc::clone(&self.secrets), Arc::clone(&self.routine_matchers));
        Inbound {
            events: self.event_handler(self.store.clone()),
            rates: ToolRateLimits::new(config.inbound_rate),
            webhooks: WebhookHandler::new(
                self.store.clone(),
                secrets,
                matchers,
                self.routine_waker.clone(),
                self.clock.clone(),
            ),
        }
    }

    fn notification_sender(&self) -> NotificationSender {
        NotificationSender {
            store: self.store.control(),
            secrets: Arc::clone(&self.secrets),
            destinations: self.notification_destinations.clone(),
            clock: self.clock.clone(),
            process: uuid::Uuid::from_u128(rand::random()),
        }
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
            key: Arc::clone(&self.key),
            clock: self.clock.clone(),
            sandbox: Arc::clone(&self.sandbox),
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

    /// The ticks that wake control loops, besides what wakes them.
    fn ticks(&self) -> Ticks {
        let (waker, routines, runs) = (self.waker.clone(), self.routine_waker.clone(), self.routine_waker.clone());
        Ticks::default()
            .with(Tick::TenSeconds, move || waker.wake())
            .with(Tick::Second, move || routines.wake_scheduler())
            // Runs that another process has claimed.
            .with(Tick::TenSeconds, move || runs.wake_runs())
    }

    /// Works on the runs of routines.
    fn runner(&self, config: &Config, tools: &Arc<BuiltinTools>, submitter: Arc<JobSubmitter>) -> Runner {
        Runner::new(RunnerParts {
            store: self.store.control(),
            lightweight: Lightweight {
                store: self.store.control(),
                meter: self.meter(config),
                tools: Arc::clone(tools),
                hooks: Arc::clone(&self.hooks),
                clock: self.clock.clone(),
                default_model: config.llm.primary.model.clone(),
                models: settings_bounds(config).models,
                max_tool_rounds: config.routines.max_tool_rounds,
                outage_patience: Duration::from_secs(config.llm.outage_patience_seconds),
            },
            jobs: Arc::new(RunJobs { submitter }),
            waker: self.routine_waker.clone(),
            clock: self.clock.clone(),
            max_concurrent: config.routines.max_concurrent,
        })
    }

    /// Fires routines at the times of their schedules.
    fn routine_scheduler(&self, config: &Config) -> RoutineScheduler {
        RoutineScheduler {
            store: self.store.control(),
            clock: self.clock.clone(),
            waker: self.routine_waker.clone(),
            cron_enabled: config.routines.cron_enabled,
        }
    }

    /// Creates, changes and fires routines, with jobs as this submitter would create them.
    fn routine_editor(&self, config: &Config, submitter: Arc<JobSubmitter>) -> Arc<RoutineEditor> {
        Arc::new(RoutineEditor {
            submitter,
            destinations: self.notification_destinations.clone(),
            secrets: Arc::clone(&self.secrets),
            waker: self.routine_waker.clone(),
            limits: definition_limits(&config.routines),
            max_per_user: config.routines.max_per_user,
            cron_enabled: config.routines.cron_enabled,
        })
    }

    fn retention_sweep(&self, config: &Config) -> RetentionSweep {
        RetentionSweep {
            retention: workspace_retention(config),
            records: record_retention(config),
            store: self.store.clone(),
            workspaces: self.workspaces.clone(),
            logs: self.logs.clone(),
            clock: self.clock.clone(),
        }
    }
}
