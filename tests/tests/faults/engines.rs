//! The engine while jobs run: it hangs (accepts and never responds), and it is killed and restarted.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use protocol::{ErrorCode, JobReason, JobState, RoutineRun, RunReason, RunStatus};
use serde_json::json;
use tempfile::TempDir;
use tests::{
    WAIT_TIMEOUT,
    install::{
        engine::{docker, must, wait_until},
        jobs::{is_tool_use, release},
        stack::image as job_image,
    },
    routines::runs,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        UnixListener, UnixStream,
        unix::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::watch,
    task::JoinSet,
};

use crate::{
    invariants::check_invariants,
    schedule::{create, stop},
    setup::install,
};

/// The socket of the machine's engine.
const ENGINE: &str = "/var/run/docker.sock";
/// Upper bound for noticing that the engine is back.
const MAX_NOTICE_DELAY: Duration = Duration::from_secs(2);
/// Timeout for the start of a daemon.
const START_TIMEOUT: Duration = Duration::from_secs(30);

#[tokio::test]
async fn a_hanging_engine_loses_no_running_job() {
    let proxy = EngineProxy::open();
    let stack = install().set("DOCKER_HOST", &proxy.host()).start().await;
    let ada = stack.user("ada").await;
    let [ending, cancelled, continuing] =
        [ada.create_job("gate").await, ada.create_job("gate").await, ada.create_job("gate").await];
    for id in [ending, cancelled, continuing] {
        ada.wait_for_event(id, "a tool call", is_tool_use).await;
    }
    proxy.suspend();
    // Workers need no engine: one does its work and reports.
    release(&stack, ending);
    assert_eq!(ada.wait_for_end(ending).await.state, JobState::Completed);
    // Readiness is cached for one second, and a probe of a silent engine takes its timeout.
    let not_ready = async || stack.anonymous().get("/readyz").await.status == 503;
    wait_until("the orchestrator to notice that the engine is unreachable", WAIT_TIMEOUT, not_ready).await;
    // Readiness must not be reported while nothing can run, and no job may end while its container may be running.
    let refused = ada.post("/api/jobs", &json!({"prompt": "work 1"})).await.problem(ErrorCode::SandboxUnavailable);
    assert_eq!(refused.body["reason"], "engine_unreachable");
    ada.cancel(cancelled).await.expect(202);
    assert_eq!(ada.job(cancelled).await.state, JobState::InProgress);
    proxy.resume();
    assert_eq!(ada.wait_for_end(cancelled).await.state, JobState::Cancelled);
    release(&stack, continuing);
    let job = ada.wait_for_end(continuing).await;
    assert_eq!((job.state, job.attempt), (JobState::Completed, 1), "{job:#?}");
    check_invariants(&stack).await;
    stack.finish().await;
}

#[tokio::test]
async fn startup_waits_for_a_hanging_engine() {
    let proxy = EngineProxy::open();
    let mut stack = install().set("DOCKER_HOST", &proxy.host()).start().await;
    let ada = stack.user("ada").await;
    let id = ada.create_job("gate").await;
    ada.wait_for_event(id, "a tool call", is_tool_use).await;
    stack.kill();
    proxy.suspend();
    stack.restart().await;
    let ready = stack.anonymous().get("/readyz").await.expect(503);
    assert_eq!(ready.body["sandbox"]["reason"], "engine_unreachable");
    release(&stack, id);
    assert_eq!(ada.job(id).await.state, JobState::InProgress, "a container that cannot be listed is not lost");
    proxy.resume();
    let job = ada.wait_for_end(id).await;
    assert_eq!((job.state, job.attempt, job.usage.llm_calls), (JobState::Completed, 1, 2), "{job:#?}");
    check_invariants(&stack).await;
    stack.finish().await;
}

#[tokio::test]
async fn an_engine_that_hangs_on_one_container_delays_no_other_job() {
    let proxy = EngineProxy::open();
    let stack = install().set("DOCKER_HOST", &proxy.host()).start().await;
    let ada = stack.user("ada").await;
    let [hanging, unaffected, killed_job] =
        [ada.create_job("gate").await, ada.create_job("gate").await, ada.create_job("gate").await];
    for id in [hanging, unaffected, killed_job] {
        ada.wait_for_event(id, "a tool call", is_tool_use).await;
    }
    let container = ada.job(hanging).await.container.expect("it runs in one");
    let id = container.id.expect("it was started");
    proxy.ignore_requests_about(&[&container.name, &id]);
    must(&["kill", &id]).await;
    release(&stack, unaffected);
    assert_eq!(ada.wait_for_end(unaffected).await.state, JobState::Completed);
    let name = ada.job(killed_job).await.container.expect("it runs in one").name;
    must(&["kill", &name]).await;
    let killed = Instant::now();
    let job = ada.wait_for_end(killed_job).await;
    let noticed = killed.elapsed();
    assert_eq!((job.state, job.reason), (JobState::Failed, Some(JobReason::WorkerCrashed)), "{job:#?}");
    assert!(noticed < MAX_NOTICE_DELAY, "noticed after {noticed:?}");
    let later = ada.create_job("work 1").await;
    assert_eq!(ada.wait_for_end(later).await.state, JobState::Completed);
    assert_eq!(
        ada.job(hanging).await.state,
        JobState::InProgress,
        "without an answer from the engine the state must not change"
    );
    proxy.ignore_requests_about(&[]);
    let job = ada.wait_for_end(hanging).await;
    assert_eq!((job.state, job.reason), (JobState::Failed, Some(JobReason::WorkerCrashed)), "{job:#?}");
    check_invariants(&stack).await;
    stack.finish().await;
}

