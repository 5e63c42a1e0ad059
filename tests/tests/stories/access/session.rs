//! Worker sessions: the token without the session secret gives no access.

use std::path::PathBuf;

use protocol::{Event, EventData, JobState, PromptId};
use serde_json::json;
use sqlx::Connection as _;
use tests::{ManualWorker, Reply, World};

const OTHER_SECRET: &str = "another-secret-of-a-command";

fn token_file(world: &World, worker: &ManualWorker, attempt: u32) -> PathBuf {
    world.config().run_dir.join(format!("gantry-job-{}-{attempt}", worker.job)).join("token")
}

fn rejections(events: &[Event]) -> usize {
    events
        .iter()
        .filter(|event| matches!(&event.data, EventData::Limit { limit, .. } if *limit == protocol::LimitName::SessionRejected))
        .count()
}

async fn every_worker_request(worker: &ManualWorker) -> Vec<Reply> {
    vec![
        worker.get("job").await,
        worker.get("tools").await,
        worker.get("prompt?wait_seconds=0").await,
        worker.ask("c9", "hi").await,
        worker.tool("echo", "t9", json!({"message": "hi"})).await,
        worker.record_message(1, "forged").await,
        worker.post("status", &json!({"iteration": 1})).await,
        worker.report(json!({"outcome": "completed", "text": "forged"})).await,
    ]
}

#[track_caller]
fn assert_rejected(reply: Reply) {
    let reply = reply.problem(protocol::ErrorCode::Unauthorized);
    assert_eq!(reply.body["reason"], "session_rejected", "{:#}", reply.body);
}

#[tokio::test]
async fn the_first_call_opens_the_session_and_the_token_alone_is_refused() {
    let world = World::builder().set("GANTRY_METRICS_BIND", "127.0.0.1:0").build().await;
    let ada = world.user("ada");
    let id = ada.create_job("work").await;
    let worker = world.manual_worker(id).await;
    assert!(token_file(&world, &worker, 1).exists());
    worker.job().await;
    assert!(!token_file(&world, &worker, 1).exists(), "the token must be removed before the response");
    for intruder in [worker.with_session(None), worker.with_session(Some(OTHER_SECRET))] {
        for reply in every_worker_request(&intruder).await {
            assert_rejected(reply);
        }
    }
    worker.record_message(1, "mine").await.expect(200);
    worker.complete_llm("c1", "hi").await;
    assert_eq!(rejections(&ada.events(id).await), 1);
    world.until_metric("gantry_worker_sessions_rejected_total", 16.0).await;
    // After the end, neither may ask for the outcome of the report.
    let report = json!({"outcome": "completed", "text": "done"});
    worker.report(report.clone()).await.expect(200);
    worker.report(report.clone()).await.expect(200);
    worker.with_session(Some(OTHER_SECRET)).report(report).await.problem(protocol::ErrorCode::Unauthorized);
    worker.exit(0);
    let job = ada.wait_for(id, JobState::Completed).await;
    assert_eq!(job.result.and_then(|result| result.text).as_deref(), Some("done"));
    let events = ada.events(id).await;
    assert_eq!(rejections(&events), 1);
    assert!(!serde_json::to_string(&events).unwrap().contains("forged"));
    world.finish().await;
}

#[tokio::test]
async fn only_a_valid_secret_opens_a_session() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = ada.create_job("work").await;
    let worker = world.manual_worker(id).await;
    let (short, long) = ("s".repeat(15), "s".repeat(201));
    for secret in [None, Some(""), Some(short.as_str()), Some(long.as_str()), Some("a secret of several words")] {
        assert_rejected(worker.with_session(secret).get("job").await);
        assert!(token_file(&world, &worker, 1).exists());
    }
    worker.job().await;
    worker.finish("done").await;
    ada.wait_for(id, JobState::Completed).await;
    world.finish().await;
}

