//! The engine under running jobs: it hangs (accepts and never answers), and it is killed and comes back.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use protocol::{ErrorCode, JobReason, JobState};
use serde_json::json;
use tempfile::TempDir;
use tests::{
    PATIENCE,
    install::{
        engine::{comes_true, docker, must},
        stack::{go, image as job_image, is_tool_use},
    },
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

use crate::{after::world_after, ground::install};

/// Where the machine's engine listens.
const ENGINE: &str = "/var/run/docker.sock";
/// What an engine's return takes to be noticed.
const NOTICED: Duration = Duration::from_secs(2);
/// A daemon that is not up by then will not come.
const UP_WITHIN: Duration = Duration::from_secs(30);

#[tokio::test]
async fn an_engine_that_hangs_under_running_jobs_loses_none_of_them() {
    let door = Door::open();
    let stack = install().set("DOCKER_HOST", &door.host()).start().await;
    let ada = stack.user("ada").await;
    let [ends, cancelled, goes_on] =
        [ada.create_job("gate").await, ada.create_job("gate").await, ada.create_job("gate").await];
    for id in [ends, cancelled, goes_on] {
        ada.wait_for_event(id, "a tool call", is_tool_use).await;
    }
    door.freeze();
    // Workers need no engine: one does its work and reports.
    go(&stack, ends);
    assert_eq!(ada.wait_for_end(ends).await.state, JobState::Completed);
    // An answer of the sandbox's is good for a second, and a probe of a silent engine takes its time.
    let not_ready = async || stack.stranger().get("/readyz").await.status == 503;
    comes_true("the engine is missed", PATIENCE, not_ready).await;
    // Nobody is told that something can run which cannot; nobody is told that something has stopped which has not.
    let refused = ada.post("/api/jobs", &json!({"prompt": "work 1"})).await.problem(ErrorCode::SandboxUnavailable);
    assert_eq!(refused.body["reason"], "engine_unreachable");
    ada.cancel(cancelled).await.expect(202);
    assert_eq!(ada.job(cancelled).await.state, JobState::InProgress);
    door.thaw();
    assert_eq!(ada.wait_for_end(cancelled).await.state, JobState::Cancelled);
    go(&stack, goes_on);
    let job = ada.wait_for_end(goes_on).await;
    assert_eq!((job.state, job.attempt), (JobState::Completed, 1), "{job:#?}");
    world_after(&stack).await;
    stack.finish().await;
}

#[tokio::test]
async fn an_engine_that_hangs_at_the_start_is_waited_for() {
    let door = Door::open();
    let mut stack = install().set("DOCKER_HOST", &door.host()).start().await;
    let ada = stack.user("ada").await;
    let id = ada.create_job("gate").await;
    ada.wait_for_event(id, "a tool call", is_tool_use).await;
    stack.kill9();
    door.freeze();
    stack.restart().await;
    let ready = stack.stranger().get("/readyz").await.expect(503);
    assert_eq!(ready.body["sandbox"]["reason"], "engine_unreachable");
    go(&stack, id);
    assert_eq!(ada.job(id).await.state, JobState::InProgress, "what cannot be seen is not lost");
    door.thaw();
    let job = ada.wait_for_end(id).await;
    assert_eq!((job.state, job.attempt, job.usage.llm_calls), (JobState::Completed, 1, 2), "{job:#?}");
    world_after(&stack).await;
    stack.finish().await;
}

#[tokio::test]
async fn an_engine_that_hangs_on_one_container_holds_up_no_other_job() {
    let door = Door::open();
    let stack = install().set("DOCKER_HOST", &door.host()).start().await;
    let ada = stack.user("ada").await;
    let [hangs, beside, dies] =
        [ada.create_job("gate").await, ada.create_job("gate").await, ada.create_job("gate").await];
    for id in [hangs, beside, dies] {
        ada.wait_for_event(id, "a tool call", is_tool_use).await;
    }
    let container = ada.job(hangs).await.container.expect("it runs in one");
    let id = container.id.expect("it was started");
    door.swallow(&[&container.name, &id]);
    must(&["kill", &id]).await;
    go(&stack, beside);
    assert_eq!(ada.wait_for_end(beside).await.state, JobState::Completed);
    let name = ada.job(dies).await.container.expect("it runs in one").name;
    must(&["kill", &name]).await;
    let killed = Instant::now();
    let job = ada.wait_for_end(dies).await;
    let noticed = killed.elapsed();
    assert_eq!((job.state, job.reason), (JobState::Failed, Some(JobReason::WorkerCrashed)), "{job:#?}");
    assert!(noticed < NOTICED, "noticed after {noticed:?}");
    let later = ada.create_job("work 1").await;
    assert_eq!(ada.wait_for_end(later).await.state, JobState::Completed);
    assert_eq!(ada.job(hangs).await.state, JobState::InProgress, "what the engine does not say is not known");
    door.swallow(&[]);
    let job = ada.wait_for_end(hangs).await;
    assert_eq!((job.state, job.reason), (JobState::Failed, Some(JobReason::WorkerCrashed)), "{job:#?}");
    world_after(&stack).await;
    stack.finish().await;
}

#[tokio::test]
async fn an_engine_that_is_killed_and_comes_back_takes_its_containers_along_or_not() {
    let mut engine = OwnEngine::install().await;
    let stack = install().on_engine(&engine.host()).start().await;
    let ada = stack.user("ada").await;

    // Without live-restore the daemon ends, on its return, what had outlived it.
    let id = ada.create_job("gate").await;
    ada.wait_for_event(id, "a tool call", is_tool_use).await;
    engine.kill9();
    // An answer of the sandbox's is good for a second.
    let not_ready = async || stack.stranger().get("/readyz").await.status == 503;
    comes_true("the engine is missed", NOTICED, not_ready).await;
    let refused = ada.post("/api/jobs", &json!({"prompt": "work 1"})).await.problem(ErrorCode::SandboxUnavailable);
    assert_eq!(refused.body["reason"], "engine_unreachable");
    assert_eq!(ada.job(id).await.state, JobState::InProgress, "its container runs without a daemon");
    engine.start(&[]).await;
    let back = Instant::now();
    let job = ada.wait_for_end(id).await;
    let noticed = back.elapsed();
    assert_eq!((job.state, job.reason, job.attempt), (JobState::Failed, Some(JobReason::WorkerCrashed), 1), "{job:#?}");
    assert!(noticed < NOTICED, "noticed {noticed:?} after the engine's return");
    world_after(&stack).await;

    // With it the job does not even notice.
    engine.kill9();
    engine.start(&["--live-restore"]).await;
    let ready = async || stack.stranger().get("/readyz").await.status == 200;
    comes_true("the engine's return is noticed", NOTICED, ready).await;
    let id = ada.create_job("gate").await;
    ada.wait_for_event(id, "a tool call", is_tool_use).await;
    engine.kill9();
    engine.start(&["--live-restore"]).await;
    go(&stack, id);
    let job = ada.wait_for_end(id).await;
    assert_eq!((job.state, job.attempt, job.usage.llm_calls), (JobState::Completed, 1, 2), "{job:#?}");
    world_after(&stack).await;
    stack.finish().await;
}

/// A door to the machine's engine that can be held shut: it goes on accepting, and nothing passes either way. Or it swallows
/// what is asked about some containers only.
pub(crate) struct Door {
    folder: TempDir,
    shut: watch::Sender<bool>,
    swallowed: watch::Sender<Vec<String>>,
    _passing: JoinSet<()>,
}

impl Door {
    pub(crate) fn open() -> Self {
        let folder = tempfile::Builder::new().prefix("gd").tempdir_in("/tmp").unwrap();
        let listener = UnixListener::bind(folder.path().join("engine.sock")).unwrap();
        let (shut, state) = watch::channel(false);
        let (swallowed, names) = watch::channel(vec![]);
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
        Self { folder, shut, swallowed, _passing: passing }
    }

    pub(crate) fn host(&self) -> String {
        format!("unix://{}/engine.sock", self.folder.path().display())
    }

    pub(crate) fn freeze(&self) {
        self.shut.send_replace(true);
    }

    pub(crate) fn thaw(&self) {
        self.shut.send_replace(false);
    }

    /// What names one of these from now on gets no answer, nor does anything else on its connection.
    fn swallow(&self, names: &[&str]) {
        self.swallowed.send_replace(names.iter().map(|name| (*name).to_owned()).collect());
    }
}

async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut shut: watch::Receiver<bool>,
    swallowed: Option<watch::Receiver<Vec<String>>>,
) {
    let mut piece = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut piece).await {
        let said = String::from_utf8_lossy(&piece[..length]);
        if swallowed.as_ref().is_some_and(|names| names.borrow().iter().any(|name| said.contains(name))) {
            std::future::pending::<()>().await;
        }
        if shut.wait_for(|shut| !shut).await.is_err() || to.write_all(&piece[..length]).await.is_err() {
            return;
        }
    }
}

