//! The parts that jobs are made of: what creates them, the dispatcher, the API of workers, the runs on the host.

use std::{sync::Arc, time::Duration};

use super::{
    Core,
    limits::{ceiling, day_limits, plan_limits, record_retention, workspace_retention},
};
use crate::ServeError;
use config::Config;
use dispatch::{
    ActionExecutor, DatabaseWatch, DiskSweep, Dispatcher, EngineWatch, EventIngestion, HostRuns, JobSubmitter,
    TokenFiles, WorkerListeners,
};
use domain::request::Ceiling;
use host_jobs::HostJobs;
use http_api::worker::{Tunnels, WorkerApi};
use llm::metering::Meter;
use store::Store;
use tools::{BuiltinTools, JobAccess, McpTools, ToolServices};
use workspace::RetentionSweep;

impl Core {
    /// The built-in tools, and what creates jobs for the public API. The tools create jobs as well, by the control
    /// plane's connections; what a job may ask for includes the names of the tools.
    pub(super) fn tools_and_submitter(
        &self,
        config: &Config,
    ) -> Result<(Arc<BuiltinTools>, Arc<JobSubmitter>), ServeError> {
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

    pub(super) fn submitter(&self, config: &Config, store: Store, ceiling: Ceiling) -> Arc<JobSubmitter> {
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

    pub(super) fn worker_api(&self, config: &Config, tools: &Arc<BuiltinTools>, tunnels: usize) -> WorkerApi {
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
            egress: self.egress.clone(),
            tunnels: Tunnels::new(tunnels),
            tasks: self.request_tasks.clone(),
            lease: Duration::from_secs(config.lease_seconds),
            outage_patience: Duration::from_secs(config.llm.outage_patience_seconds),
            worker_patience: Duration::from_secs(config.worker_patience_seconds),
            drain: self.drain.clone(),
        }
    }

    pub(super) fn event_ingestion(&self) -> EventIngestion {
        EventIngestion {
            store: self.store.control(),
            detectors: self.detectors.clone(),
            hooks: Arc::clone(&self.hooks),
        }
    }

    pub(super) fn meter(&self, config: &Config) -> Meter {
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

    pub(super) fn dispatcher(
        &self,
        config: &Config,
        listeners: &Arc<WorkerListeners>,
        tools: &Arc<BuiltinTools>,
    ) -> Dispatcher {
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
    pub(super) fn host_runs(&self, config: &Config, tools: &Arc<BuiltinTools>) -> HostRuns {
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

    pub(super) fn engine_watch(&self) -> EngineWatch {
        EngineWatch { engine: Arc::clone(&self.engine), waker: self.waker.clone() }
    }

    pub(super) fn database_watch(&self) -> DatabaseWatch {
        DatabaseWatch { store: self.store.control() }
    }

    pub(super) fn disk_sweep(&self) -> DiskSweep {
        DiskSweep {
            store: self.store.control(),
            measurer: self.workspace_measurer.clone(),
            free_space: self.free_space.clone(),
            attempts: Arc::clone(&self.attempts),
            waker: self.waker.clone(),
        }
    }

    pub(super) fn retention_sweep(&self, config: &Config) -> RetentionSweep {
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
