//! The worker API, called by a misbehaving worker.

use std::time::Duration;

use orchestrator::clock::ManualClock;
use protocol::{ErrorCode, EventData, JobState, PromptId};
use reqwest::Method;
use serde_json::{Value, json};
use tests::{ManualWorker, Reply, User, World};

pub(crate) async fn running_job(world: &World, user: &User) -> ManualWorker {
    let id = user.create_job("work").await;
    world.manual_worker(id).await
}

/// Every request that requires a live attempt.
async fn every_worker_request(worker: &ManualWorker) -> Vec<Reply> {
    let mut replies = vec![];
    for path in ["job", "tools", "prompt?wait_seconds=0"] {
        replies.push(worker.get(path).await);
    }
    replies.push(worker.ask("c1", "hi").await);
    replies.push(worker.tool("echo", "t1", json!({"message": "hi"})).await);
    replies.push(worker.record_message(1, "hi").await);
    replies.push(worker.post("status", &json!({"iteration": 1})).await);
    replies
}

#[tokio::test]
async fn the_assignment_contains_only_what_the_worker_needs() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = ada.create(json!({"prompt": "work", "title": "T", "tools": ["shell", "echo"]})).await;
    let worker = world.manual_worker(id).await;
    let body = worker.get("job").await.expect(200).body;
    let tools: Vec<&str> = body["tools"].as_array().unwrap().iter().filter_map(|tool| tool["name"].as_str()).collect();
    assert_eq!(tools, ["echo", "shell"]);
    assert_eq!((&body["prompt"], &body["title"], &body["attempt"]), (&json!("# T\n\nwork"), &json!("T"), &json!(1)));
    assert_eq!((&body["lease_seconds"], &body["egress"]), (&json!(30), &json!({"enabled": false, "allow": []})));
    // Three hexadecimal digits of the id may occur in the user's name.
    let text = body.to_string().replace(&id.to_string(), "");
    assert!(!text.contains("ada") && !text.contains("secret") && !text.contains(&worker.token));
    let health = Reply::of(
        reqwest::Client::builder()
            .unix_socket(world.engine().until_running(id).await.spec.run_dir.join("worker.sock"))
            .build()
            .unwrap()
            .get("http://gantry/health"),
    )
    .await;
    health.expect(200);
    worker.finish("done").await;
    world.finish().await;
}

#[tokio::test]
async fn only_the_jobs_own_token_socket_and_path_are_accepted() {
    let world = World::new().await;
    let ada = world.user("ada");
    let (one, two) = (running_job(&world, &ada).await, running_job(&world, &ada).await);
    let posing = [
        one.with_token(&two.token),
        one.naming(two.job),
        one.with_token(&two.token).naming(two.job),
        one.with_token(""),
        one.with_token("garbage"),
        one.with_token(&one.token[..one.token.len() - 2]),
        one.naming(protocol::JobId::generate()),
    ];
    for worker in &posing {
        for reply in every_worker_request(worker).await {
            reply.problem(ErrorCode::Unauthorized);
        }
        worker.report(json!({"outcome": "completed", "text": "stolen"})).await.problem(ErrorCode::Unauthorized);
    }
    for worker in [one, two] {
        assert!(worker.job().await.prompt == "work");
        let id = worker.job;
        worker.finish("done").await;
        assert_eq!(ada.wait_for(id, JobState::Completed).await.usage.llm_calls, 0);
    }
    world.finish().await;
}

#[tokio::test]
async fn an_old_attempt_is_fenced_and_calls_after_the_end_are_refused() {
    let world = World::new().await;
    let ada = world.user("ada");
    let old = running_job(&world, &ada).await;
    let id = old.job;
    world.engine().remove_container(id);
    world.engine().until_start_requested(2).await;
    let worker = world.manual_worker(id).await;
    let stale = worker.with_token(&old.token);
    for reply in every_worker_request(&stale).await {
        reply.problem(ErrorCode::Fenced);
    }
    let report = json!({"outcome": "completed", "text": "done"});
    stale.report(report.clone()).await.problem(ErrorCode::Fenced);
    assert_eq!(ada.job(id).await.state, JobState::InProgress);

    worker.report(report.clone()).await.expect(200);
    assert_eq!(
        worker.report(report.clone()).await.expect(200).body,
        json!({"accepted": true}),
        "executed once, answered twice"
    );
    worker.report(json!({"outcome": "failed", "text": "no"})).await.problem(ErrorCode::Unauthorized);
    for reply in every_worker_request(&worker).await {
        reply.problem(ErrorCode::Unauthorized);
    }
    let job = ada.wait_for(id, JobState::Completed).await;
    assert_eq!(job.result.and_then(|result| result.text).as_deref(), Some("done"));
    worker.exit(0);
    world.finish().await;
}

