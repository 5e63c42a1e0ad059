//! Results that must be accepted or rejected by a person.

use std::time::Duration;

use orchestrator::{auth::Role, clock::ManualClock};
use protocol::{ErrorCode, EventData, Job, JobId, JobReason, JobState};
use rstest::rstest;
use serde_json::json;
use tests::{StreamMessage, User, World, install::program};

async fn submitted(world: &World, who: &User) -> JobId {
    let id = who.create(json!({"prompt": "draft", "review": true})).await;
    let worker = world.manual_worker(id).await;
    worker.complete_llm("c1", "hi").await;
    worker.finish("the draft").await;
    let job = who.wait_for(id, JobState::Submitted).await;
    assert_eq!((job.finished_at, job.result.and_then(|result| result.text)), (None, Some("the draft".to_owned())));
    id
}

fn states(events: &[protocol::Event]) -> Vec<JobState> {
    let state = |event: &protocol::Event| match event.data {
        EventData::State { to, .. } => Some(to),
        _ => None,
    };
    events.iter().filter_map(state).collect()
}

#[tokio::test]
async fn an_accepted_result_is_final() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = submitted(&world, &ada).await;
    // The container is removed while the review is pending.
    world.engine().until_empty().await;
    let mut stream = ada.stream(id, None).await;
    for state in [JobState::Pending, JobState::InProgress, JobState::Completed, JobState::Submitted] {
        loop {
            match stream.next().await {
                Some(StreamMessage::Event(event)) if matches!(event.data, EventData::State { to, .. } if to == state) =>
                {
                    break;
                }
                Some(StreamMessage::Event(_)) => {}
                other => panic!("{other:?} before {state}"),
            }
        }
    }
    ada.prompt(id, json!({"content": "more"})).await.problem(ErrorCode::JobFinished);
    ada.cancel(id).await.problem(ErrorCode::JobFinished);
    let job: Job = ada.post(&format!("/api/jobs/{id}/accept"), &json!({})).await.expect(200).json();
    assert_eq!((job.state, job.reason), (JobState::Accepted, None));
    let (rest, end, _) = stream.rest().await;
    assert_eq!((states(&rest), end), (vec![JobState::Accepted], JobState::Accepted));
    for verb in ["accept", "reject"] {
        let again = ada.post(&format!("/api/jobs/{id}/{verb}"), &json!({"reason": "late"})).await;
        again.problem(ErrorCode::NotSubmitted);
    }
    world.finish().await;
}

#[tokio::test]
async fn a_rejected_result_fails_the_job_and_a_restart_keeps_its_files() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = submitted(&world, &ada).await;
    ada.post(&format!("/api/jobs/{id}/reject"), &json!({})).await.problem(ErrorCode::Invalid);
    ada.post(&format!("/api/jobs/{id}/reject"), &json!({"reason": "too long"})).await.expect(200);
    let job = ada.wait_for_end(id).await;
    assert_eq!(
        (job.state, job.reason, job.message.as_deref()),
        (JobState::Failed, Some(JobReason::Rejected), Some("too long"))
    );
    assert_eq!(job.result.and_then(|result| result.text).as_deref(), Some("the draft"));
    let again: Job = ada.post(&format!("/api/jobs/{id}/restart"), &json!({})).await.expect(201).json();
    world.manual_worker(again.id).await.finish("shorter").await;
    let again = ada.wait_for(again.id, JobState::Submitted).await;
    ada.post(&format!("/api/jobs/{}/accept", again.id), &json!({})).await.expect(200);
    world.finish().await;
}

#[rstest]
#[case("accept", json!({}))]
#[case("reject", json!({"reason": "too long"}))]
#[tokio::test]
async fn a_report_whose_response_was_lost_can_be_repeated(#[case] verb: &str, #[case] body: serde_json::Value) {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = ada.create(json!({"prompt": "draft", "review": true})).await;
    let worker = world.manual_worker(id).await;
    let report = json!({"outcome": "completed", "text": "the draft"});
    for _ in 0..2 {
        worker.report(report.clone()).await.expect(200);
    }
    worker.report(json!({"outcome": "completed", "text": "another"})).await.problem(ErrorCode::Unauthorized);
    ada.wait_for(id, JobState::Submitted).await;
    // The review may be faster than the worker.
    ada.post(&format!("/api/jobs/{id}/{verb}"), &body).await.expect(200);
    // The container, and with it the socket, is removed soon after the report.
    if let Ok(reply) = worker.request(reqwest::Method::POST, "complete").json(&report).send().await {
        assert_eq!(reply.status(), 200);
    }
    worker.exit(0);
    world.finish().await;
}

#[rstest]
#[case("accept")]
#[case("reject")]
#[tokio::test]
async fn only_the_owner_can_review(#[case] verb: &str) {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = submitted(&world, &ada).await;
    let path = format!("/api/jobs/{id}/{verb}");
    let body = json!({"reason": "mine"});
    world.user("bob").post(&path, &body).await.problem(ErrorCode::NotFound);
    world.someone("ada", orchestrator::auth::Role::Viewer).post(&path, &body).await.problem(ErrorCode::Forbidden);
    ada.post(&path, &body).await.expect(200);
    world.finish().await;
}

#[tokio::test]
async fn a_job_without_review_is_never_submitted() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = ada.create_job("work").await;
    ada.post(&format!("/api/jobs/{id}/accept"), &json!({})).await.problem(ErrorCode::NotSubmitted);
    world.manual_worker(id).await.finish("done").await;
    assert_eq!(ada.wait_for_end(id).await.state, JobState::Completed);
    ada.post(&format!("/api/jobs/{id}/accept"), &json!({})).await.problem(ErrorCode::NotSubmitted);
    world.finish().await;
}

#[tokio::test]
async fn the_time_that_a_job_took_ends_before_its_review() {
    let time = ManualClock::at("2026-11-22T12:00:00Z".parse().unwrap());
    let world = World::builder().clock(&time).set("GANTRY_LEASE_SECONDS", 3600).build().await;
    let ada = world.user("ada");
    let id = ada.create(json!({"prompt": "draft", "review": true})).await;
    let worker = world.manual_worker(id).await;
    worker.job().await;
    time.advance(Duration::from_secs(30));
    worker.finish("the draft").await;
    ada.wait_for(id, JobState::Submitted).await;
    let token = tokens(&world, "ada");
    let shown = async |arguments: &[&str]| program::run(arguments, &token).await.stdout;
    let row = shown(&["job", "list"]).await;
    assert!(row.contains(" 30s "), "it waits for its review: {row}");
    time.advance(Duration::from_mins(30));
    ada.post(&format!("/api/jobs/{id}/accept"), &json!({})).await.expect(200);
    let row = shown(&["job", "list"]).await;
    assert!(row.contains(" 30s "), "it was accepted: {row}");
    world.finish().await;
}

fn tokens(world: &World, user: &str) -> [(String, String); 2] {
    let url = world.user(user).base().to_owned();
    let variables = [("GANTRY_URL", url), ("GANTRY_TOKEN", world.fresh(user, Role::User))];
    variables.map(|(name, value)| (name.to_owned(), value))
}
