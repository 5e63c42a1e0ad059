//! Calls of the orchestrator's tools by a worker: made once, limited, recorded.

use std::time::Duration;

use orchestrator::{
    clock::{Clock, ManualClock},
    digest::sha256_hex,
    store::{CallKey, NewToolCall, OpenedToolCall},
};
use protocol::{CallId, ErrorCode, EventData, Execution, JobState, ToolCallReply, ToolErrorKind};
use serde_json::{Value, json};
use tests::{ManualWorker, World, script_of};

use crate::worker_api::running_job;

#[tokio::test]
async fn worker_events_cannot_override_the_orchestrators_record_of_a_call() {
    let world = World::new().await;
    let ada = world.user("ada");
    let worker = running_job(&world, &ada).await;
    let used = |reason: &str| json!({"call_id": "t1", "tool": "time", "input": {}, "reasoning": reason});
    worker.send(&[(1, "tool_use", used("to say it"))]).await.expect(200);
    worker.tool("echo", "t1", json!({"message": "hi"})).await.expect(200);
    worker.send(&[(2, "tool_use", used("another"))]).await.expect(200);
    let lies = json!({"call_id": "t1", "tool": "time", "success": false, "output": "nothing", "truncated": false, "duration_ms": 1});
    worker.send(&[(3, "tool_result", lies)]).await.expect(200);
    let actions = ada.get(&format!("/api/jobs/{}/actions", worker.job)).await.expect(200);
    let reported = &actions.body["items"][0];
    assert_eq!(
        [&reported["tool"], &reported["output"], &reported["input"]["message"], &reported["reasoning"]],
        ["echo", "hi", "hi", "to say it"],
        "{reported:#}"
    );
    assert_eq!(reported["success"], true);
    worker.finish("done").await;
    world.finish().await;
}

/// With the real worker: calls that the orchestrator runs, and those that run in the container.
#[tokio::test]
async fn each_call_of_a_reply_has_the_models_reason() {
    const SECRET: &str = "correct-horse-battery";
    let calls = json!([
        {"name": "echo", "arguments": {"message": "hi"}}, {"name": "list_dir", "arguments": {}},
        {"name": "no_such_tool", "arguments": {}},
    ]);
    let script = script_of(&[
        json!({"times": 1, "reply": {"text": format!("I need {SECRET}."), "tool_calls": calls}}),
        json!({"times": 1, "reply": {"reasoning": "It was not enough.", "text": "Again.", "tool_calls": calls}}),
        json!({"reply": {"text": "done"}}),
    ]);
    let world = World::builder().processes().script(script).build().await;
    let ada = world.user("ada");
    ada.post("/api/secrets", &json!({"name": "KEY", "value": SECRET})).await.expect(201);
    let id = ada.create_job("p").await;
    ada.wait_for(id, JobState::Completed).await;
    let expected = [Some("I need [redacted]."), Some("It was not enough.")].map(|reason| [reason; 3]).concat();
    let events = ada.events(id).await;
    let reasons: Vec<Option<&str>> = events
        .iter()
        .filter_map(|event| match &event.data {
            EventData::ToolUse { reasoning, .. } => Some(reasoning.as_deref()),
            _ => None,
        })
        .collect();
    assert_eq!(reasons, expected);
    let actions = ada.get(&format!("/api/jobs/{id}/actions")).await.expect(200).body;
    let mut recorded: Vec<Option<&str>> =
        actions["items"].as_array().unwrap().iter().map(|action| action["reasoning"].as_str()).collect();
    recorded.sort_unstable();
    assert_eq!(recorded, expected, "{actions:#}");
    world.finish().await;
}

#[tokio::test]
async fn a_tool_call_runs_once_and_a_refusal_is_a_result() {
    let world = World::new().await;
    let ada = world.user("ada");
    let worker = running_job(&world, &ada).await;
    let echo = worker.tool("echo", "t1", json!({"message": "hi"})).await.expect(200);
    assert_eq!((&echo.body["success"], &echo.body["output"]), (&json!(true), &json!("hi")));
    let again = worker.tool("echo", "t1", json!({"message": "hi"})).await.expect(200);
    assert_eq!(again.body, echo.body);
    worker.tool("echo", "t1", json!({"message": "other"})).await.problem(ErrorCode::CallIdReused);
    for (id, name, arguments, kind) in [
        ("t2", "create_job", json!({"prompt": "p"}), "autonomous_unavailable"),
        ("t3", "Create_Job", json!({"prompt": "p"}), "autonomous_unavailable"),
        ("t4", "nothing", json!({}), "not_found"),
        ("t5", "echo", json!({"volume": 11}), "invalid_parameters"),
        ("t6", "echo", json!("text"), "invalid_parameters"),
        ("t7", "shell", json!({"command": "id"}), "not_found"),
    ] {
        let reply = worker.tool(name, id, arguments).await.expect(200);
        let seen = (reply.body["success"].as_bool(), reply.body["error"]["kind"].as_str());
        assert_eq!(seen, (Some(false), Some(kind)), "{name}: {:#}", reply.body);
        assert!(reply.body["error"]["message"].as_str().is_some_and(|message| !message.is_empty()));
    }
    worker.tool("echo", "", json!({"message": "hi"})).await.problem(ErrorCode::Invalid);
    let id = worker.job;
    worker.finish("done").await;
    ada.wait_for(id, JobState::Completed).await;
    let actions = ada.get(&format!("/api/jobs/{id}/actions")).await.expect(200).body;
    let tools: Vec<Option<&str>> =
        actions["items"].as_array().unwrap().iter().map(|action| action["tool"].as_str()).collect();
    let every = ["echo", "create_job", "Create_Job", "nothing", "echo", "echo", "shell"].map(Some);
    assert_eq!(tools, every, "every call must be recorded, including refused and unknown ones");
    assert_eq!(ada.jobs().await.len(), 1, "no job was made");
    world.finish().await;
}

