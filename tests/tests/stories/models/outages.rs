//! Model outages: calls are retried, and one user's calls neither fail nor delay another user's.

use std::{
    io::Write as _,
    time::{Duration, Instant},
};

use orchestrator::clock::ManualClock;
use protocol::{ErrorCode, EventData, JobId, JobReason, JobState};
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use tests::{ManualWorker, User, World, script_of};

fn clock() -> ManualClock {
    ManualClock::at("2026-11-22T12:00:00Z".parse().unwrap())
}

async fn running_job(world: &World, who: &User) -> ManualWorker {
    let id = who.create_job("work").await;
    world.manual_worker(id).await
}

async fn model_calls(who: &User, job: JobId) -> Vec<Value> {
    let calls = who.get(&format!("/api/jobs/{job}/llm-calls")).await.expect(200).body;
    calls["items"].as_array().unwrap().clone()
}

async fn statuses(who: &User, job: JobId) -> Vec<String> {
    let messages = who.events(job).await.into_iter().filter_map(|event| match event.data {
        EventData::Status { message, .. } => Some(message),
        _ => None,
    });
    messages.collect()
}

/// Longer than the gateway itself waits, so that the worker waits.
const LONG_RETRY_AFTER_SECONDS: u64 = 9;

/// Long enough for the five tries that open a circuit.
const OUTAGE_PATIENCE_SECONDS: u64 = 9;
/// How long a circuit is open.
const CIRCUIT_SECONDS: u64 = 30;

#[tokio::test]
async fn an_outage_with_a_long_retry_after_fails_no_job() {
    let away = json!({"times": 1, "error": {"status": 503, "message": "maintenance", "retry_after_seconds": LONG_RETRY_AFTER_SECONDS}});
    let script = script_of(&[away, json!({"reply": {"text": "{{last_message}}"}})]);
    let world = World::builder().processes().script(script).build().await;
    let ada = world.user("ada");
    let started_at = Instant::now();
    let id = ada.create_job("work").await;
    ada.wait_for_event(id, "the wait", |event| matches!(event.data, EventData::Status { .. })).await;
    ada.prompt(id, json!({"content": "and this", "mode": "steer"})).await.expect(202);
    let job = ada.wait_for_end(id).await;
    assert_eq!(job.state, JobState::Completed, "{job:#?}");
    assert!(started_at.elapsed() >= Duration::from_secs(LONG_RETRY_AFTER_SECONDS));
    assert_eq!(
        job.result.and_then(|result| result.text).as_deref(),
        Some("and this"),
        "the prompt is in the next request"
    );
    let messages = statuses(&ada, id).await;
    let expected = "waiting for the model: it failed once, and is given up after 10 times or 300 s without an answer; next try \
                    in 9 s: server: scripted: status 503: maintenance";
    assert_eq!(messages[0], expected, "{messages:?}");
    world.finish().await;
}

#[tokio::test]
async fn a_job_whose_provider_is_dead_fails_when_the_patience_ends() {
    let script = script_of(&[json!({"error": {"status": 500, "message": "oh no"}})]);
    let world = World::builder()
        .processes()
        .script(script)
        .set("GANTRY_LLM_OUTAGE_PATIENCE_SECONDS", OUTAGE_PATIENCE_SECONDS)
        .build()
        .await;
    let ada = world.user("ada");
    let started_at = Instant::now();
    let id = ada.create_job("work").await;
    let job = ada.wait_for_end(id).await;
    let took = started_at.elapsed();
    assert_eq!((job.state, job.reason), (JobState::Failed, Some(JobReason::LlmError)), "{job:#?}");
    assert!(job.usage.llm_calls >= 2, "its circuit was opened: {job:#?}");
    assert!(took < Duration::from_secs(CIRCUIT_SECONDS), "it waited for its circuit: {took:?}");
    world.finish().await;
}

#[tokio::test]
async fn a_full_provider_queue_fails_no_job() {
    let script = script_of(&[json!({"reply": {"text": "done", "delay_ms": 900}})]);
    let world = World::builder()
        .processes()
        .script(script)
        .set("GANTRY_LLM_MAX_CONCURRENT", 1)
        .set("GANTRY_LLM_TIMEOUT_SECONDS", 1)
        .build()
        .await;
    let ada = world.user("ada");
    let jobs = [ada.create_job("1").await, ada.create_job("2").await, ada.create_job("3").await];
    let mut waited = 0;
    for id in jobs {
        assert_eq!(ada.wait_for_end(id).await.state, JobState::Completed);
        assert_eq!(model_calls(&ada, id).await.len(), 1, "a call that reached no provider must not be recorded");
        waited += statuses(&ada, id).await.len();
    }
    assert!(waited > 0, "at least one call found the queue full");
    world.finish().await;
}

