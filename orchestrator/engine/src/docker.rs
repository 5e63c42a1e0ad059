//! The Docker engine.
//!
//! Owns the connection, the cached facts about the engine, and the watch on its events. Never touches a container
//! without this instance's label, and never starts one that does not match its posture.

use std::{
    collections::{HashMap, HashSet},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use protocol::InstanceId;
use tokio::{
    sync::{Mutex, Semaphore},
    task::JoinHandle,
};
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use self::{
    client::{Client, ClientError},
    host_paths::{HostPaths, own_container_id},
    probe::ProbeCache,
    spec::{EngineContext, ImageFacts},
    watch::Watch,
};
use super::{
    Adoption, AdoptionSpec, AttachedStreams, ContainerSpec, ContainerView, Engine, EngineError, McpContainerSpec,
    SandboxReadiness,
};
use config::Config;

mod client;
mod create;
mod end;
mod host_paths;
mod list;
mod mcp;
mod posture;
mod probe;
mod seccomp;
mod spec;
mod survey;
mod watch;
mod wire;

/// Maximum number of containers that are ended concurrently. Some 50 at once can deadlock Docker 20.10: its libnetwork
/// takes two locks in one order when an ending container leaves its network, and in the other order when it deletes the
/// endpoint.
const MAX_CONCURRENT_ENDS: usize = 4;

/// An inspection in progress.
type PendingInspection = JoinHandle<Result<wire::Inspected, ClientError>>;

#[derive(Debug, Clone)]
pub struct DockerSettings {
    /// `unix:///path` or `tcp://host:port`; default: Docker's socket.
    pub host: Option<String>,
    /// The installation that the containers belong to.
    pub instance_id: InstanceId,
    /// The default job image, which the probe uses.
    pub image: String,
    /// The runtime of jobs; default: the engine's.
    pub runtime: Option<String>,
    /// The directory of all run directories, as a path of the orchestrator (`GANTRY_RUN_DIR`).
    pub run_dir: PathBuf,
    /// Whether jobs may open INET and INET6 datagram sockets.
    pub inet_datagrams: bool,
}

impl DockerSettings {
    /// The configured settings.
    pub fn of(config: &Config, instance_id: InstanceId) -> Self {
        Self {
            host: config.sandbox.docker_host.clone(),
            instance_id,
            image: config.sandbox.image.clone(),
            runtime: config.sandbox.runtime.clone(),
            run_dir: config.run_dir.clone(),
            inet_datagrams: config.sandbox.inet_datagrams,
        }
    }
}

/// Docker, or another engine with its API.
pub struct Docker {
    settings: DockerSettings,
    client: Arc<Client>,
    /// None until the first call that needs it.
    profile: parking_lot::Mutex<Option<Arc<EngineProfile>>>,
    /// Results of earlier probes.
    probe_cache: Mutex<ProbeCache>,
    /// An engine-wide call has failed since the last probe.
    probe_stale: AtomicBool,
    /// Permits to end a container.
    ends: Semaphore,
    watch: Mutex<Watch>,
    /// Ids of containers that an event named since their last inspection.
    changed_containers: parking_lot::Mutex<HashSet<String>>,
    /// Inspections that took longer than a list waits, by container id.
    pending_inspections: parking_lot::Mutex<HashMap<String, PendingInspection>>,
    /// Owns the inspections; each has a timeout.
    tasks: TaskTracker,
}

/// The facts about the engine that creating a container depends on.
#[derive(Debug)]
struct EngineProfile {
    runtime: String,
    seccomp: String,
    paths: HostPaths,
}

impl Docker {
    /// Creates the client. Makes no call: the probe finds an engine that is down.
    pub fn connect(settings: DockerSettings) -> Self {
        Self {
            client: Arc::new(Client::new(settings.host.as_deref())),
            settings,
            profile: parking_lot::Mutex::new(None),
            probe_cache: Mutex::new(ProbeCache::default()),
            probe_stale: AtomicBool::new(false),
            ends: Semaphore::new(MAX_CONCURRENT_ENDS),
            watch: Mutex::new(Watch::default()),
            changed_containers: parking_lot::Mutex::default(),
            pending_inspections: parking_lot::Mutex::default(),
            tasks: TaskTracker::new(),
        }
    }

    /// Whether an engine-wide call has failed since the last call of this method.
    fn take_probe_stale(&self) -> bool {
        self.probe_stale.swap(false, Ordering::Relaxed)
    }

    /// Makes the next probe a full one after an engine-wide failure: a list that fails, or a container that does not match its
    /// posture. A single container that is missing or hangs is not an engine-wide failure.
    fn mark_stale_on_error<T>(
        &self,
        result: Result<T, EngineError>,
        is_engine_wide: impl FnOnce(&EngineError) -> bool,
    ) -> Result<T, EngineError> {
        if result.as_ref().is_err_and(is_engine_wide) {
            self.probe_stale.store(true, Ordering::Relaxed);
        }
        result
    }

    /// The cached profile, or a new one.
    async fn profile(&self) -> Result<Arc<EngineProfile>, EngineError> {
        let cached = self.profile.lock().clone();
        if let Some(profile) = cached {
            return Ok(profile);
        }
        let info = self.client.info().await?;
        self.update_profile(info.default_runtime.unwrap_or_default()).await
    }

    /// Replaces the cached profile.
    async fn update_profile(&self, default_runtime: String) -> Result<Arc<EngineProfile>, EngineError> {
        let runtime = self.settings.runtime.clone().unwrap_or(default_runtime);
        let seccomp = seccomp::profile(self.settings.inet_datagrams)?;
        let profile = Arc::new(EngineProfile { runtime, seccomp, paths: self.host_paths().await? });
        *self.profile.lock() = Some(Arc::clone(&profile));
        Ok(profile)
    }

    /// How the orchestrator's paths map to the host's: through its container's mounts if it runs in a container of this
    /// engine.
    async fn host_paths(&self) -> Result<HostPaths, EngineError> {
        let table = tokio::fs::read_to_string("/proc/self/mountinfo").await.unwrap_or_default();
        let Some(id) = own_container_id(&table) else { return Ok(HostPaths::Same) };
        Ok(match self.client.inspect_existing(id).await? {
            Some(own) => HostPaths::Mounted(own.mounts.into_iter().flatten().filter_map(wire::own_mount).collect()),
            // A container of another engine: its paths have to be the same on this one.
            None => HostPaths::Same,
        })
    }

    async fn image_facts(&self, name: &str) -> Result<ImageFacts, EngineError> {
        match self.client.image(name).await {
            Ok(image) => Ok(wire::image_facts(image)),
            Err(ClientError::NotFound(_)) => Err(EngineError::ImageMissing(name.to_owned())),
            Err(error) => Err(error.into()),
        }
    }

    /// The label of every container of this instance.
    fn instance_label(&self) -> String {
        format!("{}={}", spec::LABEL_INSTANCE, self.settings.instance_id)
    }
}

/// The two directories of a job's container on the engine's host.
struct HostDirs {
    run_dir: PathBuf,
    workspace: PathBuf,
}

impl EngineProfile {
    fn host_dirs(&self, spec: &ContainerSpec) -> Result<HostDirs, EngineError> {
        let on_host = |path: &Path| self.paths.to_host(path);
        Ok(HostDirs { run_dir: on_host(&spec.run_dir)?, workspace: on_host(&spec.workspace)? })
    }

    fn context<'a>(&'a self, instance_id: InstanceId, image: &'a ImageFacts) -> EngineContext<'a> {
        EngineContext { instance_id, runtime: &self.runtime, seccomp: &self.seccomp, image }
    }
}

impl Engine for Docker {
    fn probe(&self) -> BoxFuture<'_, SandboxReadiness> {
        Box::pin(self.run_probe().instrument(tracing::info_span!("container.probe")))
    }

    fn create<'a>(&'a self, spec: &'a ContainerSpec) -> BoxFuture<'a, Result<String, EngineError>> {
        let span = tracing::info_span!("container.create", container.name = spec.name, attempt = spec.attempt);
        Box::pin(
            async move {
                self.mark_stale_on_error(self.create_and_start(spec).await, |error| {
                    matches!(error, EngineError::PostureMismatch { .. })
                })
            }
            .instrument(span),
        )
    }

    fn start_mcp<'a>(&'a self, spec: &'a McpContainerSpec) -> BoxFuture<'a, Result<AttachedStreams, EngineError>> {
        let span = tracing::info_span!("container.start_mcp", container.name = spec.name, mcp.server = spec.server);
        Box::pin(
            async move {
                self.mark_stale_on_error(self.start_mcp_container(spec).await, |error| {
                    matches!(error, EngineError::Unreachable(_))
                })
            }
            .instrument(span),
        )
    }

    fn adopt<'a>(&'a self, spec: &'a AdoptionSpec) -> BoxFuture<'a, Result<Adoption, EngineError>> {
        let span = tracing::info_span!("container.adopt", container.name = spec.name, attempt = spec.attempt);
        Box::pin(async move { self.adopt_container(spec).await }.instrument(span))
    }

    fn observe<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<ContainerView>, EngineError>> {
        Box::pin(async move { self.find(name).await.map(|found| found.as_ref().map(wire::view)) })
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<ContainerView>, EngineError>> {
        Box::pin(async move {
            self.mark_stale_on_error(self.list_containers(&[self.instance_label()]).await, |error| {
                matches!(error, EngineError::Unreachable(_) | EngineError::Other(_))
            })
        })
    }

    fn stop<'a>(&'a self, name: &'a str, grace: Duration) -> BoxFuture<'a, Result<(), EngineError>> {
        let span = tracing::info_span!("container.stop", container.name = name);
        Box::pin(async move { self.stop_container(name, grace).await }.instrument(span))
    }

    fn kill<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), EngineError>> {
        let span = tracing::info_span!("container.kill", container.name = name);
        Box::pin(async move { self.kill_container(name).await }.instrument(span))
    }

    fn pause<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), EngineError>> {
        Box::pin(async move { self.pause_container(name).await })
    }

    fn unpause<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), EngineError>> {
        Box::pin(async move { self.unpause_container(name).await })
    }

    fn pid<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<u32>, EngineError>> {
        Box::pin(async move { self.host_pid(name).await })
    }

    fn logs<'a>(&'a self, name: &'a str, max_bytes: usize) -> BoxFuture<'a, Result<String, EngineError>> {
        Box::pin(async move { self.output(name, max_bytes).await })
    }

    fn remove<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), EngineError>> {
        let span = tracing::info_span!("container.remove", container.name = name);
        Box::pin(async move { self.remove_container(name).await }.instrument(span))
    }

    fn changed(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.next_change())
    }
}
