//! Builds all parts of the daemon from the configuration, lower layers first.
//!
//! Starts nothing.

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use protocol::InstanceId;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    App, ControlLoops, DataDirLock, DatabaseError, GateExpiry, ServeError, TestOverrides, listeners::Listeners,
};
use crate::{
    auth::{SigningKey, WorkerTokens},
    chat::{ChatEngine, ChatParts, Chats, LiveEvents},
    clock::Clock,
    config::{Config, SandboxMode, mask_urls},
    dispatch::{
        ActionExecutor, AttemptRegistry, DiskSweep, Dispatcher, DispatcherWaker, EngineWatch, EventIngestion, HostRuns,
        JobSubmitter, Prober, Sandbox, TokenFiles, WorkerListeners, WorkspaceMeter,
        plan::{PlanLimits, SlotLimits},
    },
    domain::{
        budget::{DayLimits, micro_dollars},
        request::Ceiling,
        settings::SettingsBounds,
    },
    egress::{EgressClient, EgressPolicy, system_look_up},
    engine::{Docker, DockerSettings, Engine},
    hooks::{Hooks, JobEndNotices},
    host_jobs::HostJobs,
    http::{
        metrics::MetricsEndpoint,
        public::{self, PublicApi, PublicParts, RequestLimits},
        worker::{self, WorkerApi},
    },
    llm::{Gateway, metering::Meter},
    mcp::{McpClient, McpParts},
    secrets::{KeySource, LeakDetectors, Secrets},
    store::{RetentionLimits, Store},
    telemetry::metrics::Metrics,
    tools::{BuiltinTools, JobAccess, McpTools, ToolServices},
    workspace::{FileWork, FreeSpace, RetentionPeriod, RetentionSweep, UploadRegistry, Workspaces},
};

