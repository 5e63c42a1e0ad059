//! `gantry chat`: lines in, answers out, gates answered in place.

use std::convert::Infallible;

use axum::{
    Json, Router,
    body::{Body, Bytes},
    http::header::CONTENT_TYPE,
    routing::{get, post},
};
use futures_util::stream::pending;
use orchestrator::auth::Role;
use protocol::{AuditRecord, Notification, NotificationKind, Page, ThreadState};
use serde_json::{Value, json};
use tests::{
    User, World,
    install::program::{self, Ended},
    script_of,
};
use tokio::{net::TcpListener, sync::mpsc, task::JoinSet};

use super::{answers, history, send, until_state};

pub(super) fn script() -> String {
    script_of(&[
        json!({"when": {"tool_name": "message"}, "reply": {"text": "It said: {{tool_result}}"}}),
        json!({"when": {"last_message": "tell me"}, "reply": {"text": "I will.", "tool_calls":
            [{"name": "message", "arguments": {"content": "hello from the agent"}}]}}),
        json!({"when": {"last_message": "break"}, "error": {"status": 400, "message": "broken"}}),
        json!({"when": {"last_message": "wait"}, "hang": true}),
        json!({"reply": {"text": "You said: {{last_message}}"}}),
    ])
}

async fn world() -> World {
    World::builder().script(script()).build().await
}

pub(super) fn environment(world: &World, user: &str) -> Vec<(String, String)> {
    let variables =
        [("GANTRY_URL", world.user(user).base().to_owned()), ("GANTRY_TOKEN", world.fresh(user, Role::User))];
    variables.map(|(name, value)| (name.to_owned(), value)).into()
}

async fn chat(world: &World, arguments: &[&str], input: &str) -> Ended {
    program::run_with_input(&[&["chat"], arguments].concat(), &environment(world, "ada"), input).await
}

async fn sent(user: &User) -> usize {
    let page: Page<Notification> = user.get("/api/notifications").await.expect(200).json();
    page.items.iter().filter(|one| one.kind == NotificationKind::Message).count()
}

#[tokio::test]
async fn each_line_is_a_message_after_the_answer_to_the_one_before() {
    let world = world().await;
    let ended = chat(&world, &[], "one\n\n/help\ntwo\n/new\nthree\n").await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let lines: Vec<&str> =
        ended.stdout.lines().filter(|line| line.starts_with("You said") || line.starts_with("/job")).collect();
    let [one, help, two, three] = &lines[..] else { panic!("{ended:?}") };
    assert_eq!((*one, *two, *three), ("You said: one", "You said: two", "You said: three"));
    assert!(help.starts_with("/job TEXT"));
    assert_eq!(answers(&history(&world.user("ada")).await), ["You said: three"]);
    let again = chat(&world, &["--thread", "main"], "four\n").await;
    assert_eq!((again.code, again.stdout.as_str()), (Some(0), "You said: four"), "{again:?}");
    world.finish().await;
}

#[tokio::test]
async fn a_gate_is_answered_in_place() {
    let world = world().await;
    let ada = world.user("ada");
    for (answers, sends, says) in
        [("perhaps\ny\n", 1, "It said: {"), ("n\n", 1, "denied"), ("always\n", 2, "It said: {"), ("", 3, "It said: {")]
    {
        let ended = chat(&world, &[], &format!("tell me\n{answers}")).await;
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert!(ended.stdout.contains(says), "{answers:?}: {ended:?}");
        let asks = ended
            .stdout
            .contains("The agent wants to call message with\n{\n  \"content\": \"hello from the agent\"\n}");
        assert_eq!(asks, !answers.is_empty(), "{ended:?}");
        assert_eq!(ended.stderr.contains("answer y, n or always"), answers.starts_with("perhaps"), "{ended:?}");
        assert_eq!(sent(&ada).await, sends);
    }
    world.finish().await;
}

