//! A fake engine without containers: requests are recorded in a table, and the worker is the test itself or a plain
//! process.
//!
//! Owns the table, the faults that a test injects, and the conditions that a test waits for. Never isolates anything.

mod operations;

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    os::unix::net::UnixStream,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use orchestrator::engine::{
    ContainerSpec, ContainerStatus, Docker, EngineError, EngineFacts, ReadinessReason, SandboxReadiness,
};
use protocol::JobId;
use tokio::sync::{Notify, watch};
use tokio_util::task::TaskTracker;

use crate::{ManualWorker, process};

/// The kind of worker in the containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Workers {
    /// The test, through a [`ManualWorker`].
    Manual,
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
    are_starts_blocked: bool,
    are_pauses_blocked: bool,
    change_delay: Duration,
    /// The number of changes that the dispatcher was notified of.
    delivered_changes: u64,
    stop_behaviour: StopBehaviour,
    is_reachable: bool,
    /// The number of list requests.
    list_requests: u64,
    /// The number of pause requests.
    pauses: u64,
    /// Every requested start, in order.
    requested_starts: Vec<String>,
}

/// The fake engine. Clones share one table.
#[derive(Debug, Clone)]
pub struct FakeEngine(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    directory: PathBuf,
    table: Mutex<Table>,
    mcp: OnceLock<McpEngine>,
    /// Notifies the dispatcher.
    changed: Notify,
    /// Notifies tests.
    step: watch::Sender<u64>,
    tasks: TaskTracker,
}

/// The real engine of the containers of MCP servers.
struct McpEngine(Docker);

impl fmt::Debug for McpEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("McpEngine").finish_non_exhaustive()
    }
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
    /// An engine with workers of one kind. Their output goes into `directory`.
    pub fn new(workers: Workers, directory: PathBuf) -> Self {
        let table = Table {
            workers,
            readiness: SandboxReadiness::Ready(facts()),
            containers: BTreeMap::new(),
            failures: VecDeque::new(),
            are_starts_blocked: false,
            are_pauses_blocked: false,
            change_delay: Duration::ZERO,
            delivered_changes: 0,
            stop_behaviour: StopBehaviour::Immediate,
            is_reachable: true,
            list_requests: 0,
            pauses: 0,
            requested_starts: vec![],
        };
        Self(Arc::new(Inner {
            directory,
            table: Mutex::new(table),
            mcp: OnceLock::new(),
            changed: Notify::new(),
            step: watch::Sender::new(0),
            tasks: TaskTracker::new(),
        }))
    }

    /// Containers that start from now on have workers of this kind.
    pub fn use_workers(&self, workers: Workers) {
        self.change(|table| table.workers = workers);
    }

    /// Runs the containers of MCP servers on a real engine. Without it no MCP server has an image.
    pub fn run_mcp_servers_on(&self, engine: Docker) {
        assert!(self.0.mcp.set(McpEngine(engine)).is_ok(), "the engine of MCP servers is set once");
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
        self.change(|table| table.are_starts_blocked = hold);
    }

    /// Blocks (`true`) or unblocks the answers to pause requests. The container itself is paused at once.
    pub fn hold_pauses(&self, hold: bool) {
        self.change(|table| table.are_pauses_blocked = hold);
    }

    /// Delays the notification of each change.
    pub fn delay_changes(&self, delay: Duration) {
        self.change(|table| table.change_delay = delay);
    }

    /// Waits until the dispatcher has been notified of a change.
    pub async fn until_change_delivered(&self) {
        self.until("a change to be delivered", |_| (self.lock().delivered_changes > 0).then_some(())).await;
    }

    /// Blocks (`true`) or unblocks stops.
    pub fn hold_stops(&self, hold: bool) {
        self.change(|table| {
            table.stop_behaviour = if hold { StopBehaviour::StopsBlocked } else { StopBehaviour::Immediate }
        });
    }

    /// Makes containers impossible to stop or remove (`true`), or possible again.
    pub fn fail_stops(&self, fail: bool) {
        self.change(|table| {
            table.stop_behaviour = if fail { StopBehaviour::Failing } else { StopBehaviour::Immediate }
        });
    }

    /// How often a container was paused.
    pub fn count_pauses(&self) -> u64 {
        self.lock().pauses
    }

    /// The number of running containers.
    pub fn count_running(&self) -> usize {
        self.lock().containers.values().filter(|container| container.status == ContainerStatus::Running).count()
    }

    /// Waits until the dispatcher has listed containers twice more: it has acted on the first list then.
    pub async fn until_listed_again(&self) {
        let seen = self.lock().list_requests;
        self.until("two more lists", |_| (self.lock().list_requests >= seen + 2).then_some(())).await;
    }

    /// Makes the engine unreachable (`false`) or reachable again.
    pub fn set_reachable(&self, is_reachable: bool) {
        self.change(|table| table.is_reachable = is_reachable);
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
    pub async fn manual_worker(&self, job: JobId) -> ManualWorker {
        let container = self.until_running(job).await;
        let socket = container.spec.run_dir.join("worker.sock");
        self.until("the worker's socket", |_| UnixStream::connect(&socket).ok()).await;
        ManualWorker::in_container(self.clone(), &container)
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
}
