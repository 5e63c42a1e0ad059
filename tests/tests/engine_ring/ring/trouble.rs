//! The watch over the engine's events when the engine goes away and comes back.

use std::{process::Stdio, time::Duration};

use orchestrator::engine::{ContainerStatus, Engine, EngineError, SandboxReadiness};
use tokio::{
    io::copy_bidirectional,
    net::{UnixListener, UnixStream},
    process::Command,
    task::JoinSet,
};

use super::ground::{Image, PATIENCE, Ring};

/// Carries connections to the real engine until it is dropped; then each of them breaks and the socket is gone.
struct Carrier {
    carrying: JoinSet<()>,
    path: std::path::PathBuf,
}

impl Carrier {
    fn at(path: &std::path::Path) -> Self {
        let listener = UnixListener::bind(path).unwrap();
        let mut carrying = JoinSet::new();
        carrying.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut ours, _)) = listener.accept().await {
                connections.spawn(async move {
                    let mut engine = UnixStream::connect("/var/run/docker.sock").await.unwrap();
                    let _broken_or_done = copy_bidirectional(&mut ours, &mut engine).await;
                });
            }
        });
        Self { carrying, path: path.to_owned() }
    }

    async fn stop(mut self) {
        self.carrying.shutdown().await;
        std::fs::remove_file(&self.path).unwrap();
    }
}

#[tokio::test]
async fn the_engines_leaving_and_coming_back_are_hints() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("docker.sock");
    let carrier = Carrier::at(&path);
    let ring = Ring::with(Image::Good, |settings| settings.host = Some(format!("unix://{}", path.display())));
    let job = ring.job("ready\nsleep");
    let hint = || async { tokio::time::timeout(PATIENCE, ring.engine.changed()).await.expect("a hint comes") };

    hint().await;
    ring.engine.create(&job.spec).await.unwrap();
    hint().await;
    job.ready().await;

    carrier.stop().await;
    hint().await;
    let error = ring.engine.observe(job.name()).await.unwrap_err();
    assert!(matches!(error, EngineError::Unreachable(_)), "{error:?}");
    let waiting = ring.engine.changed();
    assert!(tokio::time::timeout(Duration::from_millis(300), waiting).await.is_err(), "no hint while it is away");

    let _carrier = Carrier::at(&path);
    hint().await;
    ring.engine.remove(job.name()).await.unwrap();
    hint().await;
    ring.finish().await;
}

#[tokio::test]
async fn a_death_is_in_the_list_with_its_hint() {
    let ring = Ring::with(Image::Good, |_| {});
    let hint = || async { tokio::time::timeout(PATIENCE, ring.engine.changed()).await.expect("a hint comes") };
    hint().await;
    // The engine writes a death down a moment after it has told of it.
    for round in 0..5 {
        let job = ring.job("ready\nsleep");
        ring.engine.create(&job.spec).await.unwrap();
        hint().await;
        job.ready().await;
        assert_eq!(ring.engine.list().await.unwrap()[0].status, ContainerStatus::Running);
        let killing = Command::new("docker").args(["kill", job.name()]).stdout(Stdio::null()).status();
        let (seen, killed) = tokio::join!(
            async {
                hint().await;
                ring.engine.list().await.unwrap()
            },
            killing
        );
        assert!(killed.unwrap().success());
        assert!(matches!(seen[0].status, ContainerStatus::Exited { code: 137, .. }), "round {round}: {seen:?}");
        ring.engine.remove(job.name()).await.unwrap();
        hint().await;
    }
    ring.finish().await;
}

/// How often this happened to containers of the ring's install.
async fn count_of(event: &str, ring: &Ring) -> usize {
    let mut events = Command::new("docker");
    // The engine counts in whole seconds: until the next one, so that what has just happened is in it.
    events.args([
        "events",
        "--since=10m",
        "--until=-1s",
        "--format={{.Action}}",
        "--filter",
        &format!("event={event}"),
    ]);
    events.args(["--filter", &format!("label=gantry.instance-id={}", ring.instance)]);
    let output = events.output().await.unwrap();
    String::from_utf8_lossy(&output.stdout).lines().count()
}

#[tokio::test]
async fn after_a_failure_of_the_engine_the_posture_is_tried_again_and_the_worker_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("docker.sock");
    let carrier = Carrier::at(&path);
    let ring = Ring::with(Image::Good, |settings| settings.host = Some(format!("unix://{}", path.display())));
    let ready = ring.engine.probe().await;
    assert!(matches!(ready, SandboxReadiness::Ready(_)), "{ready:?}");
    assert_eq!(ring.engine.probe().await, ready);
    assert_eq!((count_of("create", &ring).await, count_of("start", &ring).await), (1, 1));

    carrier.stop().await;
    let error = ring.engine.list().await.unwrap_err();
    assert!(matches!(error, EngineError::Unreachable(_)), "{error:?}");
    let _carrier = Carrier::at(&path);

    assert_eq!(ring.engine.probe().await, ready);
    assert_eq!((count_of("create", &ring).await, count_of("start", &ring).await), (2, 1));
    ring.finish().await;
}
