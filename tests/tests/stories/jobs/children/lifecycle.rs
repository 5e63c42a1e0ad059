//! Jobs and the jobs below them: waiting in one slot, ending together, on one budget.

use std::time::Duration;

use orchestrator::clock::ManualClock;
use protocol::{ErrorCode, Job, JobId, JobReason, JobState, JobSummary, ToolErrorKind, UsageLine};
use rstest::rstest;
use serde_json::{Value, json};
use tests::{ManualWorker, User, World, script_of};
use tokio::task::JoinSet;

use super::{call, create, end, finish, parent_of};

/// A call in the background.
fn begin(
    worker: &ManualWorker,
    call_id: &'static str,
    tool: &'static str,
    arguments: Value,
) -> JoinSet<Result<Value, (ToolErrorKind, String)>> {
    let worker = worker.clone();
    let mut calls = JoinSet::new();
    calls.spawn(async move { call(&worker, call_id, tool, arguments).await });
    calls
}

async fn result(mut calls: JoinSet<Result<Value, (ToolErrorKind, String)>>) -> Value {
    let done = tests::within("the result of a call", calls.join_next()).await;
    done.expect("a call").expect("it does not panic").expect("it succeeds")
}

/// The child of a job, once there is one.
async fn child_of(user: &User, parent: JobId) -> JobId {
    tests::poll("a child", async || {
        user.jobs().await.into_iter().find(|job| job.parent_id == Some(parent)).map(|job| job.id)
    })
    .await
}

#[tokio::test]
async fn a_parent_that_waits_lends_its_only_slot_to_its_children() {
    let world = World::builder().set("GANTRY_MAX_PARALLEL_JOBS", 1).build().await;
    let (ada, bob) = (world.user("ada"), world.user("bob"));
    let worker = parent_of(&world, &ada, 2).await;
    let parent = worker.job;
    let bobs = bob.create_job("work").await;
    // More of ada's jobs than are read from a user's queue.
    let mut queued = vec![];
    for _ in 0..4 {
        queued.push(ada.create_job("later").await);
    }
    for (call_id, text) in [("t1", "one"), ("t2", "two")] {
        let waits = begin(&worker, call_id, "create_job", json!({"prompt": "a part", "wait": true}));
        let child = tests::poll("the child", async || {
            let open = |job: &JobSummary| job.parent_id == Some(parent) && !job.state.is_finished();
            ada.jobs().await.into_iter().find(open).map(|job| job.id)
        })
        .await;
        let below = world.manual_worker(child).await;
        assert_eq!(bob.job(bobs).await.state, JobState::Pending, "a slot is lent to no other job");
        below.record_message(1, "so far").await.expect(200);
        below.finish(text).await;
        let output = result(waits).await;
        assert_eq!((&output["state"], &output["result"]), (&json!("completed"), &json!(text)), "{output}");
        assert_eq!((&output["job_id"], &output["usage"]["llm_calls"]), (&json!(child), &json!(0)));
    }
    worker.finish("both").await;
    ada.wait_for_end(parent).await;
    for (user, id) in [(&bob, bobs)].into_iter().chain(queued.into_iter().map(|id| (&ada, id))) {
        finish(&world, user, id).await;
    }
    world.finish().await;
}

