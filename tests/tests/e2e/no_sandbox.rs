//! Without a working sandbox there is no job: each way in which the engine can be unusable, and proof that nothing ran
//! on the host.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use protocol::ErrorCode;
use rstest::rstest;
use serde_json::json;
use tokio::net::UnixListener;

use crate::{
    jobs::{command_job, tool_result},
    stack::{Builder, Stack},
};

/// The timeout of a response.
const A_FEW_SECONDS: Duration = Duration::from_secs(10);

#[rstest]
#[case::nowhere(|builder: Builder, _: &Path| builder.set("DOCKER_HOST", "unix:///nowhere/docker.sock"), "engine_unreachable")]
#[case::no_engine(|builder: Builder, _: &Path| builder.set("DOCKER_HOST", "tcp://127.0.0.1:1"), "engine_unreachable")]
#[case::hangs(hanging, "engine_unreachable")]
#[case::image(|builder: Builder, _: &Path| builder.set("GANTRY_SANDBOX_IMAGE", "gantry-no-such-image:1"), "image_missing")]
#[case::runtime(|builder: Builder, _: &Path| builder.set("GANTRY_SANDBOX_RUNTIME", "no-such-runtime"), "runtime_missing")]
#[tokio::test]
async fn without_a_sandbox_jobs_are_refused_and_nothing_runs(
    #[case] change: fn(Builder, &Path) -> Builder,
    #[case] reason: &str,
) {
    let directory = tempfile::tempdir().unwrap();
    // The kernel accepts connections; nothing responds.
    let _silent = UnixListener::bind(directory.path().join("silent.sock")).unwrap();
    let stack = change(Stack::builder(), directory.path()).start_unchecked().await;
    let asked = Instant::now();
    let ready = stack.anonymous().get("/readyz").await.expect(503);
    assert_eq!((&ready.body["status"], &ready.body["sandbox"]["reason"]), (&json!("not_ready"), &json!(reason)));
    refused(&stack, directory.path(), reason).await;
    assert!(asked.elapsed() < A_FEW_SECONDS * 2, "two answers took {:?}", asked.elapsed());
    stack.finish().await;
}

#[tokio::test]
async fn a_disabled_sandbox_is_healthy_and_runs_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let stack = Stack::builder().set("GANTRY_SANDBOX", "disabled").start_unchecked().await;
    let ready = stack.anonymous().get("/readyz").await.expect(200);
    assert_eq!(ready.body["sandbox"]["reason"], "disabled_by_config");
    refused(&stack, directory.path(), "disabled_by_config").await;
    stack.finish().await;
}

#[tokio::test]
async fn a_job_cannot_write_to_the_host() {
    let directory = tempfile::tempdir().unwrap();
    let canary = directory.path().join("canary");
    let stack = Stack::start().await;
    let ada = stack.user("ada").await;
    let id = ada.create(command_job(&format!("touch kept; touch {0} || echo no such place", canary.display()))).await;
    let (_, _, output) = tool_result(&ada, id).await;
    assert!(output.contains("no such place"), "{output}");
    assert!(stack.workspace(id).join("kept").exists(), "the job must run in its own workspace");
    assert!(!canary.exists(), "a file was created on the host");
    stack.finish().await;
}

fn hanging(builder: Builder, directory: &Path) -> Builder {
    builder.set("DOCKER_HOST", &format!("unix://{}/silent.sock", directory.display()))
}

/// A job that would create a file on the host is refused with the reason, and the file does not exist.
async fn refused(stack: &Stack, directory: &Path, reason: &str) {
    let canary = directory.join("canary");
    let ada = stack.user("ada").await;
    let mut body = command_job(&format!("touch {}", canary.display()));
    body["files"] = json!([{"path": "a.txt", "content": "a"}]);
    let reply = ada.post("/api/jobs", &body).await.problem(ErrorCode::SandboxUnavailable);
    assert_eq!((reply.status.as_u16(), &reply.body["reason"]), (503, &json!(reason)));
    assert_eq!(ada.jobs().await, [], "nothing is stored");
    let workspaces = fs::read_dir(stack.data("workspaces")).into_iter().flatten().count();
    assert_eq!((workspaces, stack.run_directories()), (0, vec![]), "no directory may be created");
    assert!(!canary.exists(), "something ran on the host");
}