#[tokio::test]
async fn jobs_survive_an_engine_restart_if_their_containers_do() {
    let mut engine = SecondEngine::install().await;
    let stack = install().on_engine(&engine.host()).start().await;
    let ada = stack.user("ada").await;

    // Without live-restore, a restarted daemon ends the containers that survived it.
    let id = ada.create_job("gate").await;
    ada.wait_for_event(id, "a tool call", is_tool_use).await;
    engine.kill();
    // Readiness is cached for one second.
    let not_ready = async || stack.anonymous().get("/readyz").await.status == 503;
    wait_until("the orchestrator to notice that the engine is unreachable", MAX_NOTICE_DELAY, not_ready).await;
    let refused = ada.post("/api/jobs", &json!({"prompt": "work 1"})).await.problem(ErrorCode::SandboxUnavailable);
    assert_eq!(refused.body["reason"], "engine_unreachable");
    assert_eq!(ada.job(id).await.state, JobState::InProgress, "the container runs without a daemon");
    engine.start(&[]).await;
    let back = Instant::now();
    let job = ada.wait_for_end(id).await;
    let noticed = back.elapsed();
    assert_eq!((job.state, job.reason, job.attempt), (JobState::Failed, Some(JobReason::WorkerCrashed), 1), "{job:#?}");
    assert!(noticed < MAX_NOTICE_DELAY, "noticed {noticed:?} after the engine was back");
    check_invariants(&stack).await;

    // With live-restore, the job is not affected.
    engine.kill();
    engine.start(&["--live-restore"]).await;
    let ready = async || stack.anonymous().get("/readyz").await.status == 200;
    wait_until("the orchestrator to notice that the engine is back", MAX_NOTICE_DELAY, ready).await;
    let id = ada.create_job("gate").await;
    ada.wait_for_event(id, "a tool call", is_tool_use).await;
    engine.kill();
    engine.start(&["--live-restore"]).await;
    release(&stack, id);
    let job = ada.wait_for_end(id).await;
    assert_eq!((job.state, job.attempt, job.usage.llm_calls), (JobState::Completed, 1, 2), "{job:#?}");
    check_invariants(&stack).await;
    stack.finish().await;
}

#[tokio::test]
async fn a_routine_fails_at_once_while_the_engine_is_down_and_works_again_at_its_next_time() {
    let mut engine = SecondEngine::install().await;
    let stack = install().set("GANTRY_ROUTINE_MIN_INTERVAL_SECONDS", "1").on_engine(&engine.host()).start().await;
    let ada = stack.user("ada").await;
    let job = json!({"type": "full_job", "description": "work 1"});
    let every = json!({"type": "every", "every_seconds": 2});
    let routine = create(&ada, "often", every, job, json!({"disable_after_failures": 0, "max_concurrent": 10})).await;
    let any = async |wanted: fn(&RoutineRun) -> bool| runs(&ada, routine.id).await.into_iter().find(wanted);
    tests::until("a run that succeeds", async || any(|run| run.status.is_success()).await.is_some()).await;
    engine.kill();
    let is_refused = |run: &RoutineRun| run.reason == Some(RunReason::SandboxUnavailable);
    let failed = tests::poll("a run without an engine", async || any(is_refused).await).await;
    let took = failed.completed_at.expect("it has ended") - failed.due_at.expect("it has a time");
    assert!(took.to_std().expect("it ends after its time") < MAX_NOTICE_DELAY, "{took}: {failed:#?}");
    assert_eq!((failed.status, failed.job_id), (RunStatus::Failed, None), "{failed:#?}");
    engine.start(&[]).await;
    let back = runs(&ada, routine.id).await[0].due_at;
    tests::until("a run that succeeds", async || {
        runs(&ada, routine.id).await.iter().any(|run| run.due_at > back && run.status.is_success())
    })
    .await;
    stop(&ada, &routine).await;
    check_invariants(&stack).await;
    stack.finish().await;
}