#[tokio::test]
async fn iterations_are_the_orchestrators_own_count() {
    let world = World::new().await;
    let ada = world.user("ada");
    let worker = running_job(&world, &ada).await;
    let id = worker.job;
    worker.complete_llm("c1", "hi").await;
    worker.report(json!({"outcome": "completed", "text": "done", "iterations": u32::MAX})).await.expect(200);
    worker.exit(0);
    let job = ada.wait_for(id, JobState::Completed).await;
    assert_eq!((job.usage.iterations, job.usage.llm_calls), (1, 1));
    world.finish().await;
}

#[tokio::test]
async fn events_are_stored_in_order_once_and_only_of_worker_kinds() {
    let world = World::new().await;
    let ada = world.user("ada");
    let worker = running_job(&world, &ada).await;
    let messages = |seq: u64| (seq, "message", json!({"role": "assistant", "content": format!("line {seq}")}));
    let last = |reply: Reply| reply.expect(200).body["last_client_seq"].as_u64();
    assert_eq!(last(worker.send(&[messages(1), messages(2)]).await), Some(2));
    assert_eq!(last(worker.send(&[messages(1), messages(2)]).await), Some(2), "sent again, stored once");
    assert_eq!(last(worker.send(&[messages(2), messages(3)]).await), Some(3), "the new part of it");
    assert_eq!(last(worker.send(&[]).await), Some(3));
    let gap = worker.send(&[messages(5)]).await.problem(ErrorCode::Invalid);
    assert!(gap.body["detail"].as_str().is_some_and(|detail| detail.contains('4')), "{:#}", gap.body);
    worker.send(&[messages(4), messages(6)]).await.problem(ErrorCode::Invalid);

    for (kind, data) in [
        ("state", json!({"from": "in_progress", "to": "completed", "reason": null, "message": null})),
        ("result", json!({"outcome": "completed", "text": "", "partial": null})),
        ("egress", json!({"host": "a", "port": 1, "decision": "allowed", "rule": "", "bytes": 0})),
        (
            "llm_call",
            json!({"model": "m", "provider": "p", "input_tokens": 0, "output_tokens": 0, "cost_usd": 0.0,
                            "duration_ms": 0, "finish_reason": "stop"}),
        ),
        ("gossip", json!({})),
    ] {
        worker.send(&[(4, kind, data)]).await.problem(ErrorCode::Invalid);
    }
    worker.send(&[(4, "message", json!({"role": "assistant"}))]).await.problem(ErrorCode::Invalid);
    worker.send(&[messages(4)]).await.expect(200);
    let id = worker.job;
    worker.finish("done").await;
    ada.wait_for(id, JobState::Completed).await;
    let lines: Vec<String> = ada
        .events(id)
        .await
        .into_iter()
        .filter_map(|event| match event.data {
            EventData::Message { content, .. } => Some(content),
            _ => None,
        })
        .collect();
    assert_eq!(lines, ["line 1", "line 2", "line 3", "line 4"], "a refused batch must store nothing");
    world.finish().await;
}

#[tokio::test]
async fn a_flood_of_events_is_rate_limited() {
    let world = World::new().await;
    let ada = world.user("ada");
    let worker = running_job(&world, &ada).await;
    let log = |seq: u64, text: &str| (seq, "log", json!({"stream": "stdout", "text": text}));
    worker.send(&[log(1, &"x".repeat(2 << 20))]).await.problem(ErrorCode::TooLarge);
    let many: Vec<_> = (1..=1_001).map(|seq| log(seq, "")).collect();
    worker.send(&many).await.problem(ErrorCode::TooLarge);
    let mut sent = 0;
    let refused = loop {
        let batch: Vec<_> = (sent + 1..=sent + 1_000).map(|seq| log(seq, "")).collect();
        let reply = worker.send(&batch).await;
        if reply.status.as_u16() != 200 {
            break reply;
        }
        sent += 1_000;
        assert!(sent < 100_000, "never stopped");
    };
    let refused = refused.problem(ErrorCode::RateLimited);
    assert!(refused.header("retry-after").is_some_and(|wait| wait.parse::<u64>().is_ok_and(|wait| wait >= 1)));
    worker.finish("done").await;
    world.finish().await;
}

#[tokio::test]
async fn a_flood_of_event_bytes_is_rate_limited() {
    let time = ManualClock::at("2026-11-22T12:00:00Z".parse().unwrap());
    let world = World::builder().clock(&time).build().await;
    let ada = world.user("ada");
    let worker = running_job(&world, &ada).await;
    let log = |seq: u64, bytes: usize| (seq, "log", json!({"stream": "stdout", "text": "x".repeat(bytes)}));
    worker.send(&[log(1, 500_000)]).await.problem(ErrorCode::TooLarge);
    let mut sent = 0;
    let refused = loop {
        let reply = worker.send(&[log(sent + 1, 250_000), log(sent + 2, 250_000), log(sent + 3, 250_000)]).await;
        if reply.status.as_u16() != 200 {
            break reply;
        }
        sent += 3;
        assert!(sent < 400, "never stopped");
    };
    assert!(sent > 100, "normal output must not be limited: {sent}");
    refused.problem(ErrorCode::RateLimited);
    time.advance(Duration::from_secs(10));
    worker.send(&[log(sent + 1, 250_000)]).await.expect(200);
    // A page of events is bounded in bytes, so that it fits into one response.
    let page = ada.get(&format!("/api/jobs/{}/events?limit=200", worker.job)).await.expect(200);
    let items = page.body["items"].as_array().unwrap().len();
    assert!((2..20).contains(&items) && page.body["next_after"].is_i64(), "{items} events in a page");
    worker.finish("done").await;
    world.finish().await;
}

