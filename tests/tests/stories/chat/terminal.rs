//! `gantry chat`: lines in, answers out, gates answered in place.

use orchestrator::auth::Role;
use protocol::{Notification, NotificationKind, Page, ThreadState};
use serde_json::{Value, json};
use tests::{
    User, World,
    install::program::{self, Ended},
    script_of,
};

use super::{answers, history, send, until_state};

fn script() -> String {
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

fn environment(world: &World, user: &str) -> Vec<(String, String)> {
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
    assert!(ended.stdout.contains("hello from the agent") && ended.stdout.contains("It said"), "{ended:?}");
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

#[tokio::test]
async fn an_interrupt_stops_the_turn() {
    let world = world().await;
    let ada = world.user("ada");
    send(&ada, "wait").await;
    until_state(&ada, ThreadState::Processing).await;
    let mut chat = program::Daemon::start(&["chat"], &environment(&world, "ada"));
    let is_ready = |line: &str| line.contains("works on an earlier message").then_some(());
    chat.wait_for_line("the chat to follow the turn", is_ready).await;
    chat.interrupt();
    // Its standard input is at its end.
    assert_eq!(chat.ended().await.code(), Some(0), "{:?}", chat.lines());
    assert_eq!(super::notices(&history(&ada).await), ["Stopped."]);
    assert!(chat.lines().contains(&"Stopped.".to_owned()), "{:?}", chat.lines());
    world.finish().await;
}