/// A proxy for the machine's engine. It can be suspended: it then accepts connections and forwards nothing. It can also
/// ignore requests about some containers only.
pub(crate) struct EngineProxy {
    directory: TempDir,
    suspended: watch::Sender<bool>,
    ignored: watch::Sender<Vec<String>>,
    _passing: JoinSet<()>,
}

impl EngineProxy {
    pub(crate) fn open() -> Self {
        let directory = tempfile::Builder::new().prefix("gd").tempdir_in("/tmp").unwrap();
        let listener = UnixListener::bind(directory.path().join("engine.sock")).unwrap();
        let (suspended, state) = watch::channel(false);
        let (ignored, names) = watch::channel(vec![]);
        let mut passing = JoinSet::new();
        passing.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                let Ok(far) = UnixStream::connect(ENGINE).await else { continue };
                let ((near_read, near_write), (far_read, far_write)) = (near.into_split(), far.into_split());
                connections.spawn(pass(near_read, far_write, state.clone(), Some(names.clone())));
                connections.spawn(pass(far_read, near_write, state.clone(), None));
            }
        });
        Self { directory, suspended, ignored, _passing: passing }
    }

    pub(crate) fn host(&self) -> String {
        format!("unix://{}/engine.sock", self.directory.path().display())
    }

    pub(crate) fn suspend(&self) {
        self.suspended.send_replace(true);
    }

    pub(crate) fn resume(&self) {
        self.suspended.send_replace(false);
    }

    /// From now on, requests that name one of these containers get no response, and neither does the rest of their
    /// connection.
    fn ignore_requests_about(&self, names: &[&str]) {
        self.ignored.send_replace(names.iter().map(|name| (*name).to_owned()).collect());
    }
}

async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut suspended: watch::Receiver<bool>,
    ignored: Option<watch::Receiver<Vec<String>>>,
) {
    let mut piece = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut piece).await {
        let text = String::from_utf8_lossy(&piece[..length]);
        if ignored.as_ref().is_some_and(|names| names.borrow().iter().any(|name| text.contains(name))) {
            std::future::pending::<()>().await;
        }
        if suspended.wait_for(|suspended| !suspended).await.is_err() || to.write_all(&piece[..length]).await.is_err() {
            return;
        }
    }
}

/// A second engine in its own network namespace, isolated from the machine's engine.
struct SecondEngine {
    directory: TempDir,
    daemon: Option<Child>,
}

impl SecondEngine {
    /// Starts an engine that has the job image.
    async fn install() -> Self {
        let directory = tempfile::Builder::new().prefix("gx").tempdir_in("/tmp").unwrap();
        let mut engine = Self { directory, daemon: None };
        engine.start(&[]).await;
        let image = engine.path("image.tar").display().to_string();
        must(&["save", "-o", &image, &job_image()]).await;
        must(&["--host", &engine.host(), "load", "-q", "-i", &image]).await;
        fs::remove_file(image).unwrap();
        engine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn host(&self) -> String {
        format!("unix://{}", self.path("docker.sock").display())
    }

    async fn start(&mut self, more: &[&str]) {
        let log = fs::File::options().create(true).append(true).open(self.path("log")).unwrap();
        let mut command = Command::new("unshare");
        command.args(["--net", "dockerd", "--bridge=none", "--iptables=false", "--host", &self.host()]);
        for (flag, name) in [("--data-root", "data"), ("--exec-root", "exec"), ("--pidfile", "pid")] {
            command.arg(flag).arg(self.path(name));
        }
        // A killed daemon leaves its pid file behind.
        let _ = fs::remove_file(self.path("pid"));
        command.args(more).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.daemon = Some(command.spawn().expect("unshare and dockerd are installed"));
        let (host, since) = (self.host(), Instant::now());
        while !docker(&["--host", &host, "info"]).await.0 {
            let log = fs::read_to_string(self.path("log")).unwrap_or_default();
            assert!(since.elapsed() < START_TIMEOUT, "no engine within {START_TIMEOUT:?}: {log}");
            tokio::task::yield_now().await;
        }
    }

    fn kill(&mut self) {
        let mut daemon = self.daemon.take().expect("it runs");
        daemon.kill().unwrap();
        daemon.wait().unwrap();
        // Its containerd is killed too. As an unreaped zombie it would look alive to the next daemon.
        let _ = fs::remove_file(self.path("exec/containerd/containerd.pid"));
    }
}

impl Drop for SecondEngine {
    fn drop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _ =
                rustix::process::kill_process(rustix::process::Pid::from_child(&daemon), rustix::process::Signal::TERM);
            let _ = daemon.wait();
        }
        unmount_below(self.directory.path());
    }
}

/// Mounts that a daemon leaves behind would keep its directory from being removed.
fn unmount_below(directory: &Path) {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let below = mounts
        .lines()
        .filter_map(|line| line.split(' ').nth(1))
        .filter(|place| Path::new(place).starts_with(directory));
    for place in below {
        let _ = Command::new("umount").args(["--lazy", place]).output();
    }
}
