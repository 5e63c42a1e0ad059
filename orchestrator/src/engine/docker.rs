//! The Docker engine.
//!
//! Owns the connection, what is known of the engine, and the watch over its events. Never touches a container that does
//! not carry this instance's label, and never starts one that does not show its posture.

use std::{
    collections::{HashMap, HashSet},
    path::{Path, PathBuf},
    sync::{
        Arc, MutexGuard, PoisonError,
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
    client::{Client, Fault},
    host_paths::{HostPaths, own_container_id},
    probe::ProbeMemory,
    spec::{EngineContext, ImageFacts},
    watch::Watch,
};
use super::{Adoption, AdoptionSpec, ContainerSpec, ContainerView, Engine, EngineError, SandboxReadiness};
use crate::config::Config;

mod client;
mod host_paths;
mod lifecycle;
mod posture;
mod probe;
mod seccomp;
mod spec;
mod survey;
mod watch;
mod wire;

/// Containers that are ended at the same time. A burst of some 50 ends can deadlock Docker 20.10: its libnetwork takes two
/// locks in one order while an ending container leaves its network, and in the other where it forgets the endpoint.
const MAX_CONCURRENT_ENDS: usize = 4;

/// An inspection under way.
type Look = JoinHandle<Result<wire::Inspected, Fault>>;

/// What the engine is told once.
#[derive(Debug, Clone)]
pub struct DockerSettings {
    /// `unix:///path` or `tcp://host:port`; none is Docker's usual socket.
    pub host: Option<String>,
    /// The install whose containers these are.
    pub instance_id: InstanceId,
    /// The job image that readiness asks for.
    pub image: String,
    /// The runtime that jobs get; none is the engine's default.
    pub runtime: Option<String>,
    /// One folder per live container, as the orchestrator sees it (`GANTRY_RUN_DIR`).
    pub run_dir: PathBuf,
    /// Whether jobs may open datagram sockets of INET and INET6.
    pub inet_datagrams: bool,
}

impl DockerSettings {
    /// As the configuration has them, for this install's containers.
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

/// Docker, or what speaks its API.
pub struct Docker {
    settings: DockerSettings,
    client: Arc<Client>,
    /// What was learned about the engine; none until the first call that needs it.
    known: std::sync::Mutex<Option<Arc<Known>>>,
    /// What earlier probes found.
    probed: Mutex<ProbeMemory>,
    /// The engine failed as a whole since the last probe.
    probe_stale: AtomicBool,
    /// Permits to end a container.
    ends: Semaphore,
    watch: Mutex<Watch>,
    /// Containers that something happened to since they were last looked at.
    moved: std::sync::Mutex<HashSet<String>>,
    /// Inspections that took longer than the list could wait, by container.
    looks: std::sync::Mutex<HashMap<String, Look>>,
    /// Owns those; each ends by its own time limit.
    tasks: TaskTracker,
}

/// What each container's making needs to know of the engine.
#[derive(Debug)]
struct Known {
    runtime: String,
    seccomp: String,
    paths: HostPaths,
}

impl Docker {
    /// Makes the engine's client. No call is made yet: an engine that is down is told by the probe.
    pub fn connect(settings: DockerSettings) -> Self {
        Self {
            client: Arc::new(Client::new(settings.host.as_deref())),
            settings,
            known: std::sync::Mutex::new(None),
            probed: Mutex::new(ProbeMemory::default()),
            probe_stale: AtomicBool::new(false),
            ends: Semaphore::new(MAX_CONCURRENT_ENDS),
            watch: Mutex::new(Watch::default()),
            moved: std::sync::Mutex::default(),
            looks: std::sync::Mutex::default(),
            tasks: TaskTracker::new(),
        }
    }

    /// Whether the engine has failed as a whole since this was last asked.
    fn take_probe_stale(&self) -> bool {
        self.probe_stale.swap(false, Ordering::Relaxed)
    }

    fn moved(&self) -> MutexGuard<'_, HashSet<String>> {
        self.moved.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn looks(&self) -> MutexGuard<'_, HashMap<String, Look>> {
        self.looks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Only what tells of the whole engine makes the next probe a full one: a list that fails, and a container that does not
    /// show its posture. That one container is not there, or hangs, does not.
    fn mark_stale<T>(
        &self,
        result: Result<T, EngineError>,
        is_engine_wide: impl FnOnce(&EngineError) -> bool,
    ) -> Result<T, EngineError> {
        if result.as_ref().is_err_and(is_engine_wide) {
            self.probe_stale.store(true, Ordering::Relaxed);
        }
        result
    }

    async fn known(&self) -> Result<Arc<Known>, EngineError> {
        if let Some(known) = self.remembered(None) {
            return Ok(known);
        }
        let info = self.client.info().await?;
        self.learn(info.default_runtime.unwrap_or_default()).await
    }

    /// Takes in what a fresh look at the engine says.
    async fn learn(&self, default_runtime: String) -> Result<Arc<Known>, EngineError> {
        let runtime = self.settings.runtime.clone().unwrap_or(default_runtime);
        let seccomp = seccomp::profile(self.settings.inet_datagrams)?;
        let known = Arc::new(Known { runtime, seccomp, paths: self.host_paths().await? });
        self.remembered(Some(known.clone()));
        Ok(known)
    }

    fn remembered(&self, fresh: Option<Arc<Known>>) -> Option<Arc<Known>> {
        let mut known = self.known.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if fresh.is_some() {
            *known = fresh;
        }
        known.clone()
    }

    /// How our paths become the engine's: through our own container's mounts, when we are in a container of this engine.
    async fn host_paths(&self) -> Result<HostPaths, EngineError> {
        let table = tokio::fs::read_to_string("/proc/self/mountinfo").await.unwrap_or_default();
        let Some(id) = own_container_id(&table) else { return Ok(HostPaths::Same) };
        match self.client.inspect(id).await {
            Ok(own) => Ok(HostPaths::Mounted(own.mounts.into_iter().flatten().filter_map(wire::own_mount).collect())),
            // A container of another engine: this one is reached through paths that are the same on both.
            Err(Fault::NotFound(_)) => Ok(HostPaths::Same),
            Err(fault) => Err(fault.into()),
        }
    }

    async fn image_facts(&self, name: &str) -> Result<ImageFacts, EngineError> {
        match self.client.image(name).await {
            Ok(image) => Ok(wire::image_facts(image)),
            Err(Fault::NotFound(_)) => Err(EngineError::ImageMissing(name.to_owned())),
            Err(fault) => Err(fault.into()),
        }
    }

    /// The label that is on each container of this instance.
    fn instance_label(&self) -> String {
        format!("{}={}", spec::LABEL_INSTANCE, self.settings.instance_id)
    }
}

/// The two folders of a container on the engine's host.
struct Folders {
    run_folder: PathBuf,
    workspace: PathBuf,
}

impl Known {
    fn folders(&self, spec: &ContainerSpec) -> Result<Folders, EngineError> {
        let on_host = |path: &Path| self.paths.to_host(path);
        Ok(Folders { run_folder: on_host(&spec.run_folder)?, workspace: on_host(&spec.workspace)? })
    }

    fn context<'a>(
        &'a self,
        instance_id: InstanceId,
        image: &'a ImageFacts,
        folders: &'a Folders,
    ) -> EngineContext<'a> {
        EngineContext {
            instance_id,
            runtime: &self.runtime,
            seccomp: &self.seccomp,
            image,
            run_folder: &folders.run_folder,
            workspace: &folders.workspace,
        }
    }
}

