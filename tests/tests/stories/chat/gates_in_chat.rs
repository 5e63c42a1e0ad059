//! Gates of a real turn: the call waits through a restart, and exactly the call that was approved runs, once.

use std::time::Duration;

use orchestrator::{auth::Role, clock::ManualClock};
use protocol::{
    ChatContent, ChatHistory, ErrorCode, Gate, GateDecision, GateId, JobReason, Notification, NotificationKind, Page,
    ThreadState,
};
use serde_json::{Value, json};
use tests::{User, World, install::program, script_of};
use tokio::task::JoinSet;

use crate::chat::{answers, history, history_of, roles, send, until_state};

/// A model that sends a notification when it is told to, and repeats what came of it.
fn script() -> String {
    script_of(&rules())
}

fn rules() -> [Value; 3] {
    [
        json!({"when": {"tool_name": "message"}, "reply": {"text": "result: {{tool_result}}"}}),
        json!({"when": {"last_message": "tell me"}, "reply": {"text": "I will.", "tool_calls":
            [{"name": "message", "arguments": {"content": "hello from the agent"}}]}}),
        json!({"reply": {"text": "You said: {{last_message}}"}}),
    ]
}

/// The only gate that waits.
pub(crate) async fn waiting(user: &User) -> Gate {
    tests::poll("a gate", async || {
        let page: Page<Gate> = user.get("/api/gates").await.expect(200).json();
        assert!(page.items.len() < 2, "one gate at a time for a thread");
        page.items.into_iter().next()
    })
    .await
}

/// The messages that the tool has sent.
async fn sent(user: &User) -> Vec<String> {
    let page: Page<Notification> = user.get("/api/notifications").await.expect(200).json();
    page.items.into_iter().filter(|one| one.kind == NotificationKind::Message).map(|one| one.text).collect()
}

fn path(gate: GateId) -> String {
    format!("/api/gates/{gate}/resolve")
}

#[tokio::test]
async fn a_call_that_waits_survives_a_restart_and_runs_once_when_it_is_approved() {
    let mut world = World::builder().script(script()).build().await;
    send(&world.user("ada"), "tell me").await;
    let gate = waiting(&world.user("ada")).await;
    assert_eq!((gate.tool.as_str(), &gate.parameters), ("message", &json!({"content": "hello from the agent"})));
    assert_eq!(until_state(&world.user("ada"), ThreadState::AwaitingApproval).await.thread.id, gate.thread_id);
    let told: Page<Notification> = world.user("ada").get("/api/notifications").await.expect(200).json();
    assert_eq!((told.items[0].gate_id, told.items[0].thread_id), (Some(gate.id), Some(gate.thread_id)));
    assert!(gate.call_id.is_some());
    world.restart().await;
    let ada = world.user("ada");
    assert_eq!(waiting(&ada).await, gate);
    assert_eq!(sent(&ada).await, Vec::<String>::new());
    let mut answers_of_ten = JoinSet::new();
    for _ in 0..10 {
        let (ada, id, digest) = (ada.clone(), gate.id, gate.parameters_digest.clone());
        let body = json!({"decision": "approve", "parameters_digest": digest});
        answers_of_ten.spawn(async move { ada.post(&path(id), &body).await });
    }
    let mut codes = vec![];
    while let Some(reply) = answers_of_ten.join_next().await {
        codes.push(reply.unwrap().status.as_u16());
    }
    codes.sort_unstable();
    assert_eq!(codes, [vec![200], vec![409; 9]].concat());
    let history = until_state(&ada, ThreadState::Idle).await;
    assert!(answers(&history).last().is_some_and(|text| text.starts_with("result:")), "{history:#?}");
    assert_eq!(sent(&ada).await, ["hello from the agent"]);
    // The approval was for one call.
    ada.post(&path(gate.id), &json!({"decision": "approve"})).await.problem(ErrorCode::GateResolved);
    send(&ada, "tell me").await;
    let next = waiting(&ada).await;
    assert_ne!(next.id, gate.id);
    ada.post("/api/chat/approval", &json!({"thread_id": "main", "decision": "deny"})).await.expect(200);
    until_state(&ada, ThreadState::Idle).await;
    assert_eq!(sent(&ada).await.len(), 1);
    world.finish().await;
}

