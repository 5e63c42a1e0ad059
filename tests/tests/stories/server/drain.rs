//! Draining: a stop is quick whatever is pending, and jobs continue in the next process.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    panic::AssertUnwindSafe,
    path::Path,
    time::{Duration, Instant},
};

use futures_util::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
use protocol::{EventData, JobState, PromptId};
use serde_json::json;
use tests::{StreamMessage, World, script_of};

/// The default grace period of `docker stop`.
const GRANTED: Duration = Duration::from_secs(10);

async fn stop_within_grace(world: &mut World, granted: Duration) {
    let since = Instant::now();
    world.stop().await;
    assert!(since.elapsed() < granted, "the drain took {:?}", since.elapsed());
}

#[tokio::test]
async fn the_real_worker_continues_with_the_next_process() {
    let script = script_of(&[
        json!({"when": {"turn": 1}, "reply": {"tool_calls": [
            {"name": "shell", "arguments": {"command": "until [ -e go ]; do sleep 0.02; done; echo went"}}]}}),
        json!({"reply": {"text": "{{tool_result}}"}}),
    ]);
    let mut world = World::builder().processes().script(script).build().await;
    let ada = world.user("ada");
    let id = ada.create_job("wait").await;
    ada.wait_for_event(id, "the tool call", |event| matches!(event.data, EventData::ToolUse { .. })).await;
    // The worker's long poll for prompts is pending.
    stop_within_grace(&mut world, Duration::from_secs(3)).await;
    std::fs::write(world.config().workspace_dir.join(id.to_string()).join("go"), "").unwrap();
    world.start().await;
    let ada = world.user("ada");
    let job = ada.wait_for(id, JobState::Completed).await;
    assert_eq!((job.attempt, job.usage.llm_calls, job.usage.tool_calls), (1, 2, 1));
    assert!(job.result.and_then(|result| result.text).is_some_and(|text| text.contains("went")));
    assert_eq!(world.engine().requested_starts().len(), 1);
    world.finish().await;
}

#[tokio::test]
async fn a_long_poll_ends_with_the_process() {
    let mut world = World::new().await;
    let ada = world.user("ada");
    let id = ada.create_job("work").await;
    let worker = world.manual_worker(id).await;
    let mut polls: FuturesUnordered<_> = (0..2).map(|_| worker.prompt(PromptId::nil(), 60)).collect();
    // The newer poll replaces the older one. So once one has ended, the other has arrived: a request that has not
    // arrived when the connection is closed would fail, which is not what this test is about.
    assert_eq!(tests::within("the older poll to end", polls.next()).await, Some(None));
    let (none, ()) = tokio::join!(polls.next(), stop_within_grace(&mut world, Duration::from_secs(3)));
    assert_eq!(none, Some(None));
    world.start().await;
    world.user("ada").wait_for(id, JobState::InProgress).await;
    world.manual_worker(id).await.finish("done").await;
    world.finish().await;
}

#[tokio::test]
async fn a_long_model_call_is_aborted_and_retried_in_the_next_process() {
    let script =
        script_of(&[json!({"when": {"last_message": "think hard"}, "reply": {"text": "slow", "delay_ms": 60_000}})]);
    let mut world = World::builder().script(script).build().await;
    let ada = world.user("ada");
    let id = ada.create_job("work").await;
    let worker = world.manual_worker(id).await;
    // The drain may interrupt the call before or after it has arrived. In both cases the next process receives it
    // again.
    let asking = async {
        if let Ok(reply) = AssertUnwindSafe(worker.ask("c1", "think hard")).catch_unwind().await {
            panic!("no response: {}", reply.body);
        }
        std::future::pending::<()>().await;
    };
    let drained = async {
        world.engine().until_listed_again().await;
        stop_within_grace(&mut world, GRANTED).await;
    };
    tokio::select! {
        () = asking => {}
        () = drained => {}
    }
    // The worker retries the call under the same call id. This time the model answers at once.
    let quick = script_of(&[json!({"reply": {"text": "quick"}})]);
    std::fs::write(world.directory().join("script.yaml"), quick).expect("the script is replaced");
    world.start().await;
    let ada = world.user("ada");
    let worker = world.manual_worker(id).await;
    assert_eq!(worker.complete_llm("c1", "think hard").await.content, "quick");
    worker.finish("done").await;
    ada.wait_for(id, JobState::Completed).await;
    world.finish().await;
}

#[tokio::test]
async fn a_client_that_never_reads_does_not_delay_a_stop() {
    let mut world = World::new().await;
    let ada = world.user("ada");
    let id = ada.create_job("talk").await;
    let mut idle = ada.stream(id, None).await;
    assert!(matches!(idle.next().await, Some(StreamMessage::Event(_))));
    let worker = world.manual_worker(id).await;
    let line = "x".repeat(64 * 1024);
    for batch in 0..24_u64 {
        let events: Vec<_> =
            (1..=14_u64).map(|n| (batch * 14 + n, "log", json!({"stream": "stdout", "text": line}))).collect();
        worker.send(&events).await.expect(200);
    }
    worker.finish("done").await;
    ada.wait_for(id, JobState::Completed).await;
    world.engine().until_empty().await;
    stop_within_grace(&mut world, GRANTED).await;
    drop(idle);
    world.start().await;
    world.finish().await;
}

#[tokio::test]
async fn world_readable_files_are_restricted_at_startup() {
    let open_to = |path: &Path, mode: u32| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let mut world = World::new().await;
    let data = world.config().data_dir.clone();
    world.stop().await;
    open_to(&data, 0o755);
    open_to(&data.join("gantry.db"), 0o644);
    open_to(&data.join("logs"), 0o755);
    world.start().await;
    world.user("ada").jobs().await;
    for name in ["gantry.db", "gantry.db-wal", "gantry.db-shm"] {
        assert_eq!(mode(&data.join(name)), 0o600, "{name}");
    }
    assert_eq!(mode(&data.join("logs")), 0o700);
    assert_eq!(mode(&data), 0o755, "existing directories must not be changed");
    world.finish().await;
}