#[tokio::test]
async fn a_rate_limited_tool_call_returns_a_retry_time() {
    let time = ManualClock::at("2026-11-22T12:00:00Z".parse().unwrap());
    let world = World::builder().clock(&time).build().await;
    let (ada, bob) = (world.user("ada"), world.user("bob"));
    let (worker, other, bobs) =
        (running_job(&world, &ada).await, running_job(&world, &ada).await, running_job(&world, &bob).await);
    let echo = async |worker: &ManualWorker, id: &str| {
        worker.tool("echo", id, json!({"message": "hi"})).await.expect(200).json::<ToolCallReply>()
    };
    for n in 0..60 {
        assert!(echo(&worker, &format!("t{n}")).await.success, "call {n}");
    }
    let refused = echo(&other, "t1").await.error.expect("jobs of a user share its limits");
    assert_eq!((refused.kind, refused.retry_after_seconds), (ToolErrorKind::RateLimited, Some(1)));
    assert!(refused.message.contains("in 1 s"), "{refused:?}");
    assert!(other.tool("json", "t2", json!({"operation": "parse", "text": "1"})).await.json::<ToolCallReply>().success);
    assert!(echo(&bobs, "t1").await.success, "other calls must not be delayed");
    time.advance(Duration::from_secs(1));
    assert!(echo(&other, "t3").await.success);
    assert!(!echo(&other, "t4").await.success);
    for (who, worker) in [(&ada, worker), (&ada, other), (&bob, bobs)] {
        let id = worker.job;
        worker.finish("done").await;
        who.wait_for_end(id).await;
    }
    world.finish().await;
}

#[tokio::test]
async fn stored_tool_arguments_are_bounded() {
    let world = World::new().await;
    let ada = world.user("ada");
    let worker = running_job(&world, &ada).await;
    let message = |bytes: usize| json!({"message": "x".repeat(bytes)});
    let large = worker.tool("echo", "large", message(200 << 10)).await.expect(200);
    assert_eq!(large.body["success"], true, "{:#}", large.body);
    let refused = worker.tool("echo", "too large", message(300 << 10)).await.expect(200);
    assert_eq!(refused.body["error"]["kind"], "invalid_parameters", "{:#}", refused.body);
    worker.tool("nothing", "unknown", message(100 << 10)).await.expect(200);
    let id = worker.job;
    let actions = ada.get(&format!("/api/jobs/{id}/actions")).await.expect(200).body;
    let kept: Vec<&Value> = actions["items"].as_array().unwrap().iter().map(|action| &action["input"]).collect();
    assert_eq!(kept[0]["truncated"].as_str().map(str::len), Some(64 << 10));
    assert_eq!(kept[1..], [&Value::Null, &Value::Null], "a refused call must be recorded without its input");
    worker.finish("done").await;
    world.finish().await;
}

#[tokio::test]
async fn a_flood_of_refused_tool_calls_is_rate_limited() {
    let time = ManualClock::at("2026-11-22T12:00:00Z".parse().unwrap());
    let world = World::builder().clock(&time).build().await;
    let ada = world.user("ada");
    let worker = running_job(&world, &ada).await;
    let mut calls = 0;
    let mut call = async || {
        calls += 1;
        worker.tool("nothing", &format!("t{calls}"), json!({})).await
    };
    for _ in 0..10 {
        call().await.expect(200);
    }
    let refused = call().await.problem(ErrorCode::RateLimited);
    assert_eq!(refused.header("retry-after"), Some("1"));
    time.advance(Duration::from_secs(1));
    for _ in 0..5 {
        call().await.expect(200);
    }
    call().await.problem(ErrorCode::RateLimited);
    worker.finish("done").await;
    world.finish().await;
}

