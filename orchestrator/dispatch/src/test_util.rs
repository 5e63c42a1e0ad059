//! What the tests of this crate and of those above share: an engine that only probes, and a submitter on it.

mod plan_scene;

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use base::clock::Clock;
use config::{LlmSettings, ProviderKind, ProviderSettings};
use domain::{budget::DayLimits, request::Ceiling};
use egress::EgressPolicy;
use engine::{
    Adoption, AdoptionSpec, AttachedStreams, ContainerSpec, ContainerView, Engine, EngineError, EngineFacts,
    McpContainerSpec, SandboxReadiness,
};
use futures_util::future::BoxFuture;
use hooks::Hooks;
use llm::Gateway;
use secrets::{KeySource, LeakDetectors, Secrets};
use store::Store;
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;
use workspace::{FileWork, FreeSpace, RetentionPeriod, UploadRegistry, Workspaces};

pub use plan_scene::PlanScene;

use crate::{DispatcherWaker, JobSubmitter, Prober, Sandbox};

/// An engine whose probes wait for a permit of the test.
pub(crate) struct ProbedEngine {
    pub(crate) begun: AtomicUsize,
    pub(crate) ended: AtomicUsize,
    pub(crate) permits: Semaphore,
}

impl ProbedEngine {
    pub(crate) fn with_permits(permits: usize) -> Arc<Self> {
        Arc::new(Self { begun: AtomicUsize::new(0), ended: AtomicUsize::new(0), permits: Semaphore::new(permits) })
    }
}

// The sandbox only probes: the other methods never return.
impl Engine for ProbedEngine {
    fn probe(&self) -> BoxFuture<'_, SandboxReadiness> {
        Box::pin(async {
            let number = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
            self.permits.acquire().await.expect("a test's own values").forget();
            self.ended.fetch_add(1, Ordering::SeqCst);
            ready(number)
        })
    }

    fn create<'a>(&'a self, _: &'a ContainerSpec) -> BoxFuture<'a, Result<String, EngineError>> {
        Box::pin(std::future::pending())
    }

    fn start_mcp<'a>(&'a self, _: &'a McpContainerSpec) -> BoxFuture<'a, Result<AttachedStreams, EngineError>> {
        Box::pin(std::future::pending())
    }

    fn adopt<'a>(&'a self, _: &'a AdoptionSpec) -> BoxFuture<'a, Result<Adoption, EngineError>> {
        Box::pin(std::future::pending())
    }

    fn observe<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Option<ContainerView>, EngineError>> {
        Box::pin(std::future::pending())
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<ContainerView>, EngineError>> {
        Box::pin(std::future::pending())
    }

    fn stop<'a>(&'a self, _: &'a str, _: Duration) -> BoxFuture<'a, Result<(), EngineError>> {
        Box::pin(std::future::pending())
    }

    fn kill<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<(), EngineError>> {
        Box::pin(std::future::pending())
    }

    fn pause<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<(), EngineError>> {
        Box::pin(std::future::pending())
    }

    fn unpause<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<(), EngineError>> {
        Box::pin(std::future::pending())
    }

    fn pid<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Option<u32>, EngineError>> {
        Box::pin(std::future::pending())
    }

    fn logs<'a>(&'a self, _: &'a str, _: usize) -> BoxFuture<'a, Result<String, EngineError>> {
        Box::pin(std::future::pending())
    }

    fn remove<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<(), EngineError>> {
        Box::pin(std::future::pending())
    }

    fn changed(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::pending())
    }
}

pub(crate) fn ready(number: usize) -> SandboxReadiness {
    SandboxReadiness::Ready(EngineFacts { version: number.to_string(), ..EngineFacts::default() })
}

/// A submitter with its own store and workspaces, on an engine that is ready.
pub struct SubmitScene {
    /// The data directory.
    pub root: tempfile::TempDir,
    pub submitter: Arc<JobSubmitter>,
    pub waker: DispatcherWaker,
}

impl SubmitScene {
    /// On a clock that does not move, what was probed once stays valid.
    ///
    /// # Panics
    /// If a part cannot be built.
    pub async fn at(clock: Clock) -> Self {
        Self::build(clock, |engine, clock| Sandbox::new(engine, clock)).await
    }

    pub(crate) async fn build(
        clock: Clock,
        sandbox: impl FnOnce(Arc<ProbedEngine>, Clock) -> (Sandbox, Prober),
    ) -> Self {
        let root = tempfile::tempdir().expect("a test's own values");
        let store = Store::open(&format!("sqlite://{}", root.path().join("gantry.db").display()))
            .await
            .expect("a test's own values");
        let (sandbox, prober) = sandbox(ProbedEngine::with_permits(1), clock.clone());
        prober.probe().await;
        let secrets = Secrets::open(store.clone(), &KeySource::DataDir(root.path().to_owned()))
            .await
            .expect("a test's own values");
        let detectors = LeakDetectors::new(Arc::new(secrets)).expect("a test's own values");
        let hooks = Hooks::new(&[], &[], detectors.clone(), Clock::system()).expect("a test's own values");
        let (workspaces, waker) = (Workspaces::new(root.path().join("workspaces")), DispatcherWaker::default());
        let submitter = Arc::new(JobSubmitter {
            store,
            sandbox: Arc::new(sandbox),
            workspaces,
            retention: RetentionPeriod::from_days(7),
            uploads: UploadRegistry::new(FreeSpace::new(root.path().to_owned(), Some(0))),
            file_work: FileWork::default(),
            ceiling: Ceiling {
                limits: protocol::Limits::default(),
                default_limits: protocol::Limits::default(),
                default_plan: false,
                default_image: "image".to_owned(),
                images: vec![],
                default_model: "model".to_owned(),
                models: vec![],
                tools: vec![],
                mcp_servers: vec![],
            },
            egress: Arc::new(EgressPolicy::new(&["a.example".to_owned()], vec![]).expect("a test's own values")),
            hooks: Arc::new(hooks),
            gateway: Arc::new(gateway()),
            detectors,
            day_limits: DayLimits::default(),
            clock,
            waker: waker.clone(),
            tasks: TaskTracker::new(),
        });
        Self { root, submitter, waker }
    }
}

/// A gateway to a model that is in no price list.
fn gateway() -> Gateway {
    let provider = ProviderSettings::new("provider", ProviderKind::OpenAi, "model");
    Gateway::new(&LlmSettings::of_provider(provider)).expect("a test's own values")
}
