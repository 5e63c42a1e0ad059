//! An engine that makes no containers: what it is asked for it keeps in a table, and a worker is the test itself or a plain
//! process.
//!
//! Owns the table, the faults a story asks for, and the points a story waits for. Never isolates anything.

use std::{
    collections::{BTreeMap, VecDeque},
    os::unix::net::UnixStream,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::future::BoxFuture;
use orchestrator::engine::{
    Adoption, AdoptionSpec, ContainerSpec, ContainerStatus, ContainerView, Engine, EngineError, EngineFacts,
    ReadinessReason, SandboxReadiness,
};
use protocol::JobId;
use tokio::sync::{Notify, watch};
use tokio_util::task::TaskTracker;

use crate::{HandWorker, process};

/// Who works in the containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workers {
    /// The story, through a [`HandWorker`].
    Hand,
    /// `gantry-worker`, as a process of this machine.
    Process,
}

/// How a start fails.
pub type NotStarted = EngineError;

/// What the engine has.
#[derive(Debug, Clone)]
pub struct Container {
    /// What was asked for.
    pub spec: ContainerSpec,
    /// The engine's id.
    pub id: String,
    /// What it does.
    pub status: ContainerStatus,
    /// The worker's token, as its file said when the container was started.
    pub(crate) token: String,
    /// Of its process.
    pub(crate) pid: Option<i32>,
    /// Frozen.
    pub is_paused: bool,
    /// What its process prints.
    pub(crate) output: PathBuf,
}

/// What becomes of a try to end what runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ends {
    AtOnce,
    StopsHeld,
    Failing,
}

#[derive(Debug)]
struct Table {
    readiness: SandboxReadiness,
    containers: BTreeMap<String, Container>,
    failures: VecDeque<NotStarted>,
    holding: bool,
    ends: Ends,
    reachable: bool,
    /// Lists asked for.
    listed: u64,
    /// Pauses asked for.
    frozen: u64,
    /// Every start that was asked for, in order.
    asked: Vec<String>,
}

/// The engine; clones are the same one.
#[derive(Debug, Clone)]
pub struct FakeEngine(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    workers: Workers,
    folder: PathBuf,
    table: Mutex<Table>,
    /// For the dispatcher.
    changed: Notify,
    /// For stories.
    step: watch::Sender<u64>,
    tasks: TaskTracker,
}

/// The engine's facts, as its probe tells them.
fn facts() -> EngineFacts {
    EngineFacts {
        engine: "fake".to_owned(),
        version: "1.0.0".to_owned(),
        api_version: "1.0".to_owned(),
        node: "here".to_owned(),
        runtime: "none".to_owned(),
        runtimes: vec!["none".to_owned()],
        cgroup_version: "2".to_owned(),
        image_id: "sha256:0".to_owned(),
        posture: "sha256:1".to_owned(),
    }
}

impl FakeEngine {
    /// With workers of one kind; their output goes into `folder`.
    pub fn new(workers: Workers, folder: PathBuf) -> Self {
        let table = Table {
            readiness: SandboxReadiness::Ready(facts()),
            containers: BTreeMap::new(),
            failures: VecDeque::new(),
            holding: false,
            ends: Ends::AtOnce,
            reachable: true,
            listed: 0,
            frozen: 0,
            asked: vec![],
        };
        Self(Arc::new(Inner {
            workers,
            folder,
            table: Mutex::new(table),
            changed: Notify::new(),
            step: watch::Sender::new(0),
            tasks: TaskTracker::new(),
        }))
    }

    /// The container of a job was created and never started, as if the process had died in between.
    pub fn never_started(&self, job: JobId) {
        self.change(|table| {
            let of_job = table.containers.values_mut().find(|container| container.spec.job_id == job);
            of_job.expect("the job has a container").status = ContainerStatus::Created;
        });
    }