impl App {
    /// Builds all parts and starts none.
    pub async fn build(config: Config, overrides: TestOverrides) -> Result<Self, ServeError> {
        let lock = DataDirLock::acquire(&config.data_dir, &config.run_dir)?;
        let (core, prober) = Core::build(&config, overrides).await?;
        let (tools, submitter) = core.tools_and_submitter(&config)?;
        let listeners = Listeners::new(&core.metrics, config.max_parallel_jobs);
        let worker_listeners = Arc::new(WorkerListeners::new(
            config.run_dir.clone(),
            listeners.worker(worker::router(core.worker_api(&config, &tools))),
            Arc::clone(&core.attempts),
        ));
        let dispatcher = core.dispatcher(&config, &worker_listeners, &tools);
        let (metrics_endpoint, metrics_server) = listeners.metrics(config.metrics_bind, core.store.clone()).await?;
        let chats = core.chats(&config, &tools, Arc::clone(&submitter));
        let chat_engine = Arc::clone(&chats.engine);
        let public_api = core.public_api(&config, tools, chats, metrics_endpoint);
        Ok(Self {
            control: ControlLoops {
                prober,
                dispatcher,
                engine_watch: core.engine_watch(),
                disk_sweep: core.disk_sweep(),
            },
            worker_listeners,
            chat_engine,
            retention: core.retention_sweep(&config),
            mcp: core.mcp,
            submitter,
            job_end_notices: JobEndNotices { hooks: Arc::clone(&core.hooks), store: core.store.control() },
            gate_expiry: GateExpiry { store: core.store.control(), clock: core.clock.clone() },
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
    mcp: Arc<McpClient>,
    workspaces: Workspaces,
    workspace_meter: WorkspaceMeter,
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
    async fn build(config: &Config, overrides: TestOverrides) -> Result<(Self, Prober), ServeError> {
        let clock = overrides.clock.unwrap_or_else(Clock::system);
        let metrics = Metrics::default();
        let request_tasks = TaskTracker::new();
        let attempts = AttemptRegistry::new(clock.clone(), request_tasks.clone());
        let (store, instance) = open_store(config, &metrics, &attempts, &clock).await?;
        // Also if the sandbox is disabled: containers that were started before are still supervised.
        let docker = || -> Arc<dyn Engine> { Arc::new(Docker::connect(DockerSettings::of(config, instance))) };
        let engine = overrides.engine.unwrap_or_else(docker);
        let (sandbox, prober) = match config.sandbox.mode {
            SandboxMode::Docker => Sandbox::new(Arc::clone(&engine), clock.clone()),
            SandboxMode::Disabled => Sandbox::disabled(Arc::clone(&engine), clock.clone()),
        };
        let sandbox = Arc::new(sandbox);
        let key = Arc::new(SigningKey::load(config.jwt_secret.as_ref(), &config.data_dir)?);
        let free_space = FreeSpace::new(config.workspace_dir.clone(), config.disk_floor_mb);
        let free_space = match overrides.space {
            Some(read) => free_space.with_reader(read),
            None => free_space,
        };
        let workspaces = open_workspaces(config, &store).await;
        let secrets = Arc::new(open_secrets(config, &store).await?);
        let detectors = LeakDetectors::new(Arc::clone(&secrets))?;
        let own = own_addresses(config).await;
        let hooks = Arc::new(Hooks::new(&config.hooks, &own, detectors.clone(), clock.clone())?);
        let egress = egress_client(config, own)?;
        let mcp = Arc::new(McpClient::new(
            &config.mcp,
            McpParts {
                egress: egress.clone(),
                secrets: Arc::clone(&secrets),
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
            workspace_meter: WorkspaceMeter::new(workspaces.clone(), Arc::clone(&engine)),
            uploads: UploadRegistry::new(free_space.clone()),
            file_work: FileWork::default(),
            free_space,
            logs: config.data_dir.join("logs"),
            waker: DispatcherWaker::default(),
            request_tasks,
            drain: CancellationToken::new(),
            clock,
            metrics,
            store,
            attempts,
            engine,
            sandbox,
            egress,
            key,
            mcp,
            workspaces,
        };
        Ok((core, prober))
    }

    /// The built-in tools, and what creates jobs for the public API. The tools create jobs as well, by the control plane's
    /// connections; what a job may ask for includes the names of the tools.
    fn tools_and_submitter(&self, config: &Config) -> Result<(Arc<BuiltinTools>, Arc<JobSubmitter>), ServeError> {
        let tools = BuiltinTools::new(ToolServices {
            store: self.store.control(),
            clock: self.clock.clone(),
            rates: config.tool_rates,
            egress: self.egress.clone(),
            mcp: McpTools::new(Arc::clone(&self.mcp), self.store.control(), self.clock.clone(), self.detectors.clone()),
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
        let tools = tools.with_job_tools(&access)?;
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
            workspace_meter: self.workspace_meter.clone(),
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

    fn disk_sweep(&self) -> DiskSweep {
        DiskSweep {
            store: self.store.control(),
            meter: self.workspace_meter.clone(),
            free_space: self.free_space.clone(),
            attempts: Arc::clone(&self.attempts),
            waker: self.waker.clone(),
        }
    }

    fn dispatcher(&self, config: &Config, listeners: &Arc<WorkerListeners>, tools: &Arc<BuiltinTools>) -> Dispatcher {
        let executor = ActionExecutor {
            host_runs: self.host_runs(config, tools),
            store: self.store.control(),
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
            waker: self.waker.clone(),
            clock: self.clock.clone(),
        })
    }

    fn public_api(
        &self,
        config: &Config,
        tools: Arc<BuiltinTools>,
        chats: Arc<Chats>,
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
            submitter: Arc::clone(&chats.submitter),
            chats,
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

    fn retention_sweep(&self, config: &Config) -> RetentionSweep {
        RetentionSweep {
            retention: workspace_retention(config),
            records: RetentionLimits {
                days: config.record_retention_days,
                audit_days: config.audit_retention_days,
                max_mb: config.record_retention_max_mb,
            },
            store: self.store.clone(),
            workspaces: self.workspaces.clone(),
            logs: self.logs.clone(),
            clock: self.clock.clone(),
        }
    }
}

async fn open_store(
    config: &Config,
    metrics: &Metrics,
    attempts: &Arc<AttemptRegistry>,
    clock: &Clock,
) -> Result<(Store, InstanceId), ServeError> {
    let at_url = |source| DatabaseError { url: mask_urls(&config.database_url), source };
    let observer = attempts.observer();
    let store = Store::open_observed(&config.database_url, metrics.clone(), observer).await.map_err(at_url)?;
    let instance = match config.instance_id {
        Some(instance) => instance,
        None => store.instance_id().await.map_err(at_url)?,
    };
    // Nothing is in flight when a process starts.
    let aborted = store.close_abandoned_calls(clock.now()).await.map_err(at_url)?;
    let interrupted = store.close_interrupted_tool_calls().await.map_err(at_url)?;
    let turns = store.close_interrupted_chat_turns(clock.now()).await.map_err(at_url)?;
    if aborted > 0 || interrupted > 0 || turns > 0 {
        tracing::warn!(aborted, interrupted, turns, "closed calls and chat turns that the last process left open");
    }
    Ok((store, instance))
}

/// Users' secrets, with the key that opens them.
async fn open_secrets(config: &Config, store: &Store) -> Result<Secrets, ServeError> {
    let source = KeySource::new(config.master_key.as_ref(), &config.data_dir);
    Ok(Secrets::open(store.control(), &source).await?)
}

/// The workspaces, without what requests of an earlier process left unfinished.
async fn open_workspaces(config: &Config, store: &Store) -> Workspaces {
    let workspaces = Workspaces::new(config.workspace_dir.clone());
    workspaces.remove_staging_dirs();
    workspaces.remove_abandoned(store, Duration::ZERO).await;
    workspaces
}

fn egress_client(config: &Config, own: Vec<SocketAddr>) -> Result<EgressClient, ServeError> {
    let policy = EgressPolicy::new(&config.egress_ceiling, own);
    let policy = policy.map_err(|(index, source)| {
        let entry = config.egress_ceiling.get(index).map(|entry| mask_urls(entry)).unwrap_or_default();
        ServeError::EgressCeiling { entry, source }
    })?;
    Ok(EgressClient::new(Arc::new(policy), system_look_up()))
}

/// What no job and no hook may reach over the network, whatever the operator allows: this daemon's listeners and the engine.
async fn own_addresses(config: &Config) -> Vec<SocketAddr> {
    let mut own = vec![config.bind];
    own.extend(config.metrics_bind);
    let engine = config.sandbox.docker_host.as_deref().and_then(|address| address.strip_prefix("tcp://"));
    let authority = engine.and_then(|address| address.split('/').next()?.rsplit('@').next());
    if let Some(authority) = authority {
        match tokio::net::lookup_host(authority).await {
            Ok(addresses) => own.extend(addresses),
            Err(error) => tracing::warn!(%error, "the engine's address cannot be resolved"),
        }
    }
    own
}

fn workspace_retention(config: &Config) -> RetentionPeriod {
    RetentionPeriod::from_days(config.workspace_retention_days)
}

fn day_limits(config: &Config) -> DayLimits {
    DayLimits { max_tokens: config.user_day_max_tokens, max_micro_usd: micro_dollars(config.user_day_max_cost_usd) }
}

fn plan_limits(config: &Config) -> PlanLimits {
    PlanLimits {
        container_slots: SlotLimits {
            total: config.max_parallel_jobs as usize,
            per_user: config.max_parallel_jobs_per_user as usize,
        },
        host_slots: SlotLimits {
            total: config.max_parallel_host_jobs as usize,
            // One less, like the default of jobs in containers: a user leaves a slot to the others.
            per_user: (config.max_parallel_host_jobs as usize).saturating_sub(1).max(1),
        },
        start_timeout: Duration::from_secs(config.start_timeout_seconds),
        lease: Duration::from_secs(config.lease_seconds),
        stuck_after: Duration::from_secs(config.stuck_after_seconds),
        max_repairs: config.max_repair_attempts,
    }
}

fn settings_bounds(config: &Config) -> SettingsBounds {
    let default_model = std::iter::once(&config.llm.primary.model);
    SettingsBounds {
        models: default_model.chain(&config.llm.models).cloned().collect(),
        min_heartbeat_seconds: config.routines.min_interval_seconds,
    }
}

fn ceiling(config: &Config, tools: &BuiltinTools) -> Ceiling {
    Ceiling {
        limits: config.limits_ceiling,
        default_image: config.sandbox.image.clone(),
        images: config.sandbox.images.clone(),
        default_model: config.llm.primary.model.clone(),
        models: config.llm.models.clone(),
        tools: tools.names_for_jobs(),
        mcp_servers: tools.mcp().server_names(),
    }
}
