//! The watch over the engine's events when the engine goes away and comes back.

use std::time::Duration;

use orchestrator::engine::{Engine, EngineError};
use tokio::{
    io::copy_bidirectional,
    net::{UnixListener, UnixStream},
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
    ring.engine.ensure_started(&job.spec).await.unwrap();
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