#[tokio::test]
async fn a_notification_of_a_gate_names_its_end_in_the_users_zone() {
    let time = ManualClock::at("2026-11-22T12:00:00Z".parse().unwrap());
    let world = World::builder().clock(&time).script(script()).build().await;
    let ada = world.user("ada");
    ada.put("/api/settings", "application/json", json!({"timezone": "Europe/Oslo"}).to_string()).await.expect(200);
    send(&ada, "tell me").await;
    waiting(&ada).await;
    let told: Page<Notification> = ada.get("/api/notifications").await.expect(200).json();
    assert!(told.items[0].text.contains("until 2026-11-23 13:00 CET."), "{}", told.items[0].text);
    let bob = world.user("bob");
    send(&bob, "tell me").await;
    waiting(&bob).await;
    let told: Page<Notification> = bob.get("/api/notifications").await.expect(200).json();
    assert!(told.items[0].text.contains("until 2026-11-23 12:00 UTC."), "{}", told.items[0].text);
    world.finish().await;
}

#[tokio::test]
async fn a_denial_on_the_command_line_reaches_the_model() {
    let world = World::builder().script(script()).build().await;
    let ada = world.user("ada");
    send(&ada, "tell me").await;
    let gate = waiting(&ada).await.id.to_string();
    let variables = [("GANTRY_URL", ada.base().to_owned()), ("GANTRY_TOKEN", world.fresh("ada", Role::User))];
    let environment = variables.map(|(name, value)| (name.to_owned(), value));
    let denied = program::run(&["gate", "deny", &gate, "--reason", "not before noon"], &environment).await;
    assert_eq!(denied.code, Some(0), "{denied:?}");
    let history = until_state(&ada, ThreadState::Idle).await;
    assert!(answers(&history).last().is_some_and(|text| text.contains("not before noon")), "{history:#?}");
    assert_eq!(sent(&ada).await, Vec::<String>::new());
    world.finish().await;
}

#[tokio::test]
async fn a_call_without_an_answer_times_out_and_the_turn_goes_on() {
    let time = ManualClock::at("2026-11-22T12:00:00Z".parse().unwrap());
    let world = World::builder().clock(&time).script(script()).build().await;
    send(&world.user("ada"), "tell me").await;
    let gate = waiting(&world.user("ada")).await;
    time.advance(Duration::from_hours(24));
    let ada = world.user("ada");
    let history = until_state(&ada, ThreadState::Idle).await;
    assert!(answers(&history).last().is_some_and(|text| text.contains("not approved in time")), "{history:#?}");
    assert_eq!(sent(&ada).await, Vec::<String>::new());
    ada.post(&path(gate.id), &json!({"decision": "approve"})).await.problem(ErrorCode::GateExpired);
    world.finish().await;
}

#[tokio::test]
async fn always_lets_later_calls_of_the_thread_run() {
    let world = World::builder().script(script()).build().await;
    let ada = world.user("ada");
    send(&ada, "tell me").await;
    let gate = waiting(&ada).await;
    let always: Value = ada.post(&path(gate.id), &json!({"decision": "always"})).await.expect(200).body;
    assert_eq!(always["remembered"], json!(true));
    until_state(&ada, ThreadState::Idle).await;
    send(&ada, "tell me").await;
    tests::until("the second call to run", async || sent(&ada).await.len() == 2).await;
    until_state(&ada, ThreadState::Idle).await;
    // In another thread it is asked again, and so is another user.
    assert_ne!(send(&ada, "/new").await.thread_id, gate.thread_id);
    for user in [&ada, &world.user("bob")] {
        send(user, "tell me").await;
        let gate = waiting(user).await;
        user.post(&path(gate.id), &json!({"decision": "deny"})).await.expect(200);
        until_state(user, ThreadState::Idle).await;
    }
    world.finish().await;
}

#[tokio::test]
async fn a_turn_that_is_stopped_takes_its_gate_with_it() {
    let world = World::builder().script(script()).build().await;
    let ada = world.user("ada");
    send(&ada, "tell me").await;
    let gate = waiting(&ada).await;
    ada.post("/api/chat/threads/main/stop", &json!({})).await.expect(202);
    until_state(&ada, ThreadState::Idle).await;
    ada.post(&path(gate.id), &json!({"decision": "approve"})).await.problem(ErrorCode::GateResolved);
    // The model learns of it with the next message.
    send(&ada, "and now?").await;
    let answered =
        |history: ChatHistory| answers(&history).last().is_some_and(|text| text.contains("stopped the turn"));
    tests::until("the next answer", async || answered(history(&ada).await)).await;
    assert_eq!(sent(&ada).await, Vec::<String>::new());
    world.finish().await;
}