impl Engine for Docker {
    fn probe(&self) -> BoxFuture<'_, SandboxReadiness> {
        Box::pin(self.probe_all().instrument(tracing::info_span!("container.probe")))
    }

    fn create<'a>(&'a self, spec: &'a ContainerSpec) -> BoxFuture<'a, Result<String, EngineError>> {
        let span = tracing::info_span!("container.create", container.name = spec.name, attempt = spec.attempt);
        Box::pin(
            async move {
                self.mark_stale(self.start(spec).await, |error| matches!(error, EngineError::PostureMismatch { .. }))
            }
            .instrument(span),
        )
    }

    fn adopt<'a>(&'a self, spec: &'a AdoptionSpec) -> BoxFuture<'a, Result<Adoption, EngineError>> {
        let span = tracing::info_span!("container.adopt", container.name = spec.name, attempt = spec.attempt);
        Box::pin(async move { self.take_up(spec).await }.instrument(span))
    }

    fn observe<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<ContainerView>, EngineError>> {
        Box::pin(async move { self.find(name).await.map(|found| found.as_ref().map(wire::view)) })
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<ContainerView>, EngineError>> {
        Box::pin(async move {
            self.mark_stale(self.all(&[self.instance_label()]).await, |error| {
                matches!(error, EngineError::Unreachable(_) | EngineError::Other(_))
            })
        })
    }

    fn stop<'a>(&'a self, name: &'a str, grace: Duration) -> BoxFuture<'a, Result<(), EngineError>> {
        let span = tracing::info_span!("container.stop", container.name = name);
        Box::pin(async move { self.end(name, grace).await }.instrument(span))
    }

    fn kill<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), EngineError>> {
        let span = tracing::info_span!("container.kill", container.name = name);
        Box::pin(async move { self.end_now(name).await }.instrument(span))
    }

    fn pause<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), EngineError>> {
        Box::pin(async move { self.freeze(name).await })
    }

    fn unpause<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), EngineError>> {
        Box::pin(async move { self.thaw(name).await })
    }

    fn pid<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<u32>, EngineError>> {
        Box::pin(async move { self.first_process(name).await })
    }

    fn logs<'a>(&'a self, name: &'a str, max_bytes: usize) -> BoxFuture<'a, Result<String, EngineError>> {
        Box::pin(async move { self.printed(name, max_bytes).await })
    }

    fn remove<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), EngineError>> {
        let span = tracing::info_span!("container.remove", container.name = name);
        Box::pin(async move { self.clear(name).await }.instrument(span))
    }

    fn changed(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.next_change())
    }
}
