//! Adoption of containers from an earlier process: recognised by name, id and labels, compared with the properties that
//! can change while they run, and never ended because of today's settings.

use std::process::Command;

use orchestrator::engine::{Adoption, AdoptionSpec, ContainerStatus, Engine, EngineError, SandboxReadiness};

use super::setup::{Fixture, Image, Job, WAIT_TIMEOUT, must};

/// The row of a job whose container was created with the current settings.
async fn row(fixture: &Fixture, job: &Job, id: Option<String>) -> AdoptionSpec {
    let SandboxReadiness::Ready(facts) = fixture.engine.probe().await else { panic!("not ready") };
    adoption(job, id, facts.posture)
}

fn adoption(job: &Job, id: Option<String>, posture: String) -> AdoptionSpec {
    let spec = &job.spec;
    AdoptionSpec {
        name: spec.name.clone(),
        id,
        job_id: spec.job_id,
        attempt: spec.attempt,
        posture,
        resources: spec.resources,
    }
}

fn field(refused: Result<Adoption, EngineError>) -> String {
    match refused {
        Err(EngineError::PostureMismatch { field, .. }) => field,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn changed_settings_end_no_running_container() {
    let fixture = Fixture::new(Image::Good);
    let job = fixture.job("ready\nsleep");
    let id = fixture.engine.create(&job.spec).await.unwrap();
    job.ready().await;
    let row = row(&fixture, &job, Some(id.clone())).await;

    let later = [
        fixture.again(|settings| settings.runtime = Some("no-such-runtime".to_owned())),
        fixture.again(|settings| settings.inet_datagrams = true),
        fixture.again(|settings| settings.image = "gantry-ring-none:none".to_owned()),
    ];
    for engine in later {
        assert_eq!(engine.adopt(&row).await, Ok(Adoption::Adopted { id: id.clone() }));
    }
    fixture.engine.remove(job.name()).await.unwrap();
    fixture.finish().await;
}

/// Container settings of an earlier version: an init process, other limits, another seccomp profile, the host's name
/// server, and their digest.
fn created_by_an_earlier_version(fixture: &Fixture, job: &Job, digest: &str) -> String {
    let spec = &job.spec;
    let labels = [
        ("gantry.managed", "true".to_owned()),
        ("gantry.role", "job".to_owned()),
        ("gantry.owner", spec.owner.clone()),
        ("gantry.instance-id", fixture.instance.to_string()),
        ("gantry.job-id", spec.job_id.to_string()),
        ("gantry.attempt", spec.attempt.to_string()),
        ("gantry.posture", digest.to_owned()),
        ("gantry.created-at", spec.created_at.to_rfc3339()),
    ];
    let mut old = Command::new("docker");
    old.args([
        "run",
        "--detach",
        "--init",
        "--name",
        job.name(),
        "--network",
        "none",
        "--read-only",
        "--cap-drop",
        "ALL",
    ]);
    old.args(["--security-opt", "no-new-privileges", "--user", "10001:10001", "--restart", "no"]);
    old.args(["--ulimit", "nofile=16384:16384", "--ulimit", "core=0:0", "--ulimit", "fsize=33554432:33554432"]);
    old.args(["--memory", "64m", "--memory-swap", "64m", "--cpus", "1", "--pids-limit", "32"]);
    for (name, value) in labels {
        old.args(["--label", &format!("{name}={value}")]);
    }
    let (workspace, run_directory) = (spec.workspace.display(), spec.run_dir.display());
    old.args(["--volume", &format!("{workspace}:/workspace"), "--volume", &format!("{run_directory}:/run/gantry:ro")]);
    old.args(["--workdir", "/workspace", "--entrypoint", "/usr/local/bin/gantry-worker", &spec.image]);
    must(&mut old)
}

#[tokio::test]
async fn a_container_of_an_earlier_version_is_adopted() {
    let fixture = Fixture::new(Image::Good);
    let job = fixture.job("ready\nsleep");
    let id = created_by_an_earlier_version(&fixture, &job, "the digest of that version");
    job.ready().await;

    let row = adoption(&job, Some(id.clone()), "the digest of that version".to_owned());
    assert_eq!(fixture.engine.adopt(&row).await, Ok(Adoption::Adopted { id }));

    assert_eq!(fixture.engine.observe(job.name()).await.unwrap().unwrap().status, ContainerStatus::Running);
    fixture.engine.stop(job.name(), WAIT_TIMEOUT).await.unwrap();
    fixture.engine.remove(job.name()).await.unwrap();
    fixture.finish().await;
}

#[tokio::test]
async fn a_changed_limit_is_detected() {
    let fixture = Fixture::new(Image::Good);
    let update = |job: &Job, change: &[&str]| {
        must(Command::new("docker").arg("update").args(change).arg(job.name()));
    };
    let cases: [(&[&str], &str); 4] = [
        (&["--memory", "128m", "--memory-swap", "128m"], "HostConfig.Memory"),
        (&["--cpus", "2"], "HostConfig.NanoCpus"),
        (&["--pids-limit", "4096"], "HostConfig.PidsLimit"),
        (&["--restart", "always"], "HostConfig.RestartPolicy"),
    ];
    for (change, wanted) in cases {
        let job = fixture.job("ready\nsleep");
        let id = fixture.engine.create(&job.spec).await.unwrap();
        job.ready().await;
        let row = row(&fixture, &job, Some(id)).await;
        update(&job, change);
        assert_eq!(field(fixture.engine.adopt(&row).await), wanted);
        fixture.engine.remove(job.name()).await.unwrap();
    }
    fixture.finish().await;
}

#[tokio::test]
async fn a_replaced_container_is_detected() {
    let fixture = Fixture::new(Image::Good);
    let job = fixture.job("ready\nsleep");
    let id = fixture.engine.create(&job.spec).await.unwrap();
    job.ready().await;
    let row = row(&fixture, &job, Some(id)).await;

    let other = AdoptionSpec { id: Some("0".repeat(64)), ..row.clone() };
    assert_eq!(field(fixture.engine.adopt(&other).await), "Id");
    let other = AdoptionSpec { attempt: 2, ..row.clone() };
    assert_eq!(field(fixture.engine.adopt(&other).await), "Config.Labels.gantry.attempt");
    let other = AdoptionSpec { posture: "another".to_owned(), ..row };
    assert_eq!(field(fixture.engine.adopt(&other).await), "Config.Labels.gantry.posture");
    fixture.engine.remove(job.name()).await.unwrap();
    fixture.finish().await;
}

#[tokio::test]
async fn adoption_neither_creates_nor_starts_containers() {
    let fixture = Fixture::new(Image::Good);
    let job = fixture.job("ready\nsleep");
    let row = row(&fixture, &job, None).await;
    assert_eq!(fixture.engine.adopt(&row).await, Ok(Adoption::NotFound));
    assert_eq!(fixture.engine.list().await, Ok(Vec::new()));

    let label = format!("gantry.instance-id={}", fixture.instance);
    must(Command::new("docker").args(["create", "--name", job.name(), "--label", &label, &job.spec.image, "x"]));
    assert_eq!(fixture.engine.adopt(&row).await, Ok(Adoption::NotStarted));
    assert_eq!(fixture.engine.observe(job.name()).await.unwrap().unwrap().status, ContainerStatus::Created);
    fixture.engine.remove(job.name()).await.unwrap();
    fixture.finish().await;
}