#[tokio::test]
async fn a_provider_that_refuses_the_key_is_skipped() {
    let mut second = NamedTempFile::new().unwrap();
    second.write_all(script_of(&[json!({"reply": {"text": "from the second"}})]).as_bytes()).unwrap();
    let world = World::builder()
        .script(script_of(&[json!({"error": {"status": 401, "message": "bad key"}})]))
        .set("GANTRY_LLM_FAILOVER_0_PROVIDER", "scripted")
        .set("GANTRY_LLM_FAILOVER_0_SCRIPT", second.path().display())
        .build()
        .await;
    let ada = world.user("ada");
    let worker = running_job(&world, &ada).await;
    assert_eq!(worker.complete_llm("c1", "hello").await.content, "from the second");
    worker.finish("done").await;
    world.finish().await;
}

#[tokio::test]
async fn a_reported_wait_of_ten_minutes_is_not_stuck() {
    let time = clock();
    let world = World::builder()
        .clock(&time)
        .set("GANTRY_LEASE_SECONDS", 3600)
        .set("GANTRY_WORKER_PATIENCE_SECONDS", 77)
        .build()
        .await;
    let ada = world.user("ada");
    let worker = running_job(&world, &ada).await;
    let assignment = worker.job().await;
    assert_eq!((assignment.outage_patience_seconds, assignment.worker_patience_seconds), (Some(300), Some(77)));
    for n in 0..40 {
        let message = format!("waiting for the model: it failed once; next try in {} s: slow down", 600 - 15 * n);
        worker.send(&[(n + 1, "status", json!({"message": message, "iteration": 1}))]).await.expect(200);
        time.advance(Duration::from_secs(15));
    }
    world.engine().until_listed_again().await;
    world.engine().until_listed_again().await;
    let job = ada.job(worker.job).await;
    assert_eq!((job.state, job.repair_attempts), (JobState::InProgress, 0));
    worker.finish("done").await;
    world.finish().await;
}

#[tokio::test]
async fn one_users_failing_calls_affect_no_other_user_and_refusals_add_no_rows() {
    let script = script_of(&[
        json!({"when": {"last_message": "bad"}, "error": {"status": 500, "message": "oh no"}}),
        json!({"reply": {"text": "well"}}),
    ]);
    let world = World::builder().script(script).build().await;
    let (ada, bob) = (world.user("ada"), world.user("bob"));
    let (bad, good) = (running_job(&world, &ada).await, running_job(&world, &bob).await);
    for call in ["c1", "c2"] {
        let refused = bad.ask(call, "bad").await.problem(ErrorCode::RateLimited);
        assert_eq!(refused.body["reason"], "provider", "{:#}", refused.body);
        good.complete_llm(call, "hello").await;
    }
    // Five attempts have failed: this job's circuit is open, and only this job's.
    for call in ["c3", "c4", "c5"] {
        let refused = bad.ask(call, "bad").await.problem(ErrorCode::RateLimited);
        assert_eq!(refused.body["reason"], "circuit", "{:#}", refused.body);
        let wait: u64 = refused.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=30).contains(&wait), "{wait}");
        good.complete_llm(call, "hello").await;
    }
    let id = bad.job;
    assert_eq!(model_calls(&ada, id).await.len(), 2);
    bad.finish("done").await;
    good.finish("done").await;
    let reported =
        ada.events(id).await.into_iter().filter(|event| matches!(event.data, EventData::LlmCall { .. })).count();
    assert_eq!((reported, ada.wait_for_end(id).await.usage.llm_calls), (2, 2));
    world.finish().await;
}

#[tokio::test]
async fn failing_calls_are_rate_limited_and_all_calls_are_capped() {
    let time = clock();
    let script = script_of(&[json!({"error": {"status": 400, "message": "no"}})]);
    let world = World::builder().clock(&time).script(script).set("GANTRY_LEASE_SECONDS", 3600).build().await;
    let ada = world.user("ada");
    let id = ada.create(json!({"prompt": "work", "limits": {"max_iterations": 2}})).await;
    let worker = world.manual_worker(id).await;
    let mut calls = 0;
    let mut ask = async |expected: ErrorCode| {
        calls += 1;
        worker.ask(&format!("c{calls}"), "hello").await.problem(expected)
    };
    for _ in 0..10 {
        ask(ErrorCode::LlmError).await;
    }
    let paced = ask(ErrorCode::RateLimited).await;
    assert_eq!((&paced.body["reason"], paced.header("retry-after")), (&json!("local"), Some("1")));
    time.advance(Duration::from_secs(1));
    for _ in 0..5 {
        ask(ErrorCode::LlmError).await;
    }
    ask(ErrorCode::RateLimited).await;
    time.advance(Duration::from_secs(1));
    // 3 x 2 + 10 calls, however they end.
    ask(ErrorCode::LlmError).await;
    let capped = ask(ErrorCode::IterationLimit).await;
    assert!(capped.body["detail"].as_str().unwrap().contains("16 model calls"), "{:#}", capped.body);
    worker.finish("done").await;
    assert_eq!(ada.wait_for_end(id).await.usage.llm_calls, 16);
    world.finish().await;
}

