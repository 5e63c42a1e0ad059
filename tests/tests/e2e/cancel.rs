//! A cancel, whatever the job is at: final, in the contract's times, and nothing of it is left.

use std::time::{Duration, Instant};

use protocol::{JobId, JobReason, JobState};
use tests::{PATIENCE, User};

use crate::{
    engine::{comes_true, must},
    stack::{GATE, Stack, is_tool_use, running, scaled},
};

/// Cancel to gone (contract: sandbox, Cancel and end).
const POLITE: Duration = Duration::from_secs(2);
const STUBBORN: Duration = Duration::from_secs(8);

#[tokio::test]
async fn a_waiting_job_is_cancelled_at_once_and_one_at_work_within_its_time() {
    let stack = Stack::builder().set("GANTRY_MAX_PARALLEL_JOBS", "1").start().await;
    let ada = stack.user("ada").await;
    let first = ada.create(running(GATE)).await;
    ada.wait_for_event(first, "a tool call", is_tool_use).await;
    let waiting = ada.create_job("echo: never").await;
    let reply = ada.cancel(waiting).await.expect(202);
    assert_eq!(reply.body["state"], "cancelled", "there is nothing to stop");
    let job = ada.job(waiting).await;
    assert_eq!((job.attempt, job.container), (0, None));
    cancel(&stack, &ada, first, POLITE).await;
    ada.cancel(first).await.expect(200);
    stack.finish().await;
}

#[tokio::test]
async fn a_starting_job_is_cancelled() {
    let stack = Stack::start().await;
    let ada = stack.user("ada").await;
    // At once, and once its row says that a container is being made.
    let at_once = ada.create_job("echo: never").await;
    cancel(&stack, &ada, at_once, POLITE).await;
    let starting = ada.create_job("think long").await;
    ada.wait_for(starting, JobState::InProgress).await;
    cancel(&stack, &ada, starting, POLITE).await;
    stack.finish().await;
}

#[tokio::test]
async fn a_job_in_a_model_call_is_cancelled() {
    let stack = Stack::start().await;
    let ada = stack.user("ada").await;
    let id = ada.create_job("ponder").await;
    // The next thing that it does is to ask the model, which takes a minute.
    ada.wait_for_event(id, "a tool's result", |event| matches!(event.data.kind(), protocol::EventKind::ToolResult))
        .await;
    cancel(&stack, &ada, id, POLITE).await;
    stack.finish().await;
}

#[tokio::test]
async fn a_job_in_a_long_command_is_cancelled_with_all_that_it_started() {
    let stack = Stack::start().await;
    let ada = stack.user("ada").await;
    let deaf = "trap '' TERM INT HUP; (setsid setsid bash -c \"trap '' TERM INT HUP; sleep 601\" &); sleep 602";
    for command in ["sleep 600", deaf] {
        let id = ada.create(running(command)).await;
        ada.wait_for_event(id, "a tool call", is_tool_use).await;
        cancel(&stack, &ada, id, POLITE).await;
    }
    stack.finish().await;
}

#[tokio::test]
async fn a_worker_that_does_not_stop_is_killed() {
    let stack = Stack::start().await;
    let ada = stack.user("ada").await;
    // No command stops process 1 of its own container, so the host does: it hears no SIGTERM then.
    let id = ada.create(running("kill -STOP 1; touch running; sleep 600")).await;
    let running = stack.workspace(id).join("running");
    comes_true("the command runs", PATIENCE, async || running.exists()).await;
    must(&["kill", "--signal", "STOP", &format!("gantry-job-{id}-1")]).await;
    let took = cancel(&stack, &ada, id, STUBBORN).await;
    assert!(took > POLITE, "it was given its time to stop: {took:?}");
    stack.finish().await;
}

/// Cancels; it must be cancelled and gone in time. How long that took.
async fn cancel(stack: &Stack, ada: &User, id: JobId, within: Duration) -> Duration {
    let asked = Instant::now();
    ada.cancel(id).await.expect(202);
    let job = ada.wait_for_end(id).await;
    assert_eq!((job.state, job.reason), (JobState::Cancelled, Some(JobReason::CancelledByUser)), "{job:#?}");
    stack.gone(id, within).await;
    let took = asked.elapsed();
    assert!(took < scaled(within), "cancel to gone took {took:?}, more than {within:?}");
    took
}