#[tokio::test]
async fn a_call_that_waits_answers_with_the_state_after_50_seconds() {
    let time = ManualClock::at("2026-11-22T12:00:00Z".parse().unwrap());
    let world = World::builder()
        .clock(&time)
        .set("GANTRY_LEASE_SECONDS", 3600)
        .set("GANTRY_STUCK_AFTER_SECONDS", 30)
        .build()
        .await;
    let ada = world.user("ada");
    let worker = parent_of(&world, &ada, 1).await;
    let parent = worker.job;
    let mut waits = begin(&worker, "t1", "create_job", json!({"prompt": "a part", "wait": true}));
    let child = child_of(&ada, parent).await;
    let below = world.manual_worker(child).await;
    below.job().await;
    for (seq, seconds) in [(1, 25), (2, 24)] {
        time.advance(Duration::from_secs(seconds));
        below.record_message(seq, "still at work").await.expect(200);
        world.engine().until_listed_again().await;
        world.engine().until_listed_again().await;
    }
    assert_eq!(ada.job(parent).await.state, JobState::InProgress, "a job whose call waits is not stuck");
    assert!(waits.try_join_next().is_none(), "it waits for the whole time");
    time.advance(Duration::from_secs(1));
    assert_eq!(result(waits).await, json!({"job_id": child, "state": "in_progress"}));
    let waits = begin(&worker, "t2", "job_status", json!({"job_id": child, "wait": true}));
    below.finish("the part").await;
    let output = result(waits).await;
    assert_eq!((&output["state"], &output["result"]), (&json!("completed"), &json!("the part")), "{output}");
    worker.finish("done").await;
    assert_eq!(ada.wait_for_end(parent).await.repair_attempts, 0);
    world.finish().await;
}

#[rstest]
#[case::cancelled("cancel")]
#[case::failed("fail")]
#[case::completed("complete")]
#[tokio::test]
async fn the_end_of_a_job_cancels_all_jobs_below_it(#[case] end: &str) {
    // Three for one user.
    let world = World::builder().set("GANTRY_MAX_PARALLEL_JOBS", 4).build().await;
    let ada = world.user("ada");
    let worker = parent_of(&world, &ada, 4).await;
    let parent = worker.job;
    let first = create(&worker, "t1", json!({})).await;
    let below = world.manual_worker(first).await;
    let lower = create(&below, "t1", json!({})).await;
    let lowest = world.manual_worker(lower).await;
    let queued = create(&lowest, "t1", json!({})).await;
    match end {
        "cancel" => {
            ada.cancel(parent).await.expect(202);
        }
        "fail" => {
            worker.report(json!({"outcome": "failed", "reason": "internal", "text": ""})).await.expect(200);
            worker.exit(0);
        }
        _ => worker.finish("done").await,
    }
    for id in [first, lower, queued] {
        let job = ada.wait_for(id, JobState::Cancelled).await;
        assert_eq!(job.reason, Some(JobReason::CancelledByParent));
        world.engine().until_removed(id).await;
    }
    ada.wait_for_end(parent).await;
    let again = ada.post(&format!("/api/jobs/{first}/restart"), &json!({})).await.expect(201).json::<Job>();
    assert_eq!((again.parent_id, again.restarted_from), (None, Some(first)), "no job waits for it");
    finish(&world, &ada, again.id).await;
    world.finish().await;
}

#[tokio::test]
async fn a_waiting_parent_is_cancelled_with_its_child() {
    let world = World::builder().set("GANTRY_MAX_PARALLEL_JOBS", 1).build().await;
    let ada = world.user("ada");
    let worker = parent_of(&world, &ada, 1).await;
    let waits = begin(&worker, "t1", "create_job", json!({"prompt": "a part", "wait": true}));
    let child = child_of(&ada, worker.job).await;
    world.engine().until_running(child).await;
    ada.cancel(worker.job).await.expect(202);
    for id in [worker.job, child] {
        ada.wait_for(id, JobState::Cancelled).await;
    }
    drop(waits);
    world.finish().await;
}

