//! The probe: ready only after the real thing, and each failure by its name.

use std::{fs, process::Command, time::Duration};

use orchestrator::engine::{Engine, EngineError, ReadinessReason, SandboxReadiness};

use super::ground::{Image, Ring, must};

async fn refusal(ring: &Ring) -> (ReadinessReason, String) {
    match ring.engine.probe().await {
        SandboxReadiness::NotReady { reason, detail } => (reason, detail),
        SandboxReadiness::Ready(facts) => panic!("ready: {facts:?}"),
    }
}

#[tokio::test]
async fn a_good_image_is_ready_and_the_second_probe_is_quick() {
    let ring = Ring::new(Image::Good);

    let SandboxReadiness::Ready(facts) = ring.engine.probe().await else { panic!("{:?}", ring.engine.probe().await) };
    assert_eq!((facts.engine.as_str(), facts.posture.len()), ("docker", 64));
    assert!(facts.image_id.starts_with("sha256:"));

    // The digest of the probe is the digest that a job's container carries.
    let job = ring.job("ready\nsleep");
    ring.engine.create(&job.spec).await.unwrap();
    let label = "{{index .Config.Labels \"gantry.posture\"}}";
    assert_eq!(must(Command::new("docker").args(["inspect", "-f", label, job.name()])), facts.posture);
    ring.engine.remove(job.name()).await.unwrap();

    // No run folder can be made any more: a second full probe would fail.
    fs::remove_dir_all(ring.folder.path().join("run")).unwrap();
    fs::write(ring.folder.path().join("run"), "").unwrap();
    assert_eq!(ring.engine.probe().await, SandboxReadiness::Ready(facts.clone()));

    // That one container cannot be made, or is not there, says nothing about the engine.
    let job_of_a_missing_image = {
        let mut spec = job.spec.clone();
        spec.image = "gantry-ring-none:none".to_owned();
        spec
    };
    ring.engine.create(&job_of_a_missing_image).await.unwrap_err();
    ring.engine.logs("gantry-job-of-nobody", 10).await.unwrap_err();
    assert_eq!(ring.engine.probe().await, SandboxReadiness::Ready(facts));
    fs::remove_file(ring.folder.path().join("run")).unwrap();
    fs::create_dir(ring.folder.path().join("run")).unwrap();
    ring.finish().await;
}

#[tokio::test]
async fn what_a_probe_left_behind_is_cleared() {
    let ring = Ring::new(Image::Good);
    let left = ring.folder.path().join("run/gantry-probe-0");
    fs::create_dir_all(left.join("run")).unwrap();
    let label = format!("gantry.instance-id={}", ring.instance);
    let name = format!("gantry-probe-{}", ring.instance);
    must(
        Command::new("docker")
            .args(["create", "--name", &name, "--label", &label, "--label", "gantry.role=probe"])
            .args([&Image::Good.name(), "x"]),
    );

    assert!(matches!(ring.engine.probe().await, SandboxReadiness::Ready(_)));

    assert!(!left.exists());
    ring.finish().await;
}

#[tokio::test]
async fn a_run_directory_too_deep_for_a_socket_is_told() {
    let deep = "d".repeat(60);
    let ring = Ring::with(Image::Good, |settings| settings.run_dir = settings.run_dir.join(&deep));
    let (reason, detail) = refusal(&ring).await;
    assert_eq!(reason, ReadinessReason::PostureUnsupported);
    assert!(detail.contains("GANTRY_RUN_DIR"), "{detail}");
    ring.finish().await;
}

#[tokio::test]
async fn a_missing_image_is_named() {
    let ring = Ring::with(Image::Good, |settings| settings.image = "gantry-ring-none:none".to_owned());
    let (reason, detail) = refusal(&ring).await;
    assert_eq!(reason, ReadinessReason::ImageMissing);
    assert!(detail.contains("gantry-ring-none:none"), "{detail}");

    let mut job = ring.job("exit 0");
    job.spec.image = "gantry-ring-none:none".to_owned();
    assert_eq!(ring.engine.create(&job.spec).await, Err(EngineError::ImageMissing("gantry-ring-none:none".to_owned())));
    ring.finish().await;
}

