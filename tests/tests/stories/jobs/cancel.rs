//! Cancelling a job: possible in every state, final, and without leftovers.

use std::time::{Duration, Instant};

use protocol::{ErrorCode, EventData, Job, JobReason, JobState};
use serde_json::json;
use tests::{World, script_of, within};
use tokio::{io::AsyncReadExt, net::TcpListener};

#[tokio::test]
async fn a_pending_job_is_cancelled_at_once() {
    let world = World::builder().set("GANTRY_MAX_PARALLEL_JOBS", 1).build().await;
    let ada = world.user("ada");
    let first = ada.create_job("first").await;
    let worker = world.manual_worker(first).await;
    let waiting = ada.create_job("second").await;
    let body = json!({"reason": "changed my mind"});
    let job: Job = ada.post(&format!("/api/jobs/{waiting}/cancel"), &body).await.expect(202).json();
    assert_eq!((job.state, job.reason), (JobState::Cancelled, Some(JobReason::CancelledByUser)));
    assert_eq!((job.message.as_deref(), job.attempt), (Some("changed my mind"), 0));
    assert!(job.cancel_requested_at.is_some() && job.finished_at.is_some());
    ada.cancel(waiting).await.expect(200);
    worker.finish("done").await;
    ada.wait_for(first, JobState::Completed).await;
    ada.cancel(first).await.problem(ErrorCode::JobFinished);
    world.engine().until_empty().await;
    assert_eq!(world.engine().requested_starts().len(), 1, "it never ran");
    world.finish().await;
}

#[tokio::test]
async fn a_starting_job_is_cancelled_when_its_container_is_removed() {
    let world = World::new().await;
    let ada = world.user("ada");
    world.engine().hold_starts(true);
    let id = ada.create_job("work").await;
    world.engine().until_start_requested(1).await;
    let job: Job = ada.cancel(id).await.expect(202).json();
    assert_eq!((job.state, job.cancel_requested_at.is_some()), (JobState::InProgress, true));
    world.engine().hold_starts(false);
    let job = ada.wait_for(id, JobState::Cancelled).await;
    assert_eq!(job.reason, Some(JobReason::CancelledByUser));
    world.engine().until_empty().await;
    world.finish().await;
}

#[tokio::test]
async fn a_late_success_report_changes_nothing() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = ada.create_job("work").await;
    let worker = world.manual_worker(id).await;
    worker.record_message(1, "half of it").await.expect(200);
    world.engine().hold_stops(true);
    let job: Job = ada.cancel(id).await.expect(202).json();
    assert_eq!(job.result, None, "it has not ended");
    worker.record_message(2, "nearly all of it").await.expect(200);
    worker.report(json!({"outcome": "completed", "text": "done after all"})).await.expect(200);
    world.engine().hold_stops(false);
    let job = ada.wait_for(id, JobState::Cancelled).await;
    let result = job.result.clone().unwrap();
    let partial = result.partial.unwrap();
    assert_eq!(
        (result.text, partial.text.as_str()),
        (None, "nearly all of it"),
        "what was done until its end, not the late success"
    );
    ada.cancel(id).await.expect(200);
    assert_eq!(ada.job(id).await, job, "final");
    world.finish().await;
}

#[tokio::test]
async fn the_heartbeat_signals_the_cancel_and_further_prompts_are_refused() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = ada.create_job("work").await;
    let worker = world.manual_worker(id).await;
    assert!(!worker.status().await.cancel);
    world.engine().hold_stops(true);
    ada.cancel(id).await.expect(202);
    assert!(worker.status().await.cancel);
    ada.cancel(id).await.expect(202);
    ada.prompt(id, json!({"content": "more"})).await.problem(ErrorCode::JobCancelled);
    // Events that the worker sends after the cancel are still recorded.
    worker.record_message(1, "so far").await.expect(200);
    worker.report(json!({"outcome": "stopped", "text": "so far"})).await.expect(200);
    world.engine().hold_stops(false);
    let job = ada.wait_for(id, JobState::Cancelled).await;
    assert_eq!(job.result.and_then(|result| result.partial).map(|partial| partial.text), Some("so far".to_owned()));
    world.finish().await;
}

