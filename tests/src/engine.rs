//! A fake engine without containers: requests are recorded in a table, and the worker is the test itself or a plain process.
//!
//! Owns the table, the faults that a test injects, and the conditions that a test waits for. Never isolates anything.

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

/// What runs in the containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workers {
    /// The test, through a [`HandWorker`].
    Hand,
    /// `gantry-worker`, as a process on this machine.
    Process,
}

/// How a start fails.
pub type NotStarted = EngineError;

/// A container in the table.
#[derive(Debug, Clone)]
pub struct Container {
    /// The spec it was created from.
    pub spec: ContainerSpec,
    /// The container id.
    pub id: String,
    /// The state that the engine reports.
    pub status: ContainerStatus,
    /// The worker's token, as it was in its file when the container was started.
    pub(crate) token: String,
    /// The process id of the worker process.
    pub(crate) pid: Option<i32>,
    /// Whether it is paused.
    pub is_paused: bool,
    /// The log of its process.
    pub(crate) output: PathBuf,
}

/// How attempts to stop or remove containers end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StopBehaviour {
    Immediate,
    StopsBlocked,
    Failing,
}

#[derive(Debug)]
struct Table {
    workers: Workers,
    readiness: SandboxReadiness,
    containers: BTreeMap<String, Container>,
    failures: VecDeque<NotStarted>,
    holding: bool,
    ends: StopBehaviour,
    reachable: bool,
    /// The number of list requests.
    listed: u64,
    /// The number of pause requests.
    frozen: u64,
    /// Every requested start, in order.
    requested_starts: Vec<String>,
}

/// The fake engine. Clones share one table.
#[derive(Debug, Clone)]
pub struct FakeEngine(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    folder: PathBuf,
    table: Mutex<Table>,
    /// Notifies the dispatcher.
    changed: Notify,
    /// Notifies tests.
    step: watch::Sender<u64>,
    tasks: TaskTracker,
}