#[tokio::test]
async fn a_repeated_model_call_is_charged_once() {
    let script =
        tests::script_of(&[json!({"reply": {"text": "answer {{turn}} to {{last_message}}", "delay_ms": 200}})]);
    let world = World::builder().script(script).build().await;
    let ada = world.user("ada");
    let worker = running_job(&world, &ada).await;
    let (one, beside) = tokio::join!(worker.complete_llm("c1", "hi"), worker.complete_llm("c1", "hi"));
    assert_eq!(one, beside);
    assert_eq!(worker.complete_llm("c1", "hi").await, one, "the recorded answer");
    worker.ask("c1", "something else").await.problem(ErrorCode::CallIdReused);
    assert_ne!(worker.complete_llm("c2", "ho").await.content, one.content);
    let id = worker.job;
    worker.finish("done").await;
    let job = ada.wait_for(id, JobState::Completed).await;
    assert_eq!(job.usage.llm_calls, 2);
    let calls = ada.get(&format!("/api/jobs/{id}/llm-calls")).await.expect(200).body;
    assert_eq!(calls["items"].as_array().map(Vec::len), Some(2));
    let reported =
        ada.events(id).await.into_iter().filter(|event| matches!(event.data, EventData::LlmCall { .. })).count();
    assert_eq!(reported, 2);
    world.finish().await;
}

#[tokio::test]
async fn a_model_call_with_an_invalid_id_or_body_is_refused() {
    let world = World::new().await;
    let ada = world.user("ada");
    let worker = running_job(&world, &ada).await;
    let messages = json!([{"role": "user", "content": "hi"}]);
    for body in [
        json!({"messages": messages}),
        json!({"call_id": "c", "messages": "hi"}),
        json!({"call_id": "c", "messages": [{"role": "root", "content": "hi"}]}),
        json!({"call_id": "", "messages": messages}),
        json!({"call_id": "x".repeat(201), "messages": messages}),
    ] {
        worker.post("llm/complete", &body).await.problem(ErrorCode::Invalid);
    }
    worker.finish("done").await;
    world.finish().await;
}

#[tokio::test]
async fn concurrent_calls_do_not_exceed_a_limit_together() {
    let script = tests::script_of(&[json!({"reply": {"text": "answer", "delay_ms": 200}})]);
    let world = World::builder().script(script).build().await;
    let ada = world.user("ada");
    let id = ada.create(json!({"prompt": "work", "limits": {"max_iterations": 3, "max_tool_calls": 5}})).await;
    let worker = world.manual_worker(id).await;
    let names: Vec<String> = (0..8).map(|n| format!("c{n}")).collect();
    let asked = futures_util::future::join_all(names.iter().map(|name| worker.ask(name, "hi"))).await;
    let (answers, refusals): (Vec<_>, Vec<_>) = asked.into_iter().partition(|reply| reply.status == 200);
    assert_eq!(answers.len(), 3);
    for refusal in refusals {
        refusal.problem(ErrorCode::IterationLimit);
    }
    let called = names.iter().map(|name| worker.tool("echo", name, json!({"message": "hi"})));
    let called = futures_util::future::join_all(called).await;
    let done = called.into_iter().filter(|reply| reply.body["success"] == json!(true)).count();
    assert_eq!(done, 5);
    worker.finish("done").await;
    let job = ada.wait_for(id, JobState::Completed).await;
    let recorded = ada.get(&format!("/api/jobs/{id}/actions")).await.expect(200).body;
    assert_eq!((job.usage.iterations, recorded["items"].as_array().map(Vec::len)), (3, Some(5)));
    world.finish().await;
}

#[tokio::test]
async fn the_worker_socket_serves_no_public_api_and_refuses_large_bodies() {
    let world = World::new().await;
    let ada = world.user("ada");
    let worker = running_job(&world, &ada).await;
    worker.get("../../api/jobs").await.problem(ErrorCode::NotFound);
    worker.get("nothing").await.problem(ErrorCode::NotFound);
    Reply::of(worker.request(Method::DELETE, "job")).await.problem(ErrorCode::MethodNotAllowed);
    let big = json!({"outcome": "completed", "text": "x".repeat(2 << 20)});
    worker.report(big).await.problem(ErrorCode::TooLarge);
    let model: Value = json!({"call_id": "c", "messages": [{"role": "user", "content": "x".repeat(3 << 20)}]});
    worker.post("llm/complete", &model).await.expect(200);
    worker.get("prompt?wait_seconds=x").await.problem(ErrorCode::Invalid);
    assert_eq!(worker.prompt(PromptId::nil(), 0).await, None);
    worker.finish("done").await;
    world.finish().await;
}