#[tokio::test]
async fn an_unknown_runtime_is_named() {
    let ring = Ring::with(Image::Good, |settings| settings.runtime = Some("no-such-runtime".to_owned()));
    assert_eq!(refusal(&ring).await.0, ReadinessReason::RuntimeMissing);

    let job = ring.job("exit 0");
    assert_eq!(ring.engine.create(&job.spec).await, Err(EngineError::RuntimeMissing("no-such-runtime".to_owned())));
    ring.finish().await;
}

#[tokio::test]
async fn an_image_that_breaks_the_posture_is_refused_and_nothing_stays() {
    let ring = Ring::new(Image::WithVolume);
    assert_eq!(refusal(&ring).await.0, ReadinessReason::PostureUnsupported);

    let job = ring.job("exit 0");
    match ring.engine.create(&job.spec).await {
        Err(EngineError::PostureMismatch { field, .. }) => assert_eq!(field, "Config.Volumes"),
        other => panic!("{other:?}"),
    }
    ring.finish().await;
}

#[tokio::test]
async fn an_image_without_a_worker_is_refused_and_nothing_stays() {
    let ring = Ring::new(Image::Empty);
    let (reason, detail) = refusal(&ring).await;
    assert_eq!(reason, ReadinessReason::PostureUnsupported);
    assert!(detail.contains("/usr/local/bin/gantry-worker"), "{detail}");
    ring.finish().await;
}

#[tokio::test]
async fn an_engine_that_is_not_there_is_told() {
    for host in ["unix:///nowhere/docker.sock", "tcp://127.0.0.1:9", "ftp://x"] {
        let ring = Ring::with(Image::Good, |settings| settings.host = Some(host.to_owned()));
        assert_eq!(refusal(&ring).await.0, ReadinessReason::EngineUnreachable, "{host}");
        let job = ring.job("exit 0");
        let error = ring.engine.create(&job.spec).await.unwrap_err();
        assert!(matches!(error, EngineError::Unreachable(_)), "{host}: {error:?}");
    }
}

#[tokio::test]
async fn an_engine_that_accepts_and_never_answers_is_unreachable_in_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("docker.sock");
    let _accepts_by_its_backlog = tokio::net::UnixListener::bind(&path).unwrap();
    let ring = Ring::with(Image::Good, |settings| settings.host = Some(format!("unix://{}", path.display())));

    let answer = tokio::time::timeout(Duration::from_secs(3), refusal(&ring)).await.expect("told within 3 s");
    assert_eq!(answer.0, ReadinessReason::EngineUnreachable);
}

#[tokio::test]
async fn a_weaker_container_under_the_jobs_name_is_removed_and_never_started() {
    for running in [false, true] {
        let ring = Ring::new(Image::Good);
        let job = ring.job("ready\nsleep");
        let label = format!("gantry.instance-id={}", ring.instance);
        let workspace = format!("{}:/workspace", job.spec.workspace.display());
        let run_folder = format!("{}:/run/gantry", job.spec.run_folder.display());
        let mut weaker = Command::new("docker");
        weaker.args(["create", "--name", job.name(), "--label", &label, "-v", &workspace, "-v", &run_folder]);
        must(weaker.args(["--entrypoint", "/usr/local/bin/gantry-worker", &job.spec.image]));
        if running {
            must(Command::new("docker").args(["start", job.name()]));
            job.ready().await;
        }

        let weaker = ring.engine.observe(job.name()).await.unwrap().unwrap().id;

        let created = ring.engine.create(&job.spec).await;

        if running {
            assert!(matches!(created, Err(EngineError::PostureMismatch { .. })), "{created:?}");
            assert_eq!(ring.engine.observe(job.name()).await, Ok(None));
        } else {
            assert_ne!(created, Ok(weaker), "it is made anew");
            job.ready().await;
            ring.engine.remove(job.name()).await.unwrap();
        }
        ring.finish().await;
    }
}