#[tokio::test]
async fn a_job_reaches_only_the_jobs_below_it() {
    let world = World::new().await;
    let ada = world.user("ada");
    let (worker, other) = (parent_of(&world, &ada, 3).await, parent_of(&world, &ada, 1).await);
    let child = create(&worker, "t1", json!({"title": "Child"})).await;
    let below = world.manual_worker(child).await;
    let lower = create(&below, "t1", json!({})).await;
    let mut calls = 0;
    let mut ask = async |worker: &ManualWorker, tool: &str, id: JobId| {
        calls += 1;
        call(worker, &format!("q{calls}"), tool, json!({"job_id": id})).await
    };
    for tool in ["job_status", "job_events", "cancel_job"] {
        for (worker, id) in [(&worker, worker.job), (&worker, other.job), (&below, worker.job), (&other, child)] {
            assert_eq!(ask(worker, tool, id).await.unwrap_err().0, ToolErrorKind::NotFound, "{tool}");
        }
    }
    assert_eq!(ask(&worker, "job_status", lower).await.unwrap()["state"], "in_progress");
    below.record_message(1, &"long ".repeat(2_000)).await.expect(200);
    let events = ask(&worker, "job_events", child).await.unwrap();
    let message = events["items"].as_array().unwrap().iter().find(|event| event["kind"] == "message").unwrap();
    let text = message["data"]["content"].as_str().unwrap();
    assert!(text.starts_with("long long") && text.len() <= 2_000, "{}", text.len());
    let page = call(&worker, "p1", "job_events", json!({"job_id": child, "limit": 1})).await.unwrap();
    assert_eq!((page["items"].as_array().map(Vec::len), &page["next_after"]), (Some(1), &json!(1)));
    let page = call(&worker, "p2", "job_events", json!({"job_id": child, "limit": 1, "after": 1})).await.unwrap();
    assert_eq!(page["items"][0]["seq"], 2);
    let listed = call(&worker, "l1", "list_jobs", json!({})).await.unwrap();
    let ids: Vec<&Value> = listed["items"].as_array().unwrap().iter().map(|item| &item["job_id"]).collect();
    assert_eq!(ids, [&json!(lower), &json!(child)]);
    assert_eq!(call(&below, "l1", "list_jobs", json!({"state": "failed"})).await.unwrap(), json!({"items": []}));

    assert_eq!(ask(&worker, "cancel_job", child).await.unwrap()["cancel_requested"], true);
    for id in [child, lower] {
        let job = ada.wait_for(id, JobState::Cancelled).await;
        assert_eq!(job.reason, Some(JobReason::CancelledByParent));
    }
    let status = ask(&worker, "job_status", child).await.unwrap();
    assert_eq!((&status["reason"], &status["partial"]), (&json!("cancelled_by_parent"), &json!("long ".repeat(2_000))));
    assert_eq!(ask(&worker, "cancel_job", child).await.unwrap()["state"], "cancelled");
    for worker in [worker, other] {
        end(worker, &ada).await;
    }
    world.finish().await;
}

/// Each answer uses 300 input and 100 output tokens.
fn token_script() -> String {
    script_of(&[json!({"reply": {"text": "ok", "usage": {"input_tokens": 300, "output_tokens": 100}}})])
}

#[tokio::test]
async fn a_child_draws_on_its_parents_budget_and_is_counted_once() {
    let world = World::builder().script(token_script()).build().await;
    let ada = world.user("ada");
    let parent = ada.create(json!({"prompt": "work", "limits": {"max_children": 2, "max_tokens": 1_300}})).await;
    let worker = world.manual_worker(parent).await;
    let child = create(&worker, "t1", json!({})).await;
    let below = world.manual_worker(child).await;
    let lower = create(&below, "t1", json!({})).await;
    let lowest = world.manual_worker(lower).await;
    for worker in [&worker, &below, &lowest] {
        worker.complete_llm("c1", "short").await;
    }
    // 1 200 of 1 300 tokens are used. The next call gets the rest, and further calls are refused.
    below.complete_llm("c2", "short").await;
    for worker in [&worker, &below, &lowest] {
        worker.ask("c9", "short").await.problem(ErrorCode::TokenBudget);
    }
    for worker in [lowest, below, worker] {
        end(worker, &ada).await;
    }
    let usage = async |by: &str| -> Vec<UsageLine> {
        let page = ada.get(&format!("/api/usage?by={by}")).await.expect(200).body;
        serde_json::from_value(page["items"].clone()).unwrap()
    };
    let total = |lines: &[UsageLine]| lines.iter().map(|line| line.llm_calls).sum::<u64>();
    let tokens = |lines: &[UsageLine]| lines.iter().map(|line| line.input_tokens).sum::<u64>();
    for by in ["day", "model", "job"] {
        let lines = usage(by).await;
        assert_eq!((total(&lines), tokens(&lines)), (4, 1_200), "{by}");
    }
    world.finish().await;
}
