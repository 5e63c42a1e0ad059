//! The engine's event stream when the engine goes away and comes back.

use std::{process::Stdio, time::Duration};

use orchestrator::engine::{ContainerStatus, Engine, EngineError, SandboxReadiness};
use tokio::{
    io::copy_bidirectional,
    net::{UnixListener, UnixStream},
    process::Command,
    task::JoinSet,
};

use super::setup::{Fixture, Image, WAIT_TIMEOUT};

/// A proxy for the real engine. Dropping it breaks all connections and removes the socket.
struct EngineProxy {
    tasks: JoinSet<()>,
    path: std::path::PathBuf,
}

impl EngineProxy {
    fn at(path: &std::path::Path) -> Self {
        let listener = UnixListener::bind(path).unwrap();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut ours, _)) = listener.accept().await {
                connections.spawn(async move {
                    let mut engine = UnixStream::connect("/var/run/docker.sock").await.unwrap();
                    let _broken_or_done = copy_bidirectional(&mut ours, &mut engine).await;
                });
            }
        });
        Self { tasks, path: path.to_owned() }
    }

    async fn stop(mut self) {
        self.tasks.shutdown().await;
        std::fs::remove_file(&self.path).unwrap();
    }
}

#[tokio::test]
async fn losing_and_finding_the_engine_are_notifications() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("docker.sock");
    let proxy = EngineProxy::at(&path);
    let fixture = Fixture::with(Image::Good, |settings| settings.host = Some(format!("unix://{}", path.display())));
    let job = fixture.job("ready\nsleep");
    let notified = || async {
        tokio::time::timeout(WAIT_TIMEOUT, fixture.engine.changed()).await.expect("a notification arrives");
    };

    notified().await;
    fixture.engine.create(&job.spec).await.unwrap();
    notified().await;
    job.ready().await;

    proxy.stop().await;
    notified().await;
    let error = fixture.engine.observe(job.name()).await.unwrap_err();
    assert!(matches!(error, EngineError::Unreachable(_)), "{error:?}");
    let waiting = fixture.engine.changed();
    assert!(
        tokio::time::timeout(Duration::from_millis(300), waiting).await.is_err(),
        "no notification while the engine is unreachable"
    );

    let _proxy = EngineProxy::at(&path);
    notified().await;
    fixture.engine.remove(job.name()).await.unwrap();
    notified().await;
    fixture.finish().await;
}

#[tokio::test]
async fn an_exited_container_is_listed_when_its_notification_arrives() {
    let fixture = Fixture::with(Image::Good, |_| {});
    let notified = || async {
        tokio::time::timeout(WAIT_TIMEOUT, fixture.engine.changed()).await.expect("a notification arrives");
    };
    notified().await;
    // The engine records an exit a moment after the event.
    for round in 0..5 {
        let job = fixture.job("ready\nsleep");
        fixture.engine.create(&job.spec).await.unwrap();
        notified().await;
        job.ready().await;
        assert_eq!(fixture.engine.list().await.unwrap()[0].status, ContainerStatus::Running);
        let killing = Command::new("docker").args(["kill", job.name()]).stdout(Stdio::null()).status();
        let (seen, killed) = tokio::join!(
            async {
                notified().await;
                fixture.engine.list().await.unwrap()
            },
            killing
        );
        assert!(killed.unwrap().success());
        assert!(matches!(seen[0].status, ContainerStatus::Exited { code: 137, .. }), "round {round}: {seen:?}");
        fixture.engine.remove(job.name()).await.unwrap();
        notified().await;
    }
    fixture.finish().await;
}

/// The number of such events for containers of this instance.
async fn count_of(event: &str, fixture: &Fixture) -> usize {
    let mut events = Command::new("docker");
    // The engine's timestamps have seconds: wait for the next second, so that the latest events are included.
    events.args([
        "events",
        "--since=10m",
        "--until=-1s",
        "--format={{.Action}}",
        "--filter",
        &format!("event={event}"),
    ]);
    events.args(["--filter", &format!("label=gantry.instance-id={}", fixture.instance)]);
    let output = events.output().await.unwrap();
    String::from_utf8_lossy(&output.stdout).lines().count()
}

#[tokio::test]
async fn after_an_engine_failure_the_posture_is_probed_again_and_the_worker_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("docker.sock");
    let proxy = EngineProxy::at(&path);
    let fixture = Fixture::with(Image::Good, |settings| settings.host = Some(format!("unix://{}", path.display())));
    let ready = fixture.engine.probe().await;
    assert!(matches!(ready, SandboxReadiness::Ready(_)), "{ready:?}");
    assert_eq!(fixture.engine.probe().await, ready);
    assert_eq!((count_of("create", &fixture).await, count_of("start", &fixture).await), (1, 1));

    proxy.stop().await;
    let error = fixture.engine.list().await.unwrap_err();
    assert!(matches!(error, EngineError::Unreachable(_)), "{error:?}");
    let _proxy = EngineProxy::at(&path);

    assert_eq!(fixture.engine.probe().await, ready);
    assert_eq!((count_of("create", &fixture).await, count_of("start", &fixture).await), (2, 1));
    fixture.finish().await;
}
