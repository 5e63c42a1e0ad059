//! Stuck jobs: detected by inactivity, nudged first, then restarted from the recorded transcript. Jobs without a
//! container alike.

use std::time::Duration;

use orchestrator::clock::ManualClock;
use protocol::{CreateJob, Event, EventData, JobId, JobReason, JobState, Message, PromptId};
use serde_json::json;
use tests::{User, World, script_of};
use tokio::net::{TcpListener, TcpStream};

fn clock() -> ManualClock {
    ManualClock::at("2026-11-22T12:00:00Z".parse().unwrap())
}

async fn state(who: &User, id: JobId, to: JobState, nth: usize) -> Event {
    let seen = std::sync::atomic::AtomicUsize::new(0);
    who.wait_for_event(id, to.as_str(), |event| {
        matches!(event.data, EventData::State { to: now, .. } if now == to)
            && seen.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1 == nth
    })
    .await
}

#[tokio::test]
async fn an_idle_worker_is_nudged_and_continues() {
    let time = clock();
    let world = World::builder().clock(&time).set("GANTRY_LEASE_SECONDS", 3600).build().await;
    let ada = world.user("ada");
    let id = ada.create_job("work").await;
    let worker = world.manual_worker(id).await;
    worker.job().await;
    worker.record_message(1, "thinking").await.expect(200);
    time.advance(Duration::from_secs(299));
    worker.record_message(2, "still thinking").await.expect(200);
    worker.status().await;
    time.advance(Duration::from_secs(299));
    // A heartbeat without progress is not activity.
    worker.status().await;
    time.advance(Duration::from_secs(2));
    state(&ada, id, JobState::Stuck, 1).await;
    let nudge = worker.prompt(PromptId::nil(), 30).await.expect("a nudge from the dispatcher");
    assert!(nudge.content.contains("Nothing has happened"));
    state(&ada, id, JobState::InProgress, 2).await;
    let job = ada.job(id).await;
    assert_eq!((job.attempt, job.repair_attempts, job.reason), (1, 1, None));
    assert_eq!(worker.prompt(nudge.prompt_id, 0).await, None);
    worker.finish("done").await;
    assert_eq!(ada.wait_for_end(id).await.state, JobState::Completed);
    world.finish().await;
}

#[tokio::test]
async fn a_worker_in_a_long_tool_call_is_not_stuck() {
    let time = clock();
    let world = World::builder().clock(&time).set("GANTRY_LEASE_SECONDS", 3600).build().await;
    let ada = world.user("ada");
    let id = ada.create(json!({"prompt": "work", "limits": {"timeout_seconds": 3600}})).await;
    let worker = world.manual_worker(id).await;
    worker.job().await;
    worker
        .send(&[(1, "tool_use", json!({"call_id": "t1", "tool": "shell", "input": {"command": "make"}}))])
        .await
        .expect(200);
    time.advance(Duration::from_mins(25));
    world.engine().until_listed_again().await;
    world.engine().until_listed_again().await;
    assert_eq!(ada.job(id).await.state, JobState::InProgress);
    let result = json!({"call_id": "t1", "tool": "shell", "success": true, "output": "ok", "truncated": false, "duration_ms": 1});
    worker.send(&[(2, "tool_result", result)]).await.expect(200);
    worker.finish("done").await;
    assert_eq!(ada.wait_for_end(id).await.repair_attempts, 0);
    world.finish().await;
}

