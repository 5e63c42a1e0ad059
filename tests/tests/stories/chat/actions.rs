//! The record of a chat's tool calls: every call has its row, and the rows outlive the thread without their texts.

use std::time::Duration;

use orchestrator::{auth::Role, clock::ManualClock};
use protocol::{ErrorCode, LlmCallRecord, Page, ThreadActionRecord, ThreadState, ToolErrorKind};
use reqwest::Method;
use serde_json::{Value, json};
use tests::{Reply, User, World, install::program, script_of};

use super::{history, send, turn, until_state};
use crate::chat::gates_in_chat::waiting;

const SECRET: &str = "correct-horse-battery";
/// What the model says before its calls, as it is shown.
const REASON: &str = "I need [redacted].";
/// Tool calls of one turn, at most.
const MAX_CALLS: usize = 500;

/// A model that makes the calls of each kind when it is told to.
fn script() -> String {
    let many: Vec<Value> =
        (0..170).map(|n| json!({"name": "echo", "arguments": {"message": format!("{{{{turn}}}} {n}")}})).collect();
    let secret = format!("it is {SECRET}");
    script_of(&[
        json!({"when": {"prompt": "many"}, "reply": {"tool_calls": many}}),
        json!({"when": {"tool_name": {"regex": "."}}, "reply": {"text": "done"}}),
        json!({"when": {"last_message": "allowed"}, "reply": {"text": format!("I need {SECRET}."), "tool_calls":
            [{"name": "echo", "arguments": {"message": secret}}, {"name": "no_such_tool", "arguments": {"text": secret}},
             {"name": "time", "arguments": {}}]}}),
        json!({"when": {"last_message": "asked"}, "reply": {"text": format!("I need {SECRET}."), "tool_calls":
            [{"name": "message", "arguments": {"content": secret}}, {"name": "echo", "arguments": {"message": secret}}]}}),
        json!({"reply": {"text": "hello"}}),
    ])
}

async fn calls_of(user: &User, thread: &str) -> Vec<ThreadActionRecord> {
    let (mut calls, mut cursor) = (vec![], String::new());
    loop {
        let path = format!("/api/chat/threads/{thread}/actions?limit=200{cursor}");
        let page: Page<ThreadActionRecord> = user.get(&path).await.expect(200).json();
        calls.extend(page.items);
        match page.next_cursor {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return calls,
        }
    }
}

/// Tool, success and kind of error of the calls of a turn, ordered.
fn outcomes(calls: &[ThreadActionRecord], turn: u32) -> Vec<(&str, Option<bool>, Option<ToolErrorKind>)> {
    let of_turn = calls.iter().filter(|call| call.turn == turn);
    let mut outcomes: Vec<_> = of_turn.map(|call| (call.tool.as_str(), call.success, call.error)).collect();
    outcomes.sort_by_key(|(tool, ..)| *tool);
    outcomes
}

