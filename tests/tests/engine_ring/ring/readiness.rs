//! The sandbox probe: ready only after a real container has passed it, and each failure has its reason.

use std::{fs, process::Command, time::Duration};

use orchestrator::engine::{Engine, EngineError, ReadinessReason, SandboxReadiness};

use super::setup::{Fixture, Image, must};

async fn refusal(fixture: &Fixture) -> (ReadinessReason, String) {
    match fixture.engine.probe().await {
        SandboxReadiness::NotReady { reason, detail } => (reason, detail),
        SandboxReadiness::Ready(facts) => panic!("ready: {facts:?}"),
    }
}

#[tokio::test]
async fn a_valid_image_is_ready_and_the_second_probe_is_quick() {
    let fixture = Fixture::new(Image::Good);

    let SandboxReadiness::Ready(facts) = fixture.engine.probe().await else {
        panic!("{:?}", fixture.engine.probe().await)
    };
    assert_eq!((facts.engine.as_str(), facts.posture.len()), ("docker", 64));
    assert!(facts.image_id.starts_with("sha256:"));

    // The digest of the probe is the same as that of a job's container.
    let job = fixture.job("ready\nsleep");
    fixture.engine.create(&job.spec).await.unwrap();
    let label = "{{index .Config.Labels \"gantry.posture\"}}";
    assert_eq!(must(Command::new("docker").args(["inspect", "-f", label, job.name()])), facts.posture);
    fixture.engine.remove(job.name()).await.unwrap();

    // No run directory can be created any more: a second full probe would fail.
    fs::remove_dir_all(fixture.directory.path().join("run")).unwrap();
    fs::write(fixture.directory.path().join("run"), "").unwrap();
    assert_eq!(fixture.engine.probe().await, SandboxReadiness::Ready(facts.clone()));

    // A failed creation or a missing container does not make the engine unready.
    let job_of_a_missing_image = {
        let mut spec = job.spec.clone();
        spec.image = "gantry-ring-none:none".to_owned();
        spec
    };
    fixture.engine.create(&job_of_a_missing_image).await.unwrap_err();
    fixture.engine.logs("gantry-job-without-row", 10).await.unwrap_err();
    assert_eq!(fixture.engine.probe().await, SandboxReadiness::Ready(facts));
    fs::remove_file(fixture.directory.path().join("run")).unwrap();
    fs::create_dir(fixture.directory.path().join("run")).unwrap();
    fixture.finish().await;
}

#[tokio::test]
async fn leftovers_of_a_probe_are_removed() {
    let fixture = Fixture::new(Image::Good);
    let left = fixture.directory.path().join("run/gantry-probe-0");
    fs::create_dir_all(left.join("run")).unwrap();
    let label = format!("gantry.instance-id={}", fixture.instance);
    let name = format!("gantry-probe-{}", fixture.instance);
    must(
        Command::new("docker")
            .args(["create", "--name", &name, "--label", &label, "--label", "gantry.role=probe"])
            .args([&Image::Good.name(), "x"]),
    );

    assert!(matches!(fixture.engine.probe().await, SandboxReadiness::Ready(_)));

    assert!(!left.exists());
    fixture.finish().await;
}

#[tokio::test]
async fn a_run_directory_too_deep_for_a_socket_is_reported() {
    let deep = "d".repeat(60);
    let fixture = Fixture::with(Image::Good, |settings| settings.run_dir = settings.run_dir.join(&deep));
    let (reason, detail) = refusal(&fixture).await;
    assert_eq!(reason, ReadinessReason::PostureUnsupported);
    assert!(detail.contains("GANTRY_RUN_DIR"), "{detail}");
    fixture.finish().await;
}

#[tokio::test]
async fn a_missing_image_is_reported() {
    let fixture = Fixture::with(Image::Good, |settings| settings.image = "gantry-ring-none:none".to_owned());
    let (reason, detail) = refusal(&fixture).await;
    assert_eq!(reason, ReadinessReason::ImageMissing);
    assert!(detail.contains("gantry-ring-none:none"), "{detail}");

    let mut job = fixture.job("exit 0");
    job.spec.image = "gantry-ring-none:none".to_owned();
    assert_eq!(
        fixture.engine.create(&job.spec).await,
        Err(EngineError::ImageMissing("gantry-ring-none:none".to_owned()))
    );
    fixture.finish().await;
}