#[tokio::test]
async fn a_silent_worker_is_replaced_by_one_with_the_transcript() {
    let time = clock();
    let script = script_of(&[
        json!({"reply": {"text": "", "tool_calls": [{"name": "echo", "arguments": {"message": "m"}, "id": "t1"}]}}),
    ]);
    let world = World::builder().clock(&time).script(script).build().await;
    let ada = world.user("ada");
    let id = ada.create(json!({"prompt": "work", "title": "Errand", "limits": {"max_iterations": 7}})).await;
    let old = world.manual_worker(id).await;
    let first_message = old.job().await.prompt;
    assert_eq!(first_message, "# Errand\n\nwork");
    let receipt = ada.prompt(id, json!({"content": "heard"})).await.expect(202);
    ada.prompt(id, json!({"content": "received, never sent to the model"})).await.expect(202);
    let first = old.prompt(PromptId::nil(), 5).await.unwrap();
    assert_eq!(json!(first.prompt_id), receipt.body["prompt_id"]);
    let second = old.prompt(first.prompt_id, 5).await.unwrap();
    assert_eq!(old.prompt(second.prompt_id, 0).await, None);
    old.complete_llm("c1", "work").await;
    old.send(&[
        (1, "message", json!({"role": "user", "content": first_message})),
        (2, "message", json!({"role": "user", "content": "heard"})),
        (3, "message", json!({"role": "assistant", "content": "on it"})),
        (4, "tool_use", json!({"call_id": "t1", "tool": "echo", "input": {"message": "m"}})),
    ])
    .await
    .expect(200);
    time.advance(Duration::from_secs(30));
    state(&ada, id, JobState::Stuck, 1).await;
    state(&ada, id, JobState::InProgress, 2).await;
    let worker = world.manual_worker(id).await;
    let job = worker.job().await;
    assert_eq!((job.attempt, job.limits.max_iterations), (2, 6));
    let messages = job.transcript.expect("the transcript");
    // What was recorded first is what the new attempt begins with, so it is not repeated.
    assert_eq!((&messages[0], job.prompt), (&Message::User { content: first_message.clone() }, first_message));
    let Message::Assistant { content, tool_calls, .. } = &messages[2] else { panic!("{messages:#?}") };
    assert_eq!((content.as_str(), tool_calls.len(), messages.len()), ("on it", 1, 3));
    let again = worker.prompt(PromptId::nil(), 5).await.expect("the undelivered prompt");
    assert_eq!(again.content, "received, never sent to the model");
    assert_eq!(worker.prompt(again.prompt_id, 0).await, None);
    worker.finish("done").await;
    let job = ada.wait_for_end(id).await;
    assert_eq!((job.state, job.attempt, job.repair_attempts), (JobState::Completed, 2, 1));
    world.finish().await;
}

#[tokio::test]
async fn a_replaced_worker_cannot_report() {
    let time = clock();
    let world = World::builder().clock(&time).build().await;
    let ada = world.user("ada");
    let id = ada.create_job("work").await;
    let old = world.manual_worker(id).await;
    old.job().await;
    old.complete_llm("c1", "work").await;
    // The worker is alive. A graceful stop would make it report `stopped`, which ends the job, so it is killed.
    world.engine().hold_stops(true);
    time.advance(Duration::from_secs(30));
    state(&ada, id, JobState::Stuck, 1).await;
    state(&ada, id, JobState::InProgress, 2).await;
    world.engine().until_start_requested(2).await;
    world.engine().hold_stops(false);
    let worker = world.manual_worker(id).await;
    worker.finish("done").await;
    let job = ada.wait_for_end(id).await;
    assert_eq!((job.state, job.attempt, job.repair_attempts), (JobState::Completed, 2, 1));
    world.finish().await;
}

#[tokio::test]
async fn a_replaced_container_that_cannot_be_stopped_blocks_its_job_and_its_cancel() {
    let time = clock();
    let world = World::builder().clock(&time).build().await;
    let ada = world.user("ada");
    let id = ada.create_job("work").await;
    let old = world.manual_worker(id).await;
    old.job().await;
    world.engine().fail_stops(true);
    time.advance(Duration::from_secs(30));
    state(&ada, id, JobState::Stuck, 1).await;
    state(&ada, id, JobState::InProgress, 2).await;
    for _ in 0..2 {
        world.engine().until_listed_again().await;
    }
    assert_eq!(world.engine().count_running(), 1, "there must be no second container");
    assert_eq!((ada.job(id).await.state, ada.job(id).await.attempt), (JobState::InProgress, 2));
    ada.cancel(id).await.expect(202);
    for _ in 0..2 {
        world.engine().until_listed_again().await;
    }
    assert_eq!(
        ada.job(id).await.state,
        JobState::InProgress,
        "the job must not be cancelled before its container is removed"
    );
    world.engine().fail_stops(false);
    ada.wait_for(id, JobState::Cancelled).await;
    assert_eq!(world.engine().count_running(), 0);
    world.finish().await;
}