#[tokio::test]
async fn concurrent_openers_get_one_session() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = ada.create_job("work").await;
    let worker = world.manual_worker(id).await;
    let other = worker.with_session(Some(OTHER_SECRET));
    let (a, b, c, d) = tokio::join!(worker.get("job"), other.get("job"), worker.get("tools"), other.get("tools"));
    let statuses = [a, b, c, d].map(|reply| reply.status.as_u16());
    assert!(statuses == [200, 401, 200, 401] || statuses == [401, 200, 401, 200], "{statuses:?}");
    let winner = if statuses[0] == 200 { worker } else { other };
    winner.finish("done").await;
    ada.wait_for(id, JobState::Completed).await;
    world.finish().await;
}

#[tokio::test]
async fn each_attempt_has_its_own_session() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = ada.create_job("work").await;
    let first = world.manual_worker(id).await;
    first.job().await;
    assert_rejected(first.with_session(None).get("job").await);
    world.engine().remove_container(id);
    world.engine().until_start_requested(2).await;
    let second = world.manual_worker(id).await;
    assert!(token_file(&world, &second, 2).exists());
    second.with_session(Some(OTHER_SECRET)).job().await;
    assert_rejected(second.get("job").await);
    second.with_session(Some(OTHER_SECRET)).finish("done").await;
    ada.wait_for(id, JobState::Completed).await;
    assert_eq!(rejections(&ada.events(id).await), 2, "one for each attempt");
    world.finish().await;
}

#[tokio::test]
async fn a_session_survives_a_restart_and_the_token_file_stays_removed() {
    let mut world = World::new().await;
    let id = world.user("ada").create_job("work").await;
    let worker = world.manual_worker(id).await;
    worker.job().await;
    world.stop().await;
    // As if the process had died between opening the session and removing the token.
    let file = token_file(&world, &worker, 1);
    std::fs::write(&file, &worker.token).unwrap();
    world.start().await;
    let worker = world.manual_worker(id).await;
    assert!(!file.exists());
    assert_rejected(worker.with_session(Some(OTHER_SECRET)).get("job").await);
    // As if the request that opened the session had been dropped at that point: the next connection removes the token.
    std::fs::write(&file, &worker.token).unwrap();
    worker.job().await;
    assert!(!file.exists());
    worker.finish("done").await;
    world.user("ada").wait_for(id, JobState::Completed).await;
    world.finish().await;
}

#[tokio::test]
async fn an_attempt_of_a_version_without_sessions_continues_without_one() {
    let mut world = World::new().await;
    let id = world.user("ada").create_job("work").await;
    let worker = world.manual_worker(id).await;
    world.stop().await;
    let mut database = world.database().await;
    sqlx::query("UPDATE jobs SET session_attempt = NULL").execute(&mut database).await.unwrap();
    database.close().await.unwrap();
    world.start().await;
    let ada = world.user("ada");
    world.manual_worker(id).await.with_session(None).job().await;
    assert!(token_file(&world, &worker, 1).exists(), "the worker must be able to read the token again");
    let old = world.manual_worker(id).await.with_session(None);
    old.record_message(1, "as ever").await.expect(200);
    world.engine().remove_container(id);
    world.engine().until_start_requested(2).await;
    let new = world.manual_worker(id).await;
    assert_rejected(new.with_session(None).get("job").await);
    new.finish("done").await;
    assert_eq!(ada.wait_for(id, JobState::Completed).await.attempt, 2);
    world.finish().await;
}

#[tokio::test]
async fn a_newer_poll_for_prompts_replaces_the_previous_one() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = ada.create_job("work").await;
    let worker = world.manual_worker(id).await;
    worker.job().await;
    let polls = 12;
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..polls {
        let worker = worker.clone();
        waiting.spawn(async move { worker.prompt(PromptId::nil(), 60).await });
    }
    for _ in 1..polls {
        let none = tests::within("an older poll to end", waiting.join_next()).await;
        assert_eq!(none.unwrap().unwrap(), None);
    }
    ada.prompt(id, json!({"content": "more"})).await.expect(202);
    let last = tests::within("the newest poll", waiting.join_next()).await.unwrap().unwrap();
    let prompt = last.expect("the newest gets it");
    assert_eq!(prompt.content, "more");
    assert_eq!(worker.prompt(prompt.prompt_id, 0).await, None);
    worker.finish("done").await;
    ada.wait_for(id, JobState::Completed).await;
    world.finish().await;
}
