//! A result that a person has the last word on.

use protocol::{ErrorCode, EventData, Job, JobId, JobReason, JobState};
use rstest::rstest;
use serde_json::json;
use tests::{Told, User, World};

async fn submitted(world: &World, who: &User) -> JobId {
    let id = who.create(json!({"prompt": "draft", "review": true})).await;
    let hand = world.hand(id).await;
    hand.complete_llm("c1", "hi").await;
    hand.finish("the draft").await;
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
    // The container is not kept for the reviewer.
    world.engine().empty().await;
    let mut stream = ada.stream(id, None).await;
    for state in [JobState::Pending, JobState::InProgress, JobState::Completed, JobState::Submitted] {
        loop {
            match stream.next().await {
                Some(Told::Event(event)) if matches!(event.data, EventData::State { to, .. } if to == state) => break,
                Some(Told::Event(_)) => {}
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
async fn a_rejected_result_has_failed_and_restarts_with_what_it_left() {
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
    world.hand(again.id).await.finish("shorter").await;
    let again = ada.wait_for(again.id, JobState::Submitted).await;
    ada.post(&format!("/api/jobs/{}/accept", again.id), &json!({})).await.expect(200);
    world.finish().await;
}

#[rstest]
#[case("accept", json!({}))]
#[case("reject", json!({"reason": "too long"}))]
#[tokio::test]
async fn a_report_whose_answer_was_lost_is_told_again(#[case] verb: &str, #[case] body: serde_json::Value) {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = ada.create(json!({"prompt": "draft", "review": true})).await;
    let hand = world.hand(id).await;
    let report = json!({"outcome": "completed", "text": "the draft"});
    for _ in 0..2 {
        hand.report(report.clone()).await.expect(200);
    }
    hand.report(json!({"outcome": "completed", "text": "another"})).await.problem(ErrorCode::Unauthorized);
    ada.wait_for(id, JobState::Submitted).await;
    // The reviewer may be quicker than the worker.
    ada.post(&format!("/api/jobs/{id}/{verb}"), &body).await.expect(200);
    // Its container goes soon after its report, and its socket with it.
    if let Ok(reply) = hand.request(reqwest::Method::POST, "complete").json(&report).send().await {
        assert_eq!(reply.status(), 200);
    }
    hand.leave(0);
    world.finish().await;
}

#[rstest]
#[case("accept")]
#[case("reject")]
#[tokio::test]
async fn only_the_owner_has_the_last_word(#[case] verb: &str) {
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
    world.hand(id).await.finish("done").await;
    assert_eq!(ada.wait_for_end(id).await.state, JobState::Completed);
    ada.post(&format!("/api/jobs/{id}/accept"), &json!({})).await.problem(ErrorCode::NotSubmitted);
    world.finish().await;
}