#[tokio::test]
async fn a_job_that_stays_stuck_fails_after_its_restarts() {
    let time = clock();
    let world = World::builder().clock(&time).set("GANTRY_MAX_REPAIR_ATTEMPTS", 2).build().await;
    let ada = world.user("ada");
    let id = ada.create_job("work").await;
    for attempt in 1..=3 {
        let worker = world.manual_worker(id).await;
        assert_eq!(worker.job().await.attempt, attempt);
        time.advance(Duration::from_secs(31));
        state(&ada, id, JobState::Stuck, attempt as usize).await;
        if attempt < 3 {
            state(&ada, id, JobState::InProgress, attempt as usize + 1).await;
        }
    }
    let job = ada.wait_for_end(id).await;
    assert_eq!((job.state, job.reason, job.repair_attempts), (JobState::Failed, Some(JobReason::Stuck), 2));
    assert!(job.result.is_some_and(|result| result.partial.is_some()));
    world.finish().await;
}

#[tokio::test]
async fn clock_steps_of_an_hour_end_no_job() {
    let time = clock();
    let world = World::builder().clock(&time).build().await;
    let ada = world.user("ada");
    let id = ada.create(json!({"prompt": "work", "limits": {"timeout_seconds": 600}})).await;
    let worker = world.manual_worker(id).await;
    worker.job().await;
    let noon = world.clock().now();
    for hours in [1, -1] {
        time.step_wall_to(noon + chrono::TimeDelta::hours(hours));
        world.engine().until_listed_again().await;
        world.engine().until_listed_again().await;
    }
    time.step_wall_to(noon);
    let job = ada.job(id).await;
    assert_eq!((job.state, job.attempt, job.repair_attempts), (JobState::InProgress, 1, 0));
    worker.finish("done").await;
    assert_eq!(ada.wait_for_end(id).await.state, JobState::Completed);
    world.finish().await;
}

#[tokio::test]
async fn the_real_worker_resumes_from_the_transcript() {
    // The command's parent is its supervisor, whose parent is the worker.
    let stop = "echo one > one; kill -STOP $(sed -n 's/^PPid:[[:space:]]*//p' /proc/$PPID/status)";
    let script = script_of(&[
        json!({"when": {"turn": 1}, "reply": {"tool_calls": [{"name": "shell", "arguments": {"command": stop}}]}}),
        json!({"reply": {"text": "told: {{tool_result}}"}}),
    ]);
    let world = World::builder().processes().script(script).set("GANTRY_LEASE_SECONDS", 6).build().await;
    let ada = world.user("ada");
    let id = ada.create_job("work").await;
    let job = ada.wait_for_end(id).await;
    assert_eq!((job.state, job.attempt, job.repair_attempts), (JobState::Completed, 2, 1), "{job:#?}");
    let text = job.result.and_then(|result| result.text).unwrap();
    assert!(text.contains("the attempt ended before this call's result was known"), "{text}");
    world.finish().await;
}

/// A hook before each call of `echo` whose server does not answer: a loop that waits for it makes no progress.
async fn silent_hook() -> (TcpListener, String) {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", server.local_addr().unwrap());
    let hook = format!(
        "[[hooks]]\nname = 'silent'\npoint = 'before_tool_call'\nmatch = {{ tool = 'echo' }}\nurl = '{url}'\n\
         secret = 'whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY='\ntimeout_seconds = 60\n"
    );
    (server, hook)
}