#[tokio::test]
async fn a_model_call_does_not_delay_a_cancel() {
    let script = script_of(&[json!({"reply": {"text": "too late", "delay_ms": 60_000}})]);
    let world = World::builder().processes().script(script).set("GANTRY_LLM_TIMEOUT_SECONDS", 1).build().await;
    let ada = world.user("ada");
    let id = ada.create_job("think").await;
    let asked = |event: &protocol::Event| matches!(&event.data, EventData::Message { .. });
    ada.wait_for_event(id, "the first message", asked).await;
    let since = Instant::now();
    ada.cancel(id).await.expect(202);
    let job = ada.wait_for(id, JobState::Cancelled).await;
    assert!(since.elapsed() < Duration::from_secs(4), "{:?}", since.elapsed());
    assert_eq!(job.reason, Some(JobReason::CancelledByUser));
    world.finish().await;
}

#[tokio::test]
async fn a_model_call_in_flight_is_aborted_and_recorded_as_aborted() {
    let provider = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}/v1", provider.local_addr().unwrap());
    let world = World::builder()
        .set("GANTRY_LLM_SCRIPT", "")
        .set("GANTRY_LLM_PROVIDER", "openai")
        .set("GANTRY_LLM_BASE_URL", base)
        .set("GANTRY_LLM_API_KEY", "k")
        .set("GANTRY_LLM_MODEL", "m")
        .build()
        .await;
    let ada = world.user("ada");
    let id = ada.create_job("think").await;
    let worker = world.manual_worker(id).await;
    world.engine().hold_stops(true);
    let (reply, ()) = tokio::join!(worker.ask("c1", "hi"), async {
        let (mut call, _) = within("the provider to be asked", provider.accept()).await.unwrap();
        ada.cancel(id).await.expect(202);
        let mut asked = vec![];
        // The call ends only when the orchestrator drops it.
        let _ = within("the call to be dropped", call.read_to_end(&mut asked)).await;
    });
    reply.problem(ErrorCode::JobCancelled);
    worker.ask("c2", "and now?").await.problem(ErrorCode::JobCancelled);
    let calls = ada.get(&format!("/api/jobs/{id}/llm-calls")).await.expect(200).body;
    let reported: Vec<_> =
        calls["items"].as_array().unwrap().iter().map(|call| (&call["call_id"], &call["error"])).collect();
    assert_eq!(reported, [(&json!("c1"), &json!("aborted: the caller is gone"))]);
    world.engine().hold_stops(false);
    ada.wait_for(id, JobState::Cancelled).await;
    world.finish().await;
}

#[tokio::test]
async fn a_shell_call_whose_child_ignores_sigterm_is_killed_in_time() {
    let command = "trap '' TERM; (trap '' TERM; echo $$ > pid; exec sleep 600) & touch started; wait; sleep 600";
    let script = script_of(&[
        json!({"reply": {"tool_calls": [{"name": "shell", "arguments": {"command": command, "timeout_seconds": 100}}]}}),
    ]);
    let world = World::builder().processes().script(script).build().await;
    let ada = world.user("ada");
    let id = ada.create_job("sleep").await;
    ada.wait_for_event(id, "the tool call", |event| matches!(event.data, EventData::ToolUse { .. })).await;
    let since = Instant::now();
    ada.cancel(id).await.expect(202);
    let job = ada.wait_for(id, JobState::Cancelled).await;
    assert!(since.elapsed() < Duration::from_secs(8), "{:?}", since.elapsed());
    assert_eq!(job.reason, Some(JobReason::CancelledByUser));
    let partial = job.result.and_then(|result| result.partial).unwrap();
    assert!(partial.iterations >= 1, "{partial:?}");
    world.engine().until_empty().await;
    world.finish().await;
}