#[tokio::test]
async fn a_tool_call_sent_several_times_concurrently_runs_once() {
    let world = World::new().await;
    let ada = world.user("ada");
    let worker = running_job(&world, &ada).await;
    let sent = (0..16).map(|_| worker.tool("message", "t1", json!({"content": "hi"})));
    let replies: Vec<Value> =
        futures_util::future::join_all(sent).await.into_iter().map(|reply| reply.expect(200).body).collect();
    assert!(replies.iter().all(|reply| *reply == replies[0]), "one of them was called: {replies:#?}");
    let others = (0..8).map(|n| worker.tool("echo", "t2", json!({"message": format!("{n}")})));
    let replies = futures_util::future::join_all(others).await;
    let created = replies.iter().filter(|reply| reply.status == 200).count();
    assert_eq!(created, 1, "a call id must identify one call: {replies:#?}");
    worker.tool("time", "t1", json!({})).await.problem(ErrorCode::CallIdReused);
    worker.finish("done").await;
    world.finish().await;
}

#[tokio::test]
async fn a_job_with_a_tool_list_can_call_only_those_tools() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = ada.create(json!({"prompt": "work", "tools": ["time"]})).await;
    let worker = world.manual_worker(id).await;
    let listed = worker.get("tools").await.expect(200).body;
    assert_eq!(listed["tools"].as_array().map(Vec::len), Some(1));
    let reply = worker.tool("echo", "t1", json!({"message": "hi"})).await.expect(200);
    assert_eq!(reply.body["success"], json!(false), "{:#}", reply.body);
    let reply = worker.tool("time", "t2", json!({})).await.expect(200);
    assert_eq!(reply.body["success"], json!(true), "{:#}", reply.body);
    worker.finish("done").await;
    world.finish().await;
}

#[tokio::test]
async fn a_tool_call_interrupted_by_a_crash_is_never_run_again() {
    let mut world = World::new().await;
    let ada = world.user("ada");
    let id = ada.create_job("work").await;
    world.manual_worker(id).await;
    world.stop().await;
    // The state that a process leaves behind when it dies while the tool runs.
    let arguments = json!({"content": "hello"});
    let key = CallKey { execution: Execution::new(id, 1), call_id: CallId("t1".to_owned()) };
    let digest = sha256_hex(&[b"message\0", arguments.to_string().as_bytes()].concat());
    let call = NewToolCall {
        key,
        request_digest: digest,
        at: Clock::system().now(),
        tool: "message".to_owned(),
        input: arguments.clone(),
        reasoning: None,
        estimated_cost_micro_usd: 0,
        is_repeatable: false,
        max_calls: Some(10),
    };
    let store = world.store().await;
    assert_eq!(store.open_tool_call(&call).await.unwrap(), OpenedToolCall::Open);
    store.close().await;
    world.start().await;
    let ada = world.user("ada");
    let worker = world.manual_worker(id).await;
    for _ in 0..2 {
        let reply = worker.tool("message", "t1", arguments.clone()).await.expect(200).body;
        assert!(reply["error"]["message"].as_str().unwrap().starts_with("interrupted"), "{reply}");
    }
    let actions = ada.get(&format!("/api/jobs/{id}/actions")).await.expect(200).body;
    let shown = &actions["items"][0];
    assert_eq!((&shown["success"], &shown["input"]), (&json!(false), &arguments));
    worker.finish("done").await;
    world.finish().await;
}

#[tokio::test]
async fn a_job_runs_tools_that_always_need_approval_only_if_they_were_approved() {
    let world = World::new().await;
    let ada = world.user("ada");
    let plain = running_job(&world, &ada).await;
    let approved = ada.create(json!({"prompt": "work", "approve": ["memory_write", "secret_list"]})).await;
    let approved = world.manual_worker(approved).await;
    assert_eq!(approved.job().await.approve, ["memory_write", "secret_list"]);
    let kind = async |worker: &ManualWorker, id: &str, tool: &str, arguments: Value| {
        let reply = worker.tool(tool, id, arguments).await.expect(200).json::<ToolCallReply>();
        reply.error.map(|failure| failure.kind)
    };
    let heartbeat = json!({"path": "HEARTBEAT.md", "content": "check the build"});
    let refused = Some(ToolErrorKind::AutonomousUnavailable);
    assert_eq!(kind(&plain, "t1", "memory_write", heartbeat.clone()).await, refused);
    assert_eq!(kind(&approved, "t1", "memory_write", heartbeat).await, None);
    // What is denied to all jobs stays denied.
    assert_eq!(kind(&approved, "t2", "secret_list", json!({})).await, refused);
    let path = format!("/api/jobs/{}/restart", approved.job);
    for worker in [plain, approved] {
        worker
            .report(json!({"outcome": "failed", "reason": "llm_error", "message": "down", "text": ""}))
            .await
            .expect(200);
        worker.exit(1);
        ada.wait_for(worker.job, JobState::Failed).await;
    }
    let again = ada.post(&path, &json!({})).await.expect(201).body;
    let again = world.manual_worker(again["id"].as_str().unwrap().parse().unwrap()).await;
    assert_eq!(again.job().await.approve, ["memory_write", "secret_list"], "a restart keeps what was approved");
    again.finish("done").await;
    let unknown = ada.post("/api/jobs", &json!({"prompt": "work", "approve": ["no_such_tool"]})).await;
    assert_eq!(unknown.problem(ErrorCode::Invalid).fields(), ["approve[0]"]);
    world.finish().await;
}