/// Waits until a loop has asked the hook. It waits for as long as the connection is open.
async fn asked(server: &TcpListener) -> TcpStream {
    tests::within("the hook to be asked", server.accept()).await.unwrap().0
}

/// A job that calls `echo` once, without a container.
async fn on_host(world: &World, prompt: &str) -> JobId {
    world.submit("ada", CreateJob { prompt: prompt.to_owned(), ..CreateJob::default() }).await.unwrap()
}

#[tokio::test]
async fn a_job_without_a_container_is_nudged_and_then_started_again() {
    let time = clock();
    let (server, hook) = silent_hook().await;
    let script = script_of(&[
        json!({"when": {"turn": 1}, "reply": {"tool_calls": [{"name": "echo", "arguments": {"message": "m"}}]}}),
        json!({"reply": {"text": "told: {{tool_result}}"}}),
    ]);
    let builder = World::builder().clock(&time).set("GANTRY_SANDBOX", "disabled").config_file(hook);
    let world = builder.script(script).build().await;
    let ada = world.user("ada");
    let id = on_host(&world, "work").await;
    let _first = asked(&server).await;
    time.advance(Duration::from_mins(5));
    state(&ada, id, JobState::Stuck, 1).await;
    state(&ada, id, JobState::InProgress, 2).await;
    assert_eq!((ada.job(id).await.attempt, ada.job(id).await.repair_attempts), (1, 1), "it was nudged");
    // It has a whole period from then on.
    world.engine().until_listed_again().await;
    world.engine().until_listed_again().await;
    time.advance(Duration::from_mins(5));
    state(&ada, id, JobState::Stuck, 2).await;
    let job = ada.wait_for_end(id).await;
    assert_eq!((job.state, job.attempt, job.repair_attempts), (JobState::Completed, 2, 2), "{job:#?}");
    let text = job.result.and_then(|result| result.text).unwrap();
    assert!(text.contains("the attempt ended before this call's result was known"), "{text}");
    assert_eq!(job.usage.llm_calls, 2, "the first answer was not asked for again");
    world.finish().await;
}

#[tokio::test]
async fn a_job_without_a_container_that_stays_stuck_fails_and_frees_its_slot() {
    let time = clock();
    let (server, hook) = silent_hook().await;
    let script = script_of(&[
        json!({"when": {"prompt": "hang"}, "reply": {"text": "again", "tool_calls": [{"name": "echo", "arguments": {"message": "m"}}]}}),
        json!({"reply": {"text": "done"}}),
    ]);
    let builder = World::builder().clock(&time).set("GANTRY_SANDBOX", "disabled").config_file(hook).script(script);
    let builder = builder.set("GANTRY_MAX_REPAIR_ATTEMPTS", 2).set("GANTRY_MAX_PARALLEL_HOST_JOBS", 1);
    let world = builder.build().await;
    let ada = world.user("ada");
    let id = on_host(&world, "hang").await;
    let next = on_host(&world, "next").await;
    let _first = asked(&server).await;
    time.advance(Duration::from_mins(5));
    state(&ada, id, JobState::InProgress, 2).await;
    world.engine().until_listed_again().await;
    world.engine().until_listed_again().await;
    time.advance(Duration::from_mins(5));
    let _second = asked(&server).await;
    assert_eq!((ada.job(id).await.attempt, ada.job(next).await.state), (2, JobState::Pending));
    time.advance(Duration::from_mins(5));
    let job = ada.wait_for_end(id).await;
    assert_eq!((job.state, job.reason, job.repair_attempts), (JobState::Failed, Some(JobReason::Stuck), 2));
    assert_eq!(job.result.and_then(|result| result.partial).map(|partial| partial.text).as_deref(), Some("again"));
    assert_eq!(ada.wait_for_end(next).await.state, JobState::Completed);
    world.finish().await;
}