#[tokio::test]
async fn without_an_answer_the_gate_waits_and_the_next_chat_asks_again() {
    let world = world().await;
    let ada = world.user("ada");
    let ended = chat(&world, &[], "tell me\n").await;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.stderr.contains("gantry gate approve"), "{ended:?}");
    until_state(&ada, ThreadState::AwaitingApproval).await;
    let ended = chat(&world, &[], "yes\n").await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let asks = "The agent wants to call message with\n{\n  \"content\": \"hello from the agent\"\n}";
    assert!(ended.stdout.starts_with(asks) && ended.stdout.contains("It said"), "{ended:?}");
    assert_eq!(sent(&ada).await, 1);
    world.finish().await;
}

#[tokio::test]
async fn the_exit_code_says_how_it_ended_and_json_is_the_events() {
    let world = world().await;
    let failed = chat(&world, &[], "break\n").await;
    assert_eq!(failed.code, Some(1), "{failed:?}");
    assert!(failed.stdout.contains("error: "), "{failed:?}");
    assert_eq!(chat(&world, &[], "").await.code, Some(0));
    let missing = chat(&world, &["--thread", "0193b5d2-0000-7000-8000-000000000000"], "hi\n").await;
    assert_eq!(missing.code, Some(4), "{missing:?}");
    let printed = chat(&world, &["--json"], "hello\n").await;
    assert_eq!(printed.code, Some(0), "{printed:?}");
    let events: Vec<Value> = printed.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let is_answer = |event: &Value| event["event"] == "message" && event["content"] == "You said: hello";
    assert!(events.iter().any(is_answer), "{events:#?}");
    assert!(events.iter().all(|event| event["thread_id"].is_string()), "{events:#?}");
    world.finish().await;
}

/// A rule that refuses some messages.
pub(super) const DENYING_RULE: &str = "[[hooks]]\nname = 'polite'\npoint = 'inbound_message'\n\
     match = { text = 'please not' }\naction = 'deny'\nreason = 'as you say'\n";

#[tokio::test]
async fn a_line_that_is_not_sent_does_not_lose_the_others() {
    let world = World::builder().script(script()).config_file(DENYING_RULE.to_owned()).build().await;
    let too_long = "x".repeat(300 * 1024);
    let input = [b"please not\none\n\xff\xfe\ntwo\n", too_long.as_bytes(), b"\nthree\n"].concat();
    let ended = program::run_with_input(&["chat"], &environment(&world, "ada"), input).await;
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert_eq!(ended.stdout, "You said: one\nYou said: two\nYou said: three", "{ended:?}");
    let errors: Vec<&str> = ended.stderr.lines().collect();
    let [refused, not_text, too_long] = &errors[..] else { panic!("{errors:#?}") };
    assert!(refused.contains("as you say"), "{refused}");
    assert!(not_text.contains("line 3 of the input is not UTF-8"), "{not_text}");
    assert!(too_long.contains("content"), "{too_long}");
    world.finish().await;
}

#[tokio::test]
async fn earlier_conversations_are_found_again() {
    let world = world().await;
    let ended = chat(&world, &[], "one\n/new\ntwo\n").await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
    let listed = chat(&world, &["threads", "--json"], "").await.json();
    let [new, earlier] = &listed["items"].as_array().unwrap()[..] else { panic!("{listed:#}") };
    assert_eq!((&new["key"], &earlier["key"]), (&json!("main"), &Value::Null));
    let id = earlier["id"].as_str().unwrap();
    assert!(ended.stderr.contains(&format!("gantry chat --thread {id}")), "{ended:?}");
    let table = chat(&world, &["threads", "--id", &id[24..]], "").await;
    assert!(
        table.stdout.contains(&id[28..]) && !table.stdout.contains(id) && table.stdout.lines().count() == 2,
        "{table:?}"
    );
    let again = chat(&world, &["--thread", id], "three\n").await;
    assert_eq!(again.stdout, "You said: three", "{again:?}");
    world.finish().await;
}

