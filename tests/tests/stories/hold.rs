//! A held job waits in pending, with nothing started for it, until somebody starts or cancels it.

use orchestrator::{auth::Role, engine::ReadinessReason};
use protocol::{ErrorCode, JobState};
use serde_json::json;
use tests::World;

#[tokio::test]
async fn a_held_job_waits_until_it_is_started_once() {
    let world = World::new().await;
    let ada = world.user("ada");
    let held = ada.create(json!({"prompt": "wait", "hold": true, "priority": 100})).await;
    // One that comes later and matters less goes first: the held one takes no slot and blocks nobody.
    let other = ada.create_job("go").await;
    world.hand(other).await.finish("done").await;
    world.engine().until_listed_again().await;
    let job = ada.job(held).await;
    assert_eq!((job.state, job.attempt), (JobState::Pending, 0));
    assert!(job.message.as_deref().is_some_and(|message| message.starts_with("held")), "{job:#?}");

    let path = format!("/api/jobs/{held}/start");
    world.user("bob").post(&path, &json!({})).await.problem(ErrorCode::NotFound);
    world.someone("ada", Role::Viewer).post(&path, &json!({})).await.problem(ErrorCode::Forbidden);
    let started = ada.post(&path, &json!({})).await.expect(202);
    assert_eq!((&started.body["state"], &started.body["message"]), (&json!("pending"), &json!(null)));
    world.hand(held).await.finish("done").await;
    ada.wait_for(held, JobState::Completed).await;
    ada.post(&path, &json!({})).await.problem(ErrorCode::NotHeld);
    ada.post(&format!("/api/jobs/{other}/start"), &json!({})).await.problem(ErrorCode::NotHeld);
    assert_eq!(world.engine().asked().len(), 2);
    world.finish().await;
}

#[tokio::test]
async fn a_held_job_is_held_by_the_next_process_too_and_can_be_cancelled() {
    let mut world = World::new().await;
    let held = world.user("ada").create(json!({"prompt": "wait", "hold": true})).await;
    // An engine that is lost and found again explains itself to jobs that wait for it; this one waits for a person.
    world.engine().not_ready(ReadinessReason::EngineUnreachable);
    world.engine().until_listed_again().await;
    world.engine().ready();
    world.restart().await;
    world.engine().until_listed_again().await;
    let ada = world.user("ada");
    let job = ada.job(held).await;
    assert_eq!(job.state, JobState::Pending);
    assert!(job.message.is_some_and(|message| message.starts_with("held")));
    ada.cancel(held).await.expect(202);
    assert_eq!(ada.job(held).await.state, JobState::Cancelled);
    ada.post(&format!("/api/jobs/{held}/start"), &json!({})).await.problem(ErrorCode::NotHeld);
    assert!(world.engine().asked().is_empty());
    world.finish().await;
}
