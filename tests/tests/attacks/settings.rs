//! Running jobs survive a change of the operator's settings.

use protocol::{JobId, JobState};
use serde_json::{Value, json};
use tests::{
    User,
    install::{
        engine::must,
        jobs::{WAIT_FOR_RELEASE, command_job, is_tool_use, release},
        stack::{REMOVAL_TIMEOUT, Stack, image},
    },
};

/// Another name of the engine's default runtime.
const OTHER_RUNTIME: &str = "io.containerd.runc.v2";

#[tokio::test]
async fn a_running_job_survives_changed_settings() {
    let other_image = Tag::of_the_image().await;
    let mut stack = Stack::start().await;
    let token = stack.token("ada", "user").await;
    let ada = User::at(stack.base(), Some(token.clone()));
    let id = ada.create(command_job(WAIT_FOR_RELEASE)).await;
    ada.wait_for_event(id, "a tool call", is_tool_use).await;
    stack.stop().await;
    stack.set("GANTRY_SANDBOX_RUNTIME", Some(OTHER_RUNTIME));
    stack.set("GANTRY_SANDBOX_IMAGE", Some(&other_image.0));
    stack.set("GANTRY_LIMITS_MEMORY_MB", Some("1024"));
    stack.restart().await;
    let ada = User::at(stack.base(), Some(token));
    // New jobs use the new settings while old jobs run.
    let fresh = ada.create(command_job("true")).await;
    let fresh = ada.wait_for_end(fresh).await;
    release(&stack, id);
    let job = ada.wait_for_end(id).await;
    assert_eq!((job.state, job.attempt), (JobState::Completed, 1), "{job:#?}");
    assert_eq!(fresh.state, JobState::Completed, "{fresh:#?}");
    assert_eq!(fresh.container.map(|container| container.image), Some(other_image.0.clone()));
    stack.finish().await;
}

#[tokio::test]
async fn running_jobs_complete_when_the_sandbox_is_disabled() {
    let mut stack = Stack::start().await;
    let token = stack.token("ada", "user").await;
    let ada = User::at(stack.base(), Some(token.clone()));
    let [completing, cancelled] =
        [ada.create(command_job(WAIT_FOR_RELEASE)).await, ada.create(command_job(WAIT_FOR_RELEASE)).await];
    for id in [completing, cancelled] {
        ada.wait_for_event(id, "a tool call", is_tool_use).await;
    }
    stack.stop().await;
    stack.set("GANTRY_SANDBOX", Some("disabled"));
    stack.restart().await;
    let ada = User::at(stack.base(), Some(token));
    let ready = stack.anonymous().get("/readyz").await.expect(200);
    assert_eq!(ready.body["sandbox"]["reason"], "disabled_by_config", "{:#}", ready.body);
    assert!(counts(&ready.body, 2), "it says how many jobs are left: {:#}", ready.body);
    let refused = ada.post("/api/jobs", &command_job("true")).await.expect(503);
    assert_eq!(refused.body["reason"], "disabled_by_config");
    ada.cancel(cancelled).await.expect(202);
    release(&stack, completing);
    assert_eq!(ada.wait_for_end(completing).await.state, JobState::Completed);
    assert_eq!(ada.wait_for_end(cancelled).await.state, JobState::Cancelled);
    for id in [completing, cancelled] {
        stack.wait_for_removal(id, REMOVAL_TIMEOUT).await;
    }
    let ready = stack.anonymous().get("/readyz").await.expect(200);
    assert!(!counts(&ready.body, 2), "none is left: {:#}", ready.body);
    stack.finish().await;
}

/// Another name of the job image, removed on drop.
struct Tag(String);

impl Tag {
    async fn of_the_image() -> Self {
        let name = format!("gantry-attacks:{}", JobId::generate());
        must(&["tag", &image(), &name]).await;
        Self(name)
    }
}

impl Drop for Tag {
    fn drop(&mut self) {
        let _ = std::process::Command::new("docker").args(["rmi", &self.0]).output();
    }
}

/// Whether one of the counts in the sandbox's status is `expected`.
fn counts(ready: &Value, number: u64) -> bool {
    let sandbox = ready["sandbox"].as_object().into_iter().flatten();
    sandbox.chain(ready.as_object().into_iter().flatten()).any(|(_, value)| *value == json!(number))
}