#[tokio::test]
async fn an_unknown_runtime_is_reported() {
    let fixture = Fixture::with(Image::Good, |settings| settings.runtime = Some("no-such-runtime".to_owned()));
    assert_eq!(refusal(&fixture).await.0, ReadinessReason::RuntimeMissing);

    let job = fixture.job("exit 0");
    assert_eq!(fixture.engine.create(&job.spec).await, Err(EngineError::RuntimeMissing("no-such-runtime".to_owned())));
    fixture.finish().await;
}

#[tokio::test]
async fn an_image_that_violates_the_posture_is_refused_and_removed() {
    let fixture = Fixture::new(Image::WithVolume);
    assert_eq!(refusal(&fixture).await.0, ReadinessReason::PostureUnsupported);

    let job = fixture.job("exit 0");
    match fixture.engine.create(&job.spec).await {
        Err(EngineError::PostureMismatch { field, .. }) => assert_eq!(field, "Config.Volumes"),
        other => panic!("{other:?}"),
    }
    fixture.finish().await;
}

#[tokio::test]
async fn an_image_without_a_worker_is_refused_and_its_container_removed() {
    let fixture = Fixture::new(Image::Empty);
    let (reason, detail) = refusal(&fixture).await;
    assert_eq!(reason, ReadinessReason::PostureUnsupported);
    assert!(detail.contains("/usr/local/bin/gantry-worker"), "{detail}");
    fixture.finish().await;
}

#[tokio::test]
async fn a_missing_engine_is_reported() {
    for host in ["unix:///nowhere/docker.sock", "tcp://127.0.0.1:9", "ftp://x"] {
        let fixture = Fixture::with(Image::Good, |settings| settings.host = Some(host.to_owned()));
        assert_eq!(refusal(&fixture).await.0, ReadinessReason::EngineUnreachable, "{host}");
        let job = fixture.job("exit 0");
        let error = fixture.engine.create(&job.spec).await.unwrap_err();
        assert!(matches!(error, EngineError::Unreachable(_)), "{host}: {error:?}");
    }
}

#[tokio::test]
async fn an_engine_that_never_responds_is_reported_as_unreachable_in_time() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("docker.sock");
    let _accepts_by_its_backlog = tokio::net::UnixListener::bind(&path).unwrap();
    let fixture = Fixture::with(Image::Good, |settings| settings.host = Some(format!("unix://{}", path.display())));

    let answer = tokio::time::timeout(Duration::from_secs(3), refusal(&fixture)).await.expect("reported within 3 s");
    assert_eq!(answer.0, ReadinessReason::EngineUnreachable);
}

#[tokio::test]
async fn a_container_with_a_weaker_posture_under_the_jobs_name_is_removed() {
    for running in [false, true] {
        let fixture = Fixture::new(Image::Good);
        let job = fixture.job("ready\nsleep");
        let label = format!("gantry.instance-id={}", fixture.instance);
        let workspace = format!("{}:/workspace", job.spec.workspace.display());
        let run_directory = format!("{}:/run/gantry", job.spec.run_dir.display());
        let mut weaker = Command::new("docker");
        weaker.args(["create", "--name", job.name(), "--label", &label, "-v", &workspace, "-v", &run_directory]);
        must(weaker.args(["--entrypoint", "/usr/local/bin/gantry-worker", &job.spec.image]));
        if running {
            must(Command::new("docker").args(["start", job.name()]));
            job.ready().await;
        }

        let weaker = fixture.engine.observe(job.name()).await.unwrap().unwrap().id;

        let created = fixture.engine.create(&job.spec).await;

        if running {
            assert!(matches!(created, Err(EngineError::PostureMismatch { .. })), "{created:?}");
            assert_eq!(fixture.engine.observe(job.name()).await, Ok(None));
        } else {
            assert_ne!(created, Ok(weaker), "the container must be created again");
            job.ready().await;
            fixture.engine.remove(job.name()).await.unwrap();
        }
        fixture.finish().await;
    }
}
