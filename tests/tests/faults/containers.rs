//! Containers that die, never start, or are removed: the job fails at once and with the right reason.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    time::{Duration, Instant},
};

use protocol::{Job, JobReason, JobState};
use rstest::rstest;
use serde_json::json;
use tests::{
    WAIT_TIMEOUT,
    install::{
        engine::{inspect, must, wait_until},
        jobs::{command_job, is_tool_use, release},
        stack::{RUN_SCRIPT, image as job_image},
    },
};

use crate::{invariants::check_invariants, setup::install};

/// Upper bound for noticing the end of a container.
const MAX_NOTICE_DELAY: Duration = Duration::from_secs(2);

#[rstest]
#[case::by_the_engine(&["kill", "-s", "KILL"])]
#[case::with_the_container(&["rm", "-f"])]
#[tokio::test]
async fn a_removed_container_fails_its_job_at_once(#[case] how: &[&str]) {
    let stack = install().start().await;
    let ada = stack.user("ada").await;
    let id = ada.create_job("gate").await;
    ada.wait_for_event(id, "a tool call", is_tool_use).await;
    let name = format!("gantry-job-{id}-1");
    must(&[how, &[name.as_str()]].concat()).await;
    let dead = Instant::now();
    let job = ada.wait_for_end(id).await;
    let noticed = dead.elapsed();
    let crashed_or_lost = [JobReason::WorkerCrashed, JobReason::WorkerLost];
    assert!(job.reason.is_some_and(|reason| crashed_or_lost.contains(&reason)), "{job:#?}");
    assert_eq!((job.state, job.attempt), (JobState::Failed, 1), "the attempt must not be repeated: tools had effects");
    assert!(noticed < MAX_NOTICE_DELAY, "noticed after {noticed:?}");
    check_invariants(&stack).await;
    stack.finish().await;
}

#[tokio::test]
async fn a_killed_worker_fails_its_job_at_once() {
    let stack = install().script(RUN_SCRIPT).start().await;
    let ada = stack.user("ada").await;
    // A command cannot kill process 1 of its container, which is the worker; the host can.
    let id = ada.create(command_job("kill -KILL 1; touch running; sleep 600")).await;
    let command_job = stack.workspace(id).join("running");
    wait_until("the command to start", WAIT_TIMEOUT, async || command_job.exists()).await;
    let worker = inspect(&format!("gantry-job-{id}-1")).await["State"]["Pid"].to_string();
    let killed = tokio::process::Command::new("kill").args(["-KILL", &worker]).status().await;
    assert!(killed.expect("kill runs").success());
    let job = ada.wait_for_end(id).await;
    assert_eq!((job.state, job.reason), (JobState::Failed, Some(JobReason::WorkerCrashed)), "{job:#?}");
    assert_eq!(exit_code(&job), Some(137));
    check_invariants(&stack).await;
    stack.finish().await;
}

/// Fills tmpfs memory, which no process owns: killing the command frees nothing, so the kernel kills the worker too.
#[tokio::test]
async fn a_worker_killed_for_memory_ends_as_oom_killed() {
    let script = r"
model: faults-1
rules:
  - reply: { tool_calls: [{ name: shell, arguments: { command: 'head -c 300000000 /dev/zero >> $HOME/fill; : {{turn}}' } }] }
";
    let stack = install().script(script).start().await;
    let ada = stack.user("ada").await;
    let id = ada.create(json!({"prompt": "fill", "limits": {"memory_mb": 48}})).await;
    let job = ada.wait_for_end(id).await;
    assert_eq!((job.state, job.reason), (JobState::Failed, Some(JobReason::OomKilled)), "{job:#?}");
    assert_eq!(job.container.as_ref().and_then(|container| container.oom_killed), Some(true), "{job:#?}");
    check_invariants(&stack).await;
    stack.finish().await;
}

fn exit_code(job: &Job) -> Option<i64> {
    job.container.as_ref().and_then(|container| container.exit_code)
}

/// An image whose worker exits without a report: with code 0 (then the infrastructure is retried) or with an error.
#[rstest]
#[case::well(0, JobReason::WorkerLost, 3)]
#[case::badly(1, JobReason::WorkerCrashed, 1)]
#[tokio::test]
async fn a_worker_that_ends_without_a_report_fails_its_job(
    #[case] code: u8,
    #[case] reason: JobReason,
    #[case] attempts: u32,
) {
    let image =
        CustomImage::build(&format!("exit{code}"), &format!("#!/bin/sh\necho I end with {code} >&2\nexit {code}\n"))
            .await;
    let stack = install().set("GANTRY_SANDBOX_IMAGES", &image.0).start().await;
    let ada = stack.user("ada").await;
    let id = ada.create(json!({"prompt": "work 1", "image": image.0})).await;
    let job = ada.wait_for_end(id).await;
    assert_eq!((job.state, job.reason, job.attempt), (JobState::Failed, Some(reason), attempts), "{job:#?}");
    assert_eq!((exit_code(&job), job.usage.llm_calls), (Some(code.into()), 0), "{job:#?}");
    check_invariants(&stack).await;
    stack.finish().await;
    image.remove().await;
}

#[tokio::test]
async fn removing_the_image_of_a_pending_job_fails_the_job() {
    let image = CustomImage::build("gone", "#!/bin/sh\nexit 1\n").await;
    let settings = install().set("GANTRY_SANDBOX_IMAGES", &image.0).set("GANTRY_MAX_PARALLEL_JOBS", "1");
    let stack = settings.start().await;
    let ada = stack.user("ada").await;
    let first = ada.create_job("gate").await;
    ada.wait_for_event(first, "a tool call", is_tool_use).await;
    let second = ada.create(json!({"prompt": "work 1", "image": image.0})).await;
    image.remove().await;
    release(&stack, first);
    let job = ada.wait_for_end(second).await;
    assert_eq!((job.state, job.reason, job.attempt), (JobState::Failed, Some(JobReason::ImageMissing), 1), "{job:#?}");
    assert_eq!(ada.wait_for_end(first).await.state, JobState::Completed);
    check_invariants(&stack).await;
    stack.finish().await;
}

/// A job image with a replaced worker.
struct CustomImage(String);

impl CustomImage {
    async fn build(name: &str, worker: &str) -> Self {
        let context = tempfile::tempdir().unwrap();
        fs::write(context.path().join("worker"), worker).unwrap();
        fs::set_permissions(context.path().join("worker"), fs::Permissions::from_mode(0o755)).unwrap();
        let dockerfile = format!("FROM {}\nCOPY worker /usr/local/bin/gantry-worker\n", job_image());
        fs::write(context.path().join("Dockerfile"), dockerfile).unwrap();
        let name = format!("gantry-faults-{name}:{}", std::process::id());
        must(&["build", "-q", "-t", &name, &context.path().display().to_string()]).await;
        Self(name)
    }

    async fn remove(&self) {
        must(&["rmi", "-f", &self.0]).await;
    }
}

impl Drop for CustomImage {
    fn drop(&mut self) {
        // Cleans up after a failed test.
        let _ = std::process::Command::new("docker").args(["rmi", "-f", &self.0]).output();
    }
}
