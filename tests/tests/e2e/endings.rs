//! Jobs whose container or model goes away, and a job on each provider's wire format.

use std::time::{Duration, Instant};

use protocol::{JobId, JobReason, JobState};
use rstest::rstest;
use serde_json::{Value, json};
use tests::User;

use crate::{
    engine::must,
    jobs::{WAIT_FOR_RELEASE, command_job, is_tool_use, release},
    program::Daemon,
    stack::{REMOVAL_TIMEOUT, RUN_SCRIPT, Stack, image},
};

/// Upper bound for noticing the end of a container.
const NOTICED: Duration = Duration::from_secs(2);

#[tokio::test]
async fn a_killed_container_fails_its_job_at_once() {
    let stack = Stack::start().await;
    let ada = stack.user("ada").await;
    let id = ada.create(command_job(WAIT_FOR_RELEASE)).await;
    ada.wait_for_event(id, "a tool call", is_tool_use).await;
    must(&["kill", &format!("gantry-job-{id}-1")]).await;
    let dead = Instant::now();
    let job = ada.wait_for_end(id).await;
    let noticed = dead.elapsed();
    assert_eq!((job.state, job.reason), (JobState::Failed, Some(JobReason::WorkerCrashed)), "{job:#?}");
    assert_eq!(job.container.and_then(|container| container.exit_code), Some(137));
    assert!(noticed < NOTICED, "noticed after {noticed:?}");
    let partial = job.result.and_then(|result| result.partial).expect("what it had done is kept");
    assert_eq!(partial.text, "I run it.");
    stack.finish().await;
}

#[tokio::test]
async fn a_removed_container_fails_its_job() {
    let mut stack = Stack::start().await;
    let token = stack.token("ada", "user").await;
    let ada = User::at(stack.base(), Some(token.clone()));
    let id = ada.create(command_job(WAIT_FOR_RELEASE)).await;
    ada.wait_for_event(id, "a tool call", is_tool_use).await;
    // While the orchestrator is stopped: the engine kills before it removes, and an observer in between sees a crash.
    stack.kill();
    must(&["rm", "-f", &format!("gantry-job-{id}-1")]).await;
    stack.restart().await;
    let ada = User::at(stack.base(), Some(token));
    let job = ada.wait_for_end(id).await;
    assert_eq!((job.state, job.reason), (JobState::Failed, Some(JobReason::WorkerLost)), "{job:#?}");
    assert_eq!(job.attempt, 1, "the attempt must not be repeated: tools may have had effects");
    stack.finish().await;
}

#[tokio::test]
async fn a_job_that_fills_its_disk_is_stopped() {
    let stack = Stack::start().await;
    let ada = stack.user("ada").await;
    // Each file is small; only their sum exceeds the limit.
    let mut body = command_job("for n in $(seq 30); do head -c 1M /dev/zero > part-$n; done; sleep 600");
    body["limits"] = json!({"disk_mb": 20});
    let id = ada.create(body).await;
    let job = ada.wait_for_end(id).await;
    assert_eq!((job.state, job.reason), (JobState::Failed, Some(JobReason::DiskLimit)), "{job:#?}");
    assert!(job.message.as_deref().is_some_and(|message| message.contains("limits.disk_mb = 20")), "{job:#?}");
    let partial = job.result.and_then(|result| result.partial).expect("what it had done is kept");
    assert_eq!(partial.text, "I run it.");
    stack.wait_for_removal(id, REMOVAL_TIMEOUT).await;
    stack.finish().await;
}

