//! Containers that an earlier process made: known again by their name, id and labels, held to what can change while they
//! live, and never ended for what is set today.

use std::process::Command;

use orchestrator::engine::{Adoption, AdoptionSpec, ContainerStatus, Engine, EngineError, SandboxReadiness};

use super::ground::{Image, Job, PATIENCE, Ring, must};

/// The row of a job whose container is made by today's settings.
async fn row(ring: &Ring, job: &Job, id: Option<String>) -> AdoptionSpec {
    let SandboxReadiness::Ready(facts) = ring.engine.probe().await else { panic!("not ready") };
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
async fn other_settings_end_no_running_container() {
    let ring = Ring::new(Image::Good);
    let job = ring.job("ready\nsleep");
    let id = ring.engine.create(&job.spec).await.unwrap();
    job.ready().await;
    let row = row(&ring, &job, Some(id.clone())).await;

    let later = [
        ring.again(|settings| settings.runtime = Some("no-such-runtime".to_owned())),
        ring.again(|settings| settings.inet_datagrams = true),
        ring.again(|settings| settings.image = "gantry-ring-none:none".to_owned()),
    ];
    for engine in later {
        assert_eq!(engine.adopt(&row).await, Ok(Adoption::Adopted { id: id.clone() }));
    }
    ring.engine.remove(job.name()).await.unwrap();
    ring.finish().await;
}

/// As commit fb48bc0 made them: an init process, other limits, another profile, the host's name server, and the digest of
/// all that.
fn made_by_an_earlier_version(ring: &Ring, job: &Job, digest: &str) -> String {
    let spec = &job.spec;
    let labels = [
        ("gantry.managed", "true".to_owned()),
        ("gantry.role", "job".to_owned()),
        ("gantry.owner", spec.owner.clone()),
        ("gantry.instance-id", ring.instance.to_string()),
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
    let (workspace, run_folder) = (spec.workspace.display(), spec.run_folder.display());
    old.args(["--volume", &format!("{workspace}:/workspace"), "--volume", &format!("{run_folder}:/run/gantry:ro")]);
    old.args(["--workdir", "/workspace", "--entrypoint", "/usr/local/bin/gantry-worker", &spec.image]);
    must(&mut old)
}

#[tokio::test]
async fn a_container_of_an_earlier_version_goes_on() {
    let ring = Ring::new(Image::Good);
    let job = ring.job("ready\nsleep");
    let id = made_by_an_earlier_version(&ring, &job, "the digest of then");
    job.ready().await;

    let row = adoption(&job, Some(id.clone()), "the digest of then".to_owned());
    assert_eq!(ring.engine.adopt(&row).await, Ok(Adoption::Adopted { id }));

    assert_eq!(ring.engine.observe(job.name()).await.unwrap().unwrap().status, ContainerStatus::Running);
    ring.engine.stop(job.name(), PATIENCE).await.unwrap();
    ring.engine.remove(job.name()).await.unwrap();
    ring.finish().await;
}

#[tokio::test]
async fn a_limit_that_was_changed_is_found() {
    let ring = Ring::new(Image::Good);
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
        let job = ring.job("ready\nsleep");
        let id = ring.engine.create(&job.spec).await.unwrap();
        job.ready().await;
        let row = row(&ring, &job, Some(id)).await;
        update(&job, change);
        assert_eq!(field(ring.engine.adopt(&row).await), wanted);
        ring.engine.remove(job.name()).await.unwrap();
    }
    ring.finish().await;
}

#[tokio::test]
async fn a_container_that_is_not_the_one_that_was_made_is_found() {
    let ring = Ring::new(Image::Good);
    let job = ring.job("ready\nsleep");
    let id = ring.engine.create(&job.spec).await.unwrap();
    job.ready().await;
    let row = row(&ring, &job, Some(id)).await;

    let other = AdoptionSpec { id: Some("0".repeat(64)), ..row.clone() };
    assert_eq!(field(ring.engine.adopt(&other).await), "Id");
    let other = AdoptionSpec { attempt: 2, ..row.clone() };
    assert_eq!(field(ring.engine.adopt(&other).await), "Config.Labels.gantry.attempt");
    let other = AdoptionSpec { posture: "another".to_owned(), ..row };
    assert_eq!(field(ring.engine.adopt(&other).await), "Config.Labels.gantry.posture");
    ring.engine.remove(job.name()).await.unwrap();
    ring.finish().await;
}

#[tokio::test]
async fn what_is_not_there_or_never_ran_is_neither_made_nor_started() {
    let ring = Ring::new(Image::Good);
    let job = ring.job("ready\nsleep");
    let row = row(&ring, &job, None).await;
    assert_eq!(ring.engine.adopt(&row).await, Ok(Adoption::NotFound));
    assert_eq!(ring.engine.list().await, Ok(Vec::new()));

    let label = format!("gantry.instance-id={}", ring.instance);
    must(Command::new("docker").args(["create", "--name", job.name(), "--label", &label, &job.spec.image, "x"]));
    assert_eq!(ring.engine.adopt(&row).await, Ok(Adoption::NotStarted));
    assert_eq!(ring.engine.observe(job.name()).await.unwrap().unwrap().status, ContainerStatus::Created);
    ring.engine.remove(job.name()).await.unwrap();
    ring.finish().await;
}
