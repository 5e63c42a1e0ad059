//! Cancelling a job in every phase: final, within the contract's times, and without leftovers.

use std::time::{Duration, Instant};

use protocol::{JobId, JobReason, JobState};
use tests::{User, WAIT_TIMEOUT};

use crate::{
    engine::{must, wait_until},
    jobs::{WAIT_FOR_RELEASE, command_job, is_tool_use},
    stack::{Stack, scaled},
};

/// From the cancel to the removed container.
const GRACEFUL_TIMEOUT: Duration = Duration::from_secs(2);
const STUBBORN: Duration = Duration::from_secs(8);

#[tokio::test]
async fn a_pending_job_is_cancelled_at_once_and_a_running_one_in_time() {
    let stack = Stack::builder().set("GANTRY_MAX_PARALLEL_JOBS", "1").start().await;
    let ada = stack.user("ada").await;
    let first = ada.create(command_job(WAIT_FOR_RELEASE)).await;
    ada.wait_for_event(first, "a tool call", is_tool_use).await;
    let waiting = ada.create_job("echo: never").await;
    let reply = ada.cancel(waiting).await.expect(202);
    assert_eq!(reply.body["state"], "cancelled", "there is nothing to stop");
    let job = ada.job(waiting).await;
    assert_eq!((job.attempt, job.container), (0, None));
    cancel(&stack, &ada, first, GRACEFUL_TIMEOUT).await;
    ada.cancel(first).await.expect(200);
    stack.finish().await;
}

#[tokio::test]
async fn a_starting_job_is_cancelled() {
    let stack = Stack::start().await;
    let ada = stack.user("ada").await;
    // At once, and again once its row says that a container is being created.
    let at_once = ada.create_job("echo: never").await;
    cancel(&stack, &ada, at_once, GRACEFUL_TIMEOUT).await;
    let starting = ada.create_job("think long").await;
    ada.wait_for(starting, JobState::InProgress).await;
    cancel(&stack, &ada, starting, GRACEFUL_TIMEOUT).await;
    stack.finish().await;
}

#[tokio::test]
async fn a_job_in_a_model_call_is_cancelled() {
    let stack = Stack::start().await;
    let ada = stack.user("ada").await;
    let id = ada.create_job("ponder").await;
    // The next thing it does is a model call, which takes a minute.
    ada.wait_for_event(id, "a tool's result", |event| matches!(event.data.kind(), protocol::EventKind::ToolResult))
        .await;
    cancel(&stack, &ada, id, GRACEFUL_TIMEOUT).await;
    stack.finish().await;
}

#[tokio::test]
async fn a_job_in_a_long_command_is_cancelled_with_all_its_processes() {
    let stack = Stack::start().await;
    let ada = stack.user("ada").await;
    let deaf = "trap '' TERM INT HUP; (setsid setsid bash -c \"trap '' TERM INT HUP; sleep 601\" &); sleep 602";
    for command in ["sleep 600", deaf] {
        let id = ada.create(command_job(command)).await;
        ada.wait_for_event(id, "a tool call", is_tool_use).await;
        cancel(&stack, &ada, id, GRACEFUL_TIMEOUT).await;
    }
    stack.finish().await;
}

#[tokio::test]
async fn a_worker_that_does_not_stop_is_killed() {
    let stack = Stack::start().await;
    let ada = stack.user("ada").await;
    // A command cannot stop process 1 of its container, so the host does: it then receives no SIGTERM.
    let id = ada.create(command_job("kill -STOP 1; touch running; sleep 600")).await;
    let command_job = stack.workspace(id).join("running");
    wait_until("the command to start", WAIT_TIMEOUT, async || command_job.exists()).await;
    must(&["kill", "--signal", "STOP", &format!("gantry-job-{id}-1")]).await;
    let took = cancel(&stack, &ada, id, STUBBORN).await;
    assert!(took > GRACEFUL_TIMEOUT, "the grace period was not used: {took:?}");
    stack.finish().await;
}

/// Cancels the job, asserts that it is cancelled and removed in time, and returns how long that took.
async fn cancel(stack: &Stack, ada: &User, id: JobId, within: Duration) -> Duration {
    let asked = Instant::now();
    ada.cancel(id).await.expect(202);
    let job = ada.wait_for_end(id).await;
    assert_eq!((job.state, job.reason), (JobState::Cancelled, Some(JobReason::CancelledByUser)), "{job:#?}");
    stack.wait_for_removal(id, within).await;
    let took = asked.elapsed();
    assert!(took < scaled(within), "cancelling took {took:?}, more than {within:?}");
    took
}
