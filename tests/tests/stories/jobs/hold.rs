//! A held job stays pending, and nothing runs for it, until it is started or cancelled.

use orchestrator::{auth::Role, engine::ReadinessReason};
use protocol::{ErrorCode, JobState};
use serde_json::json;
use tests::World;

#[tokio::test]
async fn a_held_job_waits_until_it_is_started_once() {
    let world = World::new().await;
    let ada = world.user("ada");
    let held = ada.create(json!({"prompt": "wait", "hold": true, "priority": 100})).await;
    // A later job with lower priority runs first: a held job takes no slot.
    let other = ada.create_job("go").await;
    world.manual_worker(other).await.finish("done").await;
    world.engine().until_listed_again().await;
    let job = ada.job(held).await;
    assert_eq!((job.state, job.attempt), (JobState::Pending, 0));
    assert!(job.message.as_deref().is_some_and(|message| message.starts_with("held")), "{job:#?}");

    let path = format!("/api/jobs/{held}/start");
    world.user("bob").post(&path, &json!({})).await.problem(ErrorCode::NotFound);
    world.someone("ada", Role::Viewer).post(&path, &json!({})).await.problem(ErrorCode::Forbidden);
    let started = ada.post(&path, &json!({})).await.expect(202);
    assert_eq!((&started.body["state"], &started.body["message"]), (&json!("pending"), &json!(null)));
    world.manual_worker(held).await.finish("done").await;
    ada.wait_for(held, JobState::Completed).await;
    ada.post(&path, &json!({})).await.problem(ErrorCode::NotHeld);
    ada.post(&format!("/api/jobs/{other}/start"), &json!({})).await.problem(ErrorCode::NotHeld);
    assert_eq!(world.engine().requested_starts().len(), 2);
    world.finish().await;
}

#[tokio::test]
async fn a_held_job_stays_held_after_a_restart_and_can_be_cancelled() {
    let mut world = World::new().await;
    let held = world.user("ada").create(json!({"prompt": "wait", "hold": true})).await;
    // Jobs that wait for the engine record why. This one waits for a person and does not.
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
    assert!(world.engine().requested_starts().is_empty());
    world.finish().await;
}