    /// From now on the probe says no.
    pub fn not_ready(&self, reason: ReadinessReason) {
        let detail = format!("the story says {}", reason.as_str());
        self.change(|table| table.readiness = SandboxReadiness::NotReady { reason, detail });
    }

    /// From now on the probe says yes.
    pub fn ready(&self) {
        self.change(|table| table.readiness = SandboxReadiness::Ready(facts()));
    }

    /// The next start fails so; several queue up.
    pub fn fail_start(&self, error: NotStarted) {
        self.change(|table| table.failures.push_back(error));
    }

    /// Starts wait (`true`) or go on.
    pub fn hold_starts(&self, hold: bool) {
        self.change(|table| table.holding = hold);
    }

    /// Stops wait (`true`) or go on.
    pub fn hold_stops(&self, hold: bool) {
        self.change(|table| table.ends = if hold { Ends::StopsHeld } else { Ends::AtOnce });
    }

    /// What runs cannot be ended or removed (`true`), or again.
    pub fn fail_ends(&self, fail: bool) {
        self.change(|table| table.ends = if fail { Ends::Failing } else { Ends::AtOnce });
    }

    /// How often a container was paused.
    pub fn count_pauses(&self) -> u64 {
        self.lock().frozen
    }

    /// How many containers run.
    pub fn count_running(&self) -> usize {
        self.lock().containers.values().filter(|container| container.status == ContainerStatus::Running).count()
    }

    /// Waits until the dispatcher has looked at the table twice more: what it saw the first time it has decided on.
    pub async fn until_listed_again(&self) {
        let seen = self.lock().listed;
        self.until("two more looks", |_| (self.lock().listed >= seen + 2).then_some(())).await;
    }

    /// Nobody answers (`false`), or again.
    pub fn reachable(&self, reachable: bool) {
        self.change(|table| table.reachable = reachable);
    }

    /// The container of a job ends by itself.
    pub fn exit(&self, job: JobId, code: i64, oom_killed: bool) {
        self.change(|table| {
            let of_job = table.containers.values_mut().find(|container| container.spec.job_id == job);
            let container = of_job.expect("the job has a container");
            assert_eq!(container.pid, None, "a process ends by its own means: use kill_worker");
            container.status = ContainerStatus::Exited { code, oom_killed };
        });
    }

    /// The container of a job is gone, as if somebody had removed it.
    pub fn vanish(&self, job: JobId) {
        self.change(|table| table.containers.retain(|_, container| container.spec.job_id != job));
    }

    /// SIGKILL for the worker's process.
    pub fn kill_worker(&self, job: JobId) {
        let pid = self.lock().containers.values().find(|container| container.spec.job_id == job).and_then(|c| c.pid);
        process::kill(pid.expect("the job has a process"));
    }

    /// Every start that was asked for, in order, by container name.
    pub fn asked(&self) -> Vec<String> {
        self.lock().asked.clone()
    }

    /// What is there now.
    pub fn containers(&self) -> Vec<Container> {
        self.lock().containers.values().cloned().collect()
    }

    /// Waits until the table is as `wanted` says; what it makes of it.
    pub async fn until<T>(&self, what: &str, mut wanted: impl FnMut(&[Container]) -> Option<T>) -> T {
        let mut step = self.0.step.subscribe();
        crate::within(what, async {
            loop {
                step.borrow_and_update();
                if let Some(found) = wanted(&self.containers()) {
                    return found;
                }
                step.changed().await.expect("the engine lives");
            }
        })
        .await
    }

    /// Waits for a start to be asked for, whether it succeeds or not.
    pub async fn until_asked(&self, count: usize) {
        self.until(&format!("{count} starts"), |_| (self.asked().len() >= count).then_some(())).await;
    }

    /// Waits until the job's container runs.
    pub async fn running(&self, job: JobId) -> Container {
        self.until("the job's container to run", |all| {
            all.iter().find(|c| c.spec.job_id == job && c.status == ContainerStatus::Running).cloned()
        })
        .await
    }