/// A chat that follows a turn which was in progress before.
async fn follow(environment: &[(String, String)]) -> program::Daemon {
    let chat = program::Daemon::start(&["chat"], environment);
    let is_ready = |line: &str| line.contains("works on an earlier message").then_some(());
    chat.wait_for_line("the chat to follow the turn", is_ready).await;
    chat
}

#[tokio::test]
async fn an_interrupt_stops_the_turn() {
    let world = world().await;
    let ada = world.user("ada");
    send(&ada, "wait").await;
    until_state(&ada, ThreadState::Processing).await;
    let mut chat = follow(&environment(&world, "ada")).await;
    chat.interrupt();
    // Its standard input is at its end.
    assert_eq!(chat.ended().await.code(), Some(0), "{:?}", chat.lines());
    assert_eq!(super::notices(&history(&ada).await), ["Stopped."]);
    assert!(chat.lines().contains(&"Stopped.".to_owned()), "{:?}", chat.lines());
    world.finish().await;
}

#[tokio::test]
async fn a_second_interrupt_ends_the_program_while_the_turn_stops() {
    // The turn cannot end while this hook is asked about its answer: the connection is accepted, and nothing is sent.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hook = format!(
        "[[hooks]]\nname = 'silent'\npoint = 'outbound_message'\nurl = 'http://{}/'\n\
         secret = 'whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY='\ntimeout_seconds = 60\n",
        silent.local_addr().unwrap()
    );
    let world = World::builder().script(script()).config_file(hook).build().await;
    let (ada, root) = (world.user("ada"), world.someone("root", Role::Admin));
    send(&ada, "hello").await;
    let asked = tests::within("the hook to be asked", silent.accept()).await.unwrap();
    let mut chat = follow(&environment(&world, "ada")).await;
    chat.interrupt();
    tests::until("the turn to be told to stop", async || {
        let page: Page<AuditRecord> = root.get("/api/audit?action=chat.stop").await.expect(200).json();
        !page.items.is_empty()
    })
    .await;
    assert_eq!(history(&ada).await.thread.state, ThreadState::Processing);
    chat.interrupt();
    assert_eq!(chat.ended().await.code(), Some(130), "{:?}", chat.lines());
    // The turn then ends without the program.
    drop(asked);
    until_state(&ada, ThreadState::Idle).await;
    world.finish().await;
}

#[tokio::test]
async fn a_second_interrupt_ends_the_program_although_the_server_does_not_answer() {
    let (told, mut stops) = mpsc::channel(1);
    let thread = json!({
        "id": "0193b5d2-0000-7000-8000-000000000000", "key": "main", "title": "t", "state": "processing",
        "created_at": "2026-11-22T12:00:00Z", "updated_at": "2026-11-22T12:00:00Z", "messages": [], "next_cursor": null
    });
    let stop = async move || {
        told.send(()).await.unwrap();
        std::future::pending::<()>().await;
    };
    let events =
        async || ([(CONTENT_TYPE, "text/event-stream")], Body::from_stream(pending::<Result<Bytes, Infallible>>()));
    let router = Router::new()
        .route("/api/chat/events", get(events))
        .route("/api/chat/threads/main", get(async move || Json(thread)))
        .route("/api/chat/threads/{id}/stop", post(stop));
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let environment =
        [("GANTRY_URL", format!("http://{}", server.local_addr().unwrap())), ("GANTRY_TOKEN", "t".to_owned())];
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { drop(axum::serve(server, router).await) });
    let mut chat = follow(&environment.map(|(name, value)| (name.to_owned(), value))).await;
    chat.interrupt();
    tests::within("the request to stop", stops.recv()).await;
    chat.interrupt();
    assert_eq!(chat.ended().await.code(), Some(130), "{:?}", chat.lines());
}