#[tokio::test]
async fn a_turn_that_is_approved_can_be_stopped_until_it_goes_on() {
    let mut rules = rules().to_vec();
    rules.insert(0, json!({"when": {"last_message": "wait forever"}, "hang": true}));
    let world = World::builder().script(script_of(&rules)).set("GANTRY_CHAT_MAX_TURNS_PER_USER", 1).build().await;
    let ada = world.user("ada");
    let parked = send(&ada, "tell me").await.thread_id.to_string();
    let gate = waiting(&ada).await;
    // Another turn takes the permit.
    let other = send(&ada, "/new").await.thread_id.to_string();
    send(&ada, "wait forever").await;
    until_state(&ada, ThreadState::Processing).await;
    ada.post(&path(gate.id), &json!({"decision": "approve"})).await.expect(200);
    assert_eq!(history_of(&ada, &parked).await.thread.state, ThreadState::Processing);
    let stop = async |thread: &str| ada.post(&format!("/api/chat/threads/{thread}/stop"), &json!({})).await;
    stop(&parked).await.expect(202);
    let history = history_of(&ada, &parked).await;
    assert_eq!(history.thread.state, ThreadState::Idle);
    assert_eq!(roles(&history), ["user", "assistant", "user", "tool_use", "tool_result", "system"], "{history:#?}");
    stop(&parked).await.problem(ErrorCode::Conflict);
    stop(&other).await.expect(202);
    until_state(&ada, ThreadState::Idle).await;
    assert_eq!(sent(&ada).await, Vec::<String>::new());
    world.finish().await;
}

#[tokio::test]
async fn a_parked_turn_that_cannot_be_read_ends_with_an_error() {
    let world = World::builder().script(script()).build().await;
    let ada = world.user("ada");
    send(&ada, "tell me").await;
    let gate = waiting(&ada).await;
    let broken = sqlx::query("UPDATE chat_transcripts SET run = '{'");
    broken.execute(&mut world.database().await).await.unwrap();
    ada.post(&path(gate.id), &json!({"decision": "approve"})).await.expect(200);
    let ended = until_state(&ada, ThreadState::Idle).await;
    let last = ended.messages.last().map(|message| &message.content);
    assert!(matches!(last, Some(ChatContent::Error { reason: JobReason::Internal, .. })), "{ended:#?}");
    assert_eq!(sent(&ada).await, Vec::<String>::new());
    // The thread goes on; the model reads that it is not known what came of the call.
    send(&ada, "and now?").await;
    let is_answered = |history: ChatHistory| answers(&history).last().is_some_and(|text| text.starts_with("result:"));
    tests::until("an answer", async || is_answered(history(&ada).await)).await;
    // One that is stopped ends as well.
    send(&ada, "tell me").await;
    waiting(&ada).await;
    let broken = sqlx::query("UPDATE chat_transcripts SET run = '{'");
    broken.execute(&mut world.database().await).await.unwrap();
    ada.post("/api/chat/threads/main/stop", &json!({})).await.expect(202);
    until_state(&ada, ThreadState::Idle).await;
    world.finish().await;
}

#[tokio::test]
async fn a_plain_word_in_the_thread_answers_and_other_text_waits() {
    let world = World::builder().script(script()).build().await;
    let ada = world.user("ada");
    for (word, sends) in [("no", 0), (" Yes ", 1), ("always", 2)] {
        send(&ada, "tell me").await;
        let gate = waiting(&ada).await;
        let queued = ada.post("/api/chat/send", &json!({"content": "yes please"})).await.expect(202).body;
        assert_eq!(queued["waiting_for_gate"], json!(true));
        let answered = ada.post("/api/chat/send", &json!({"content": word})).await.expect(202).body;
        assert_eq!(answered["waiting_for_gate"], json!(false));
        let resolved: Gate = ada.get(&format!("/api/gates/{}", gate.id)).await.expect(200).json();
        assert_eq!(
            (resolved.resolved_by.as_deref(), resolved.decision.map(GateDecision::as_str)),
            (Some("ada"), Some(decision(word)))
        );
        tests::until("the queued message to be answered", async || {
            let history = history(&ada).await;
            history.thread.state == ThreadState::Idle && answers(&history).last() == Some(&"You said: yes please")
        })
        .await;
        assert_eq!(sent(&ada).await.len(), sends);
    }
    send(&ada, "tell me").await;
    tests::until("a call that is always allowed", async || sent(&ada).await.len() == 3).await;
    until_state(&ada, ThreadState::Idle).await;
    // With no call that waits it is a message like any other.
    send(&ada, "yes").await;
    tests::until("an answer", async || answers(&history(&ada).await).last() == Some(&"You said: yes")).await;
    world.finish().await;
}

fn decision(word: &str) -> &'static str {
    match word.trim() {
        "no" => "deny",
        "always" => "always",
        _ => "approve",
    }
}