    /// Waits until the engine has no container of the job.
    pub async fn gone(&self, job: JobId) {
        self.until("the job's container to be gone", |all| all.iter().all(|c| c.spec.job_id != job).then_some(()))
            .await;
    }

    /// Waits until the engine has no container.
    pub async fn empty(&self) {
        self.until("every container to be gone", |all| all.is_empty().then_some(())).await;
    }

    /// Plays the worker of a job, once its container runs and its socket answers (after a restart a little later).
    pub async fn hand(&self, job: JobId) -> HandWorker {
        let container = self.running(job).await;
        let socket = container.spec.run_folder.join("worker.sock");
        self.until("the worker's socket", |_| UnixStream::connect(&socket).ok()).await;
        HandWorker::in_container(self.clone(), &container)
    }

    /// Waits until every process has been waited for.
    pub(crate) async fn close(&self) {
        self.0.tasks.close();
        crate::within("the workers' processes to end", self.0.tasks.wait()).await;
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, how: impl FnOnce(&mut Table) -> T) -> T {
        let changed = how(&mut self.lock());
        self.0.step.send_modify(|step| *step += 1);
        self.0.changed.notify_one();
        changed
    }

    fn answers(&self) -> Result<(), EngineError> {
        if self.lock().reachable { Ok(()) } else { Err(EngineError::Unreachable("the story says so".to_owned())) }
    }

    async fn start(&self, spec: &ContainerSpec) -> Result<String, EngineError> {
        self.answers()?;
        if let Some(there) = self.lock().containers.get(&spec.name) {
            return Ok(there.id.clone());
        }
        self.change(|table| table.asked.push(spec.name.clone()));
        self.until("starts to go on", |_| (!self.lock().holding).then_some(())).await;
        if let Some(failure) = self.change(|table| table.failures.pop_front()) {
            return Err(failure);
        }
        assert!(spec.run_folder.join("worker.sock").exists(), "the socket is there before the container");
        let token =
            std::fs::read_to_string(spec.run_folder.join("token")).expect("the token is there before the container");
        assert!(spec.workspace.is_dir(), "the workspace is there before the container");
        let id = format!("fake-{}", spec.name);
        let output = self.0.folder.join(format!("{}.out", spec.name));
        let mut container = Container {
            spec: spec.clone(),
            id: id.clone(),
            status: ContainerStatus::Running,
            token,
            pid: None,
            is_paused: false,
            output,
        };
        if self.0.workers == Workers::Process {
            let child = process::spawn(spec, &container.output);
            container.pid = child.id().and_then(|pid| i32::try_from(pid).ok());
            let (engine, name) = (self.clone(), spec.name.clone());
            self.0.tasks.spawn(async move {
                let code = process::wait(child).await;
                engine.ended(&name, code);
            });
        }
        self.change(|table| {
            table.containers.insert(spec.name.clone(), container);
        });
        Ok(id)
    }

    fn ended(&self, name: &str, code: i64) {
        self.change(|table| {
            if let Some(container) = table.containers.get_mut(name) {
                container.status = ContainerStatus::Exited { code, oom_killed: false };
                container.pid = None;
            }
        });
    }

    /// Ends what runs: asks, waits, and then no longer asks.
    async fn end(&self, name: &str, grace: Duration) -> Result<(), EngineError> {
        self.answers()?;
        let Some(container) = self.lock().containers.get(name).cloned() else { return Ok(()) };
        if container.status != ContainerStatus::Running {
            return Ok(());
        }
        if self.lock().ends == Ends::Failing {
            return Err(EngineError::Unreachable("it hangs on this one".to_owned()));
        }
        let Some(pid) = container.pid else {
            self.ended(name, 143);
            return Ok(());
        };
        if !grace.is_zero() {
            process::terminate(pid);
            if tokio::time::timeout(grace, self.stopped(name)).await.is_ok() {
                return Ok(());
            }
        }
        process::kill(pid);
        self.stopped(name).await;
        Ok(())
    }