#[tokio::test]
async fn every_call_has_its_row_and_the_rows_outlive_the_thread_without_texts() {
    const NOT_AUTHORIZED: Option<ToolErrorKind> = Some(ToolErrorKind::NotAuthorized);
    let time = ManualClock::at("2026-11-22T12:00:00Z".parse().unwrap());
    let world = World::builder().clock(&time).script(script()).build().await;
    let ada = world.user("ada");
    ada.post("/api/secrets", &json!({"name": "KEY", "value": SECRET})).await.expect(201);
    let disabled = json!({"permission": "disabled"}).to_string();
    ada.put("/api/tools/time/permission", "application/json", disabled).await.expect(200);
    turn(&ada, "allowed").await;
    // Denied, expired, and stopped while it waits with the call after it.
    send(&ada, "asked").await;
    let gate = waiting(&ada).await.id;
    ada.post(&format!("/api/gates/{gate}/resolve"), &json!({"decision": "deny"})).await.expect(200);
    until_state(&ada, ThreadState::Idle).await;
    send(&ada, "asked").await;
    waiting(&ada).await;
    time.advance(Duration::from_hours(24));
    let ada = world.user("ada");
    until_state(&ada, ThreadState::Idle).await;
    send(&ada, "asked").await;
    waiting(&ada).await;
    ada.post("/api/chat/threads/main/stop", &json!({})).await.expect(202);
    until_state(&ada, ThreadState::Idle).await;

    let calls = calls_of(&ada, "main").await;
    let expected = [
        ("echo", Some(true), None),
        ("no_such_tool", Some(false), Some(ToolErrorKind::NotFound)),
        ("time", Some(false), NOT_AUTHORIZED),
    ];
    assert_eq!(outcomes(&calls, 1), expected);
    for turn in [2, 3] {
        assert_eq!(outcomes(&calls, turn), [("echo", Some(true), None), ("message", Some(false), NOT_AUTHORIZED)]);
    }
    let stopped = [("echo", Some(false), NOT_AUTHORIZED), ("message", Some(false), NOT_AUTHORIZED)];
    assert_eq!(outcomes(&calls, 4), stopped);
    let outputs: Vec<&str> = calls.iter().filter_map(|call| call.output.as_deref()).collect();
    for text in
        ["it is [redacted:KEY]", "the user denied this call", "not approved in time", "the user stopped the turn"]
    {
        assert!(outputs.iter().any(|output| output.contains(text)), "{text}: {outputs:?}");
    }
    let shown = serde_json::to_string(&calls).unwrap();
    assert!(!shown.contains(SECRET) && shown.contains(r#"{"message":"it is [redacted:KEY]"}"#), "{shown}");
    // Also of the calls that were denied, too late, or stopped with the call before them.
    assert!(calls.iter().all(|call| call.reasoning.as_deref() == Some(REASON)), "{shown}");
    let gates = ada.get("/api/gates?state=denied").await.expect(200).body;
    assert_eq!(gates["items"][0]["reasoning"], REASON, "{gates:#}");
    let entries = ada.get("/api/chat/threads/main?limit=200").await.expect(200).body;
    let entries: Vec<&Value> =
        entries["messages"].as_array().unwrap().iter().filter(|entry| entry["role"] == "tool_use").collect();
    assert!(!entries.is_empty() && entries.iter().all(|entry| entry["reasoning"] == REASON), "{entries:#?}");

    // Other users do not learn that there are any.
    let thread = history(&ada).await.thread.id;
    let path = format!("/api/chat/threads/{thread}/actions");
    world.user("bob").get(&path).await.problem(ErrorCode::NotFound);
    assert_eq!(calls_of(&world.someone("root", Role::Admin), &thread.to_string()).await, calls);
    Reply::of(ada.request(Method::DELETE, "/api/chat/threads/main")).await.expect(204);
    ada.get("/api/chat/threads/main/actions").await.problem(ErrorCode::NotFound);
    world.user("bob").get(&path).await.problem(ErrorCode::NotFound);
    let kept = calls_of(&ada, &thread.to_string()).await;
    let without_text =
        |call: ThreadActionRecord| ThreadActionRecord { input: Value::Null, reasoning: None, output: None, ..call };
    assert_eq!(kept, calls.into_iter().map(without_text).collect::<Vec<_>>());
    world.finish().await;
}

#[tokio::test]
async fn the_model_calls_of_a_thread_are_listed_and_outlive_it() {
    let world = World::builder().script(script()).build().await;
    let ada = world.user("ada");
    for _ in 0..3 {
        turn(&ada, "hi").await;
    }
    let calls = async |user: &User, path: &str| {
        let (mut calls, mut cursor) = (Vec::<LlmCallRecord>::new(), String::new());
        loop {
            let page: Page<LlmCallRecord> = user.get(&format!("{path}limit=2{cursor}")).await.expect(200).json();
            calls.extend(page.items);
            match page.next_cursor {
                Some(next) => cursor = format!("&cursor={next}"),
                None => return calls,
            }
        }
    };
    let oldest = calls(&ada, "/api/chat/threads/main/llm-calls?").await;
    let turns: Vec<u32> = oldest.iter().map(|call| call.attempt).collect();
    assert_eq!(turns, [1, 2, 3]);
    assert!(oldest.iter().all(|call| call.usage.output_tokens > 0 && call.cost_usd.is_some()), "{oldest:?}");
    let thread = history(&ada).await.thread.id;
    let path = format!("/api/chat/threads/{thread}/llm-calls?");
    world.user("bob").get(&path).await.problem(ErrorCode::NotFound);
    assert_eq!(calls(&world.someone("root", Role::Admin), &path).await, oldest);
    Reply::of(ada.request(Method::DELETE, "/api/chat/threads/main")).await.expect(204);
    ada.get("/api/chat/threads/main/llm-calls").await.problem(ErrorCode::NotFound);
    world.user("bob").get(&path).await.problem(ErrorCode::NotFound);
    assert_eq!(calls(&ada, &path).await, oldest);
    world.finish().await;
}

#[tokio::test]
async fn calls_beyond_the_limit_of_a_turn_have_their_rows() {
    let rates = [("GANTRY_TOOL_RATE_BURST", 0), ("GANTRY_TOOL_RATE_PER_HOUR", 0)];
    let builder = rates.into_iter().fold(World::builder(), |builder, (name, value)| builder.set(name, value));
    let world = builder.script(script()).build().await;
    let ada = world.user("ada");
    turn(&ada, "many").await;
    let calls = calls_of(&ada, "main").await;
    let (ran, beyond): (Vec<_>, Vec<_>) = calls.iter().partition(|call| call.success == Some(true));
    assert_eq!((ran.len(), beyond.len()), (MAX_CALLS, 10));
    for call in beyond {
        assert_eq!(call.error, Some(ToolErrorKind::NotAuthorized));
        assert!(call.output.as_deref().is_some_and(|output| output.contains("limit of tool calls")), "{call:?}");
    }
    world.finish().await;
}

#[tokio::test]
async fn the_command_line_lists_the_calls() {
    let world = World::builder().script(script()).build().await;
    let ada = world.user("ada");
    turn(&ada, "allowed").await;
    let variables = [("GANTRY_URL", ada.base().to_owned()), ("GANTRY_TOKEN", world.fresh("ada", Role::User))];
    let environment = variables.map(|(name, value)| (name.to_owned(), value));
    let listed = program::run(&["chat", "actions", "main"], &environment).await;
    assert_eq!(listed.code, Some(0), "{listed:?}");
    for text in ["echo", "ok", "no_such_tool", "not_found"] {
        assert!(listed.stdout.contains(text), "{text}: {listed:?}");
    }
    let listed = program::run(&["--json", "chat", "actions", "main", "--limit", "2"], &environment).await;
    let page: Page<ThreadActionRecord> = serde_json::from_str(&listed.stdout).expect("a page");
    assert_eq!((page.items.len(), page.next_cursor.is_some()), (2, true));
    let missing = program::run(&["chat", "actions", "routine:nothing"], &environment).await;
    assert_ne!(missing.code, Some(0), "{missing:?}");
    world.finish().await;
}