#[tokio::test]
async fn a_job_has_at_most_four_concurrent_model_calls() {
    let script = script_of(&[json!({"reply": {"text": "well", "delay_ms": 500}})]);
    let world = World::builder().script(script).build().await;
    let (ada, bob) = (world.user("ada"), world.user("bob"));
    let (many, one) = (running_job(&world, &ada).await, running_job(&world, &bob).await);
    let names: Vec<String> = (0..12).map(|n| format!("c{n}")).collect();
    let started_at = Instant::now();
    let (answers, alone) = tokio::join!(
        futures_util::future::join_all(names.iter().map(|name| many.complete_llm(name, "hello"))),
        async {
            one.complete_llm("c1", "hello").await;
            started_at.elapsed()
        }
    );
    let all = started_at.elapsed();
    assert_eq!(answers.len(), 12);
    assert!(all >= Duration::from_millis(1_500), "three turns of four: {all:?}");
    assert!(alone < all, "another user's call waited for them: {alone:?} of {all:?}");
    many.finish("done").await;
    one.finish("done").await;
    world.finish().await;
}

#[tokio::test]
async fn prompt_text_in_any_request_field_is_charged() {
    let script = script_of(&[
        json!({"when": {"has_tools": true}, "reply": {"text": "with tools"}}),
        json!({"reply": {"text": "without"}}),
    ]);
    let world = World::builder().script(script).build().await;
    let ada = world.user("ada");
    let id = ada.create(json!({"prompt": "work", "limits": {"max_tokens": 20_000}})).await;
    let worker = world.manual_worker(id).await;
    let long = || "x".repeat(1_000_000);
    let user = json!({"role": "user", "content": "hello"});
    let call = |call: Value| json!([user, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "i", "name": "n", "content": ""}]);
    let hidden = [
        call(json!({"id": long(), "name": "n", "arguments": {}})),
        call(json!({"id": "i", "name": long(), "arguments": {}})),
        call(json!({"id": "i", "name": "n", "arguments": {"a": long()}})),
        json!([user, {"role": "assistant", "content": "", "native": {"maker": "m", "value": [long()]}}]),
        json!([user, {"role": "tool", "tool_call_id": long(), "name": "n", "content": ""}]),
    ];
    for (n, messages) in hidden.into_iter().enumerate() {
        let body = json!({"call_id": format!("h{n}"), "messages": messages, "max_tokens": 10});
        worker.post("llm/complete_with_tools", &body).await.problem(ErrorCode::TokenBudget);
    }
    // Tool definitions from the worker are ignored: neither sent nor charged.
    let tool = |name: &str| json!({"name": name, "description": long(), "parameters": {}, "domain": "orchestrator"});
    let forged = json!({"call_id": "t1", "messages": [user], "tools": [tool("mine")], "max_tokens": 10});
    assert_eq!(worker.post("llm/complete_with_tools", &forged).await.expect(200).body["content"], "without");
    let known = json!({"call_id": "t2", "messages": [user], "tools": [tool("echo")], "max_tokens": 10});
    assert_eq!(worker.post("llm/complete_with_tools", &known).await.expect(200).body["content"], "with tools");
    let none =
        json!({"call_id": "t3", "messages": [user], "tools": [tool("echo")], "tool_choice": "none", "max_tokens": 10});
    assert_eq!(worker.post("llm/complete_with_tools", &none).await.expect(200).body["content"], "without");
    worker.finish("done").await;
    world.finish().await;
}

/// The gateway tries three times itself, with waits that a worker does not see.
#[tokio::test]
async fn a_retry_of_the_gateway_is_in_the_jobs_events() {
    let away = json!({"times": 1, "error": {"status": 503, "message": "maintenance", "retry_after_seconds": 3}});
    let world = World::builder().script(script_of(&[away, json!({"reply": {"text": "done"}})])).build().await;
    let ada = world.user("ada");
    let worker = running_job(&world, &ada).await;
    assert_eq!(worker.complete_llm("c1", "hello").await.content, "done");
    let messages = statuses(&ada, worker.job).await;
    assert_eq!(messages, ["waiting for the model: attempt 2 of 3, next try in 3 s: server error"]);
    worker.finish("done").await;
    world.finish().await;
}

#[tokio::test]
async fn a_silent_provider_is_in_the_jobs_events_after_ten_seconds() {
    let script = script_of(&[json!({"reply": {"text": "done", "delay_ms": 11_000}})]);
    let world = World::builder().script(script).build().await;
    let ada = world.user("ada");
    let worker = running_job(&world, &ada).await;
    assert_eq!(worker.complete_llm("c1", "hello").await.content, "done");
    let messages = statuses(&ada, worker.job).await;
    assert_eq!(messages, ["waiting for the model: attempt 1 of 3, no answer for 10 s"]);
    worker.finish("done").await;
    world.finish().await;
}