    fn freeze(&self, name: &str, is_paused: bool) -> Result<(), EngineError> {
        self.answers()?;
        let is_new = |container: &&mut Container| container.is_paused != is_paused;
        let found = self.lock().containers.get_mut(name).filter(is_new).map(|container| {
            container.is_paused = is_paused;
            container.pid
        });
        if let Some(pid) = found {
            if let Some(pid) = pid {
                process::freeze(pid, is_paused);
            }
            self.change(|table| table.frozen += u64::from(is_paused));
        }
        Ok(())
    }

    async fn stopped(&self, name: &str) {
        self.until("a process to end", |all| {
            let running = all.iter().any(|c| c.spec.name == name && c.status == ContainerStatus::Running);
            (!running).then_some(())
        })
        .await;
    }
}

fn view(container: &Container) -> ContainerView {
    ContainerView {
        name: container.spec.name.clone(),
        id: container.id.clone(),
        job_id: Some(container.spec.job_id),
        attempt: container.spec.attempt,
        role: Some(container.spec.role),
        status: container.status,
    }
}

impl Engine for FakeEngine {
    fn probe(&self) -> BoxFuture<'_, SandboxReadiness> {
        Box::pin(async { self.lock().readiness.clone() })
    }

    fn create<'a>(&'a self, spec: &'a ContainerSpec) -> BoxFuture<'a, Result<String, EngineError>> {
        Box::pin(self.start(spec))
    }

    fn adopt<'a>(&'a self, spec: &'a AdoptionSpec) -> BoxFuture<'a, Result<Adoption, EngineError>> {
        Box::pin(async move {
            self.answers()?;
            let table = self.lock();
            Ok(match table.containers.get(&spec.name) {
                None => Adoption::NotFound,
                Some(there) if there.status == ContainerStatus::Created => Adoption::NotStarted,
                Some(there) => Adoption::Adopted { id: there.id.clone() },
            })
        })
    }

    fn observe<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<ContainerView>, EngineError>> {
        Box::pin(async move {
            self.answers()?;
            Ok(self.lock().containers.get(name).map(view))
        })
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<ContainerView>, EngineError>> {
        Box::pin(async {
            self.lock().listed += 1;
            self.0.step.send_modify(|step| *step += 1);
            self.answers()?;
            Ok(self.lock().containers.values().map(view).collect())
        })
    }

    fn stop<'a>(&'a self, name: &'a str, grace: Duration) -> BoxFuture<'a, Result<(), EngineError>> {
        Box::pin(async move {
            self.until("stops to go on", |_| (self.lock().ends != Ends::StopsHeld).then_some(())).await;
            self.end(name, grace).await
        })
    }

    fn kill<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), EngineError>> {
        Box::pin(self.end(name, Duration::ZERO))
    }

    fn pause<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), EngineError>> {
        Box::pin(async move { self.freeze(name, true) })
    }

    fn unpause<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), EngineError>> {
        Box::pin(async move { self.freeze(name, false) })
    }

    fn pid<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Option<u32>, EngineError>> {
        Box::pin(async move {
            self.answers()?;
            Ok(self.lock().containers.get(name).and_then(|container| container.pid?.try_into().ok()))
        })
    }

    fn logs<'a>(&'a self, name: &'a str, max_bytes: usize) -> BoxFuture<'a, Result<String, EngineError>> {
        Box::pin(async move {
            self.answers()?;
            let output = self.lock().containers.get(name).map(|container| container.output.clone());
            let text = output.and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
            Ok(text[text.ceil_char_boundary(text.len().saturating_sub(max_bytes))..].to_owned())
        })
    }

    fn remove<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<(), EngineError>> {
        Box::pin(async move {
            self.end(name, Duration::ZERO).await?;
            self.change(|table| table.containers.remove(name));
            Ok(())
        })
    }

    fn changed(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.0.changed.notified())
    }
}