/// The facts that the engine's probe returns.
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
    /// An engine with workers of one kind. Their output goes into `folder`.
    pub fn new(workers: Workers, folder: PathBuf) -> Self {
        let table = Table {
            workers,
            readiness: SandboxReadiness::Ready(facts()),
            containers: BTreeMap::new(),
            failures: VecDeque::new(),
            holding: false,
            ends: StopBehaviour::Immediate,
            reachable: true,
            listed: 0,
            frozen: 0,
            requested_starts: vec![],
        };
        Self(Arc::new(Inner {
            folder,
            table: Mutex::new(table),
            changed: Notify::new(),
            step: watch::Sender::new(0),
            tasks: TaskTracker::new(),
        }))
    }

    /// Containers that start from now on have workers of this kind.
    pub fn use_workers(&self, workers: Workers) {
        self.change(|table| table.workers = workers);
    }

    /// Turns a job's container into one that was created and never started, as if the process had died in between.
    pub fn never_started(&self, job: JobId) {
        self.change(|table| {
            let of_job = table.containers.values_mut().find(|container| container.spec.job_id == job);
            of_job.expect("the job has a container").status = ContainerStatus::Created;
        });
    }

    /// Makes the probe fail.
    pub fn not_ready(&self, reason: ReadinessReason) {
        let detail = format!("the story says {}", reason.as_str());
        self.change(|table| table.readiness = SandboxReadiness::NotReady { reason, detail });
    }

    /// Makes the probe succeed.
    pub fn ready(&self) {
        self.change(|table| table.readiness = SandboxReadiness::Ready(facts()));
    }

    /// Makes the next start fail this way. Several failures are queued.
    pub fn fail_start(&self, error: NotStarted) {
        self.change(|table| table.failures.push_back(error));
    }

    /// Blocks (`true`) or unblocks starts.
    pub fn hold_starts(&self, hold: bool) {
        self.change(|table| table.holding = hold);
    }

    /// Blocks (`true`) or unblocks stops.
    pub fn hold_stops(&self, hold: bool) {
        self.change(|table| table.ends = if hold { StopBehaviour::StopsBlocked } else { StopBehaviour::Immediate });
    }

    /// Makes containers impossible to stop or remove (`true`), or possible again.
    pub fn fail_stops(&self, fail: bool) {
        self.change(|table| table.ends = if fail { StopBehaviour::Failing } else { StopBehaviour::Immediate });
    }

    /// How often a container was paused.
    pub fn count_pauses(&self) -> u64 {
        self.lock().frozen
    }

    /// The number of running containers.
    pub fn count_running(&self) -> usize {
        self.lock().containers.values().filter(|container| container.status == ContainerStatus::Running).count()
    }

    /// Waits until the dispatcher has listed containers twice more: it has acted on the first list then.
    pub async fn until_listed_again(&self) {
        let seen = self.lock().listed;
        self.until("two more lists", |_| (self.lock().listed >= seen + 2).then_some(())).await;
    }

    /// Makes the engine unreachable (`false`) or reachable again.
    pub fn set_reachable(&self, reachable: bool) {
        self.change(|table| table.reachable = reachable);
    }

    /// Ends a job's container by itself.
    pub fn exit(&self, job: JobId, code: i64, oom_killed: bool) {
        self.change(|table| {
            let of_job = table.containers.values_mut().find(|container| container.spec.job_id == job);
            let container = of_job.expect("the job has a container");
            assert_eq!(container.pid, None, "real worker processes are ended with kill_worker");
            container.status = ContainerStatus::Exited { code, oom_killed };
        });
    }

    /// Removes a job's container, as a third party would.
    pub fn remove_container(&self, job: JobId) {
        self.change(|table| table.containers.retain(|_, container| container.spec.job_id != job));
    }

    /// Sends SIGKILL to the worker's process.
    pub fn kill_worker(&self, job: JobId) {
        let pid = self.lock().containers.values().find(|container| container.spec.job_id == job).and_then(|c| c.pid);
        process::kill(pid.expect("the job has a process"));
    }

    /// Every requested start, in order, by container name.
    pub fn requested_starts(&self) -> Vec<String> {
        self.lock().requested_starts.clone()
    }

    /// The containers that exist now.
    pub fn containers(&self) -> Vec<Container> {
        self.lock().containers.values().cloned().collect()
    }

    /// Waits until `wanted` returns a value for the table, and returns it.
    pub async fn until<T>(&self, what: &str, mut wanted: impl FnMut(&[Container]) -> Option<T>) -> T {
        let mut step = self.0.step.subscribe();
        crate::within(what, async {
            loop {
                step.borrow_and_update();
                if let Some(found) = wanted(&self.containers()) {
                    return found;
                }
                step.changed().await.expect("the fake engine exists");
            }
        })
        .await
    }

    /// Waits until a start is requested, whether it succeeds or not.
    pub async fn until_start_requested(&self, count: usize) {
        self.until(&format!("{count} starts"), |_| (self.requested_starts().len() >= count).then_some(())).await;
    }

    /// Waits until the job's container is running.
    pub async fn until_running(&self, job: JobId) -> Container {
        self.until("the job's container to run", |all| {
            all.iter().find(|c| c.spec.job_id == job && c.status == ContainerStatus::Running).cloned()
        })
        .await
    }

    /// Waits until the engine has no container of the job.
    pub async fn until_removed(&self, job: JobId) {
        self.until("the job's container to be removed", |all| all.iter().all(|c| c.spec.job_id != job).then_some(()))
            .await;
    }

    /// Waits until the engine has no containers.
    pub async fn until_empty(&self) {
        self.until("every container to be removed", |all| all.is_empty().then_some(())).await;
    }

    /// Becomes the worker of a job as soon as its container is running and its socket responds.
    pub async fn hand(&self, job: JobId) -> HandWorker {
        let container = self.until_running(job).await;
        let socket = container.spec.run_dir.join("worker.sock");
        self.until("the worker's socket", |_| UnixStream::connect(&socket).ok()).await;
        HandWorker::in_container(self.clone(), &container)
    }

    /// Waits until every process has been reaped.
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
        if self.lock().reachable { Ok(()) } else { Err(EngineError::Unreachable("simulated".to_owned())) }
    }

    async fn start(&self, spec: &ContainerSpec) -> Result<String, EngineError> {
        self.answers()?;
        if let Some(there) = self.lock().containers.get(&spec.name) {
            return Ok(there.id.clone());
        }
        self.change(|table| table.requested_starts.push(spec.name.clone()));
        self.until("starts to be unblocked", |_| (!self.lock().holding).then_some(())).await;
        if let Some(failure) = self.change(|table| table.failures.pop_front()) {
            return Err(failure);
        }
        assert!(spec.run_dir.join("worker.sock").exists(), "the socket must exist before the container");
        let token =
            std::fs::read_to_string(spec.run_dir.join("token")).expect("the token must exist before the container");
        assert!(spec.workspace.is_dir(), "the workspace must exist before the container");
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
        if self.lock().workers == Workers::Process {
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

    /// Stops what is running: SIGTERM, a grace period, SIGKILL.
    async fn end(&self, name: &str, grace: Duration) -> Result<(), EngineError> {
        self.answers()?;
        let Some(container) = self.lock().containers.get(name).cloned() else { return Ok(()) };
        if container.status != ContainerStatus::Running {
            return Ok(());
        }
        if self.lock().ends == StopBehaviour::Failing {
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
            self.until("stops to be unblocked", |_| (self.lock().ends != StopBehaviour::StopsBlocked).then_some(()))
                .await;
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