/// A second engine, in a network of its own, so that it meets nothing of the machine's.
struct OwnEngine {
    folder: TempDir,
    daemon: Option<Child>,
}

impl OwnEngine {
    /// Starts one that has the job image.
    async fn install() -> Self {
        let folder = tempfile::Builder::new().prefix("gx").tempdir_in("/tmp").unwrap();
        let mut engine = Self { folder, daemon: None };
        engine.start(&[]).await;
        let image = engine.path("image.tar").display().to_string();
        must(&["save", "-o", &image, &job_image()]).await;
        must(&["--host", &engine.host(), "load", "-q", "-i", &image]).await;
        fs::remove_file(image).unwrap();
        engine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
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
        // A daemon that was killed leaves its file.
        let _ = fs::remove_file(self.path("pid"));
        command.args(more).stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
        self.daemon = Some(command.spawn().expect("unshare and dockerd are there"));
        let (host, since) = (self.host(), Instant::now());
        while !docker(&["--host", &host, "info"]).await.0 {
            let log = fs::read_to_string(self.path("log")).unwrap_or_default();
            assert!(since.elapsed() < UP_WITHIN, "no engine within {UP_WITHIN:?}: {log}");
            tokio::task::yield_now().await;
        }
    }

    fn kill9(&mut self) {
        let mut daemon = self.daemon.take().expect("it runs");
        daemon.kill().unwrap();
        daemon.wait().unwrap();
        // Its containerd dies with it. Where nobody collects the dead, the next daemon would take this one for alive.
        let _ = fs::remove_file(self.path("exec/containerd/containerd.pid"));
    }
}

impl Drop for OwnEngine {
    fn drop(&mut self) {
        if let Some(mut daemon) = self.daemon.take() {
            let _ =
                rustix::process::kill_process(rustix::process::Pid::from_child(&daemon), rustix::process::Signal::TERM);
            let _ = daemon.wait();
        }
        unmount_below(self.folder.path());
    }
}

/// What a daemon leaves mounted would keep its folder.
fn unmount_below(folder: &Path) {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let below =
        mounts.lines().filter_map(|line| line.split(' ').nth(1)).filter(|place| Path::new(place).starts_with(folder));
    for place in below {
        let _ = Command::new("umount").args(["--lazy", place]).output();
    }
}