#[tokio::test]
async fn a_renamed_container_is_not_created_a_second_time() {
    let mut stack = Stack::start().await;
    let token = stack.token("ada", "user").await;
    let ada = User::at(stack.base(), Some(token.clone()));
    let id = ada.create(command_job("echo once >> runs; sleep 600")).await;
    ada.wait_for_event(id, "a tool call", is_tool_use).await;
    let name = format!("gantry-job-{id}-1");
    // While the orchestrator is stopped, so that it is found when jobs are resumed.
    stack.kill();
    must(&["rename", &name, &format!("{name}-x")]).await;
    stack.restart().await;
    let ada = User::at(stack.base(), Some(token));
    let job = ada.wait_for_end(id).await;
    assert_eq!((job.state, job.reason), (JobState::Failed, Some(JobReason::WorkerLost)), "{job:#?}");
    assert_eq!((job.attempt, job.usage.llm_calls), (1, 1), "the work must not be repeated");
    stack.wait_for_removal(id, REMOVAL_TIMEOUT).await;
    stack.finish().await;
}

#[tokio::test]
async fn a_running_job_survives_the_removal_of_its_image_tag() {
    let name = format!("gantry-ring-name:{}", JobId::generate());
    must(&["tag", &image(), &name]).await;
    let mut stack = Stack::builder().set("GANTRY_SANDBOX_IMAGE", &name).start().await;
    let token = stack.token("ada", "user").await;
    let ada = User::at(stack.base(), Some(token.clone()));
    let id = ada.create(command_job(WAIT_FOR_RELEASE)).await;
    ada.wait_for_event(id, "a tool call", is_tool_use).await;
    stack.kill();
    must(&["rmi", &name]).await;
    stack.restart().await;
    release(&stack, id);
    let job = User::at(stack.base(), Some(token)).wait_for_end(id).await;
    assert_eq!((job.state, job.attempt), (JobState::Completed, 1), "{job:#?}");
    stack.finish().await;
}

#[tokio::test]
async fn a_missing_model_fails_the_job() {
    let stack = Stack::builder()
        .set("GANTRY_LLM_PROVIDER", "openai")
        .set("GANTRY_LLM_SCRIPT", "")
        .set("GANTRY_LLM_MODEL", "missing-model-1")
        .set("GANTRY_LLM_BASE_URL", "http://127.0.0.1:1/v1")
        .set("GANTRY_LLM_OUTAGE_PATIENCE_SECONDS", "0")
        .start()
        .await;
    let ada = stack.user("ada").await;
    let id = ada.create_job("echo: is anybody there?").await;
    let job = ada.wait_for_end(id).await;
    assert_eq!((job.state, job.reason), (JobState::Failed, Some(JobReason::LlmError)), "{job:#?}");
    stack.finish().await;
}

#[rstest]
#[case("openai")]
#[case("anthropic")]
#[tokio::test]
async fn a_job_completes_on_each_providers_wire_format(#[case] provider: &str) {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("script.yaml");
    std::fs::write(&script, RUN_SCRIPT).unwrap();
    let script = script.display().to_string();
    let mut model = Daemon::start(&["llm", "serve", "--script", &script, "--bind", "127.0.0.1:0", "--json"], &[]);
    let url = model
        .wait_for_line("its address", |line| {
            serde_json::from_str::<Value>(line).ok()?["url"].as_str().map(str::to_owned)
        })
        .await;
    let stack = Stack::builder()
        .set("GANTRY_LLM_PROVIDER", provider)
        .set("GANTRY_LLM_SCRIPT", "")
        .set("GANTRY_LLM_MODEL", "e2e-1")
        .set("GANTRY_LLM_BASE_URL", &format!("{url}/v1"))
        .start()
        .await;
    let ada = stack.user("ada").await;
    let id = ada.create(command_job("echo over the wire of $((1 + 1))")).await;
    let job = ada.wait_for_end(id).await;
    assert_eq!((job.state, job.reason), (JobState::Completed, None), "{job:#?}");
    let text = job.result.and_then(|result| result.text).unwrap_or_default();
    assert!(text.contains("over the wire of 2"), "{text}");
    assert_eq!((job.usage.llm_calls, job.usage.tool_calls), (2, 1));
    let calls = ada.get(&format!("/api/jobs/{id}/llm-calls")).await.expect(200);
    assert_eq!(calls.body["items"][0]["provider"], provider);
    stack.finish().await;
    assert!(model.terminate().await.success());
}
