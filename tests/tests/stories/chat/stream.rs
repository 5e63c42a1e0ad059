//! The stream of chat events: in order, resumed without a gap, with pieces of answers where they belong.

use protocol::{ErrorCode, ThreadState};
use serde_json::{Value, json};
use tests::{ChatStream, ChatStreamMessage, User, World, script_of};

use super::{history, send, turn, until_state};

async fn open(user: &User, query: &str, after: Option<i64>) -> ChatStream {
    user.chat_stream(&format!("/api/chat/events{query}"), after).await
}

/// The messages up to the one that says that the thread is idle.
async fn until_idle(stream: &mut ChatStream) -> Vec<ChatStreamMessage> {
    let mut seen = vec![];
    loop {
        let message = stream.next().await.expect("the stream goes on");
        let is_idle = message.event == "thread_state" && message.data["state"] == json!("idle");
        seen.push(message);
        if is_idle {
            return seen;
        }
    }
}

fn names(messages: &[ChatStreamMessage]) -> Vec<&str> {
    let mut names: Vec<&str> = messages.iter().map(|message| message.event.as_str()).collect();
    names.dedup();
    names
}

fn script() -> String {
    script_of(&[
        json!({"when": {"tool_name": "echo"}, "reply": {"text": "It is done, all of it.", "chunk_chars": 4}}),
        json!({"when": {"last_message": "look"}, "reply": {"text": "I look now.", "chunk_chars": 3,
            "tool_calls": [{"name": "echo", "arguments": {"message": "here"}}]}}),
        json!({"when": {"last_message": "tell"}, "reply":
            {"tool_calls": [{"name": "message", "arguments": {"content": "hello"}}]}}),
        json!({"reply": {"text": "You said: {{last_message}}", "chunk_chars": 5}}),
    ])
}

#[tokio::test]
async fn a_turn_is_streamed_in_order_and_its_pieces_are_its_messages() {
    let world = World::builder().script(script()).build().await;
    let ada = world.user("ada");
    let mut stream = open(&ada, "", None).await;
    let thread = send(&ada, "look").await.thread_id;
    let seen = until_idle(&mut stream).await;
    let expected =
        ["message", "thread_state", "delta", "message", "tool_use", "tool_result", "delta", "message", "thread_state"];
    assert_eq!(names(&seen), expected, "{seen:#?}");
    assert!(seen.iter().all(|message| message.data["thread_id"] == json!(thread)), "{seen:#?}");
    // Each answer is the pieces before it.
    let (mut pieces, mut answers) = (String::new(), vec![]);
    for message in &seen {
        match (message.event.as_str(), message.data["kind"].as_str(), message.data["role"].as_str()) {
            ("delta", Some("start"), _) => pieces.clear(),
            ("delta", Some("text"), _) => pieces.push_str(message.data["text"].as_str().unwrap()),
            ("message", _, Some("assistant")) => {
                assert_eq!(message.data["content"], json!(pieces));
                answers.push(std::mem::take(&mut pieces));
            }
            _ => {}
        }
        assert_eq!(message.id.is_some(), message.event != "delta", "{message:?}");
    }
    assert_eq!(answers, ["I look now.", "It is done, all of it."]);
    // Exactly what the thread has, in its order.
    let stored: Vec<Value> = history(&ada).await.messages.iter().map(|message| json!(message.id)).collect();
    let streamed: Vec<Value> = seen
        .iter()
        .filter(|message| message.data.get("role").is_some())
        .map(|message| message.data["id"].clone())
        .collect();
    assert_eq!(streamed, stored);
    world.finish().await;
}

#[tokio::test]
async fn a_stream_is_resumed_without_a_gap_or_a_repetition() {
    let mut world = World::builder().script(script()).build().await;
    let ada = world.user("ada");
    let mut stream = open(&ada, "", None).await;
    send(&ada, "look").await;
    let mut cursors: Vec<i64> = vec![];
    while cursors.len() < 3 {
        cursors.extend(stream.next().await.expect("a message").id);
    }
    drop(stream);
    until_state(&ada, ThreadState::Idle).await;
    turn(&ada, "more").await;
    world.restart().await;
    let ada = world.user("ada");
    let whole = open(&ada, "?thread_id=main&after=0", None).await;
    let mut rest = open(&ada, "?thread_id=main", cursors.last().copied()).await;
    let (mut whole_ids, mut whole) = (vec![], whole);
    for stream in [(&mut whole, &mut whole_ids), (&mut rest, &mut cursors)] {
        for _ in 0..2 {
            stream.1.extend(until_idle(stream.0).await.into_iter().filter_map(|message| message.id));
        }
    }
    assert_eq!(cursors, whole_ids);
    // Nothing that was only streamed comes again.
    world.finish().await;
}

#[tokio::test]
async fn gates_and_errors_are_streamed_and_other_threads_are_not() {
    let world = World::builder().script(script()).build().await;
    let (ada, bob) = (world.user("ada"), world.user("bob"));
    let main = turn(&ada, "hello").await.thread.id;
    let other = send(&ada, "/new").await.thread_id;
    let mut of_main = open(&ada, &format!("?thread_id={main}"), None).await;
    let mut of_bob = open(&bob, "", None).await;
    let mut all = open(&ada, "", None).await;
    turn(&ada, "hello").await;
    ada.post("/api/chat/send", &json!({"thread_id": main, "content": "tell"})).await.expect(202);
    let gate = loop {
        let message = of_main.next().await.expect("a message");
        assert_eq!(message.data["thread_id"], json!(main));
        if message.event == "gate_required" {
            break message.data;
        }
    };
    assert_eq!((&gate["tool"], &gate["parameters"]), (&json!("message"), &json!({"content": "hello"})));
    let path = format!("/api/gates/{}/resolve", gate["id"].as_str().unwrap());
    ada.post(&path, &json!({"decision": "deny"})).await.expect(200);
    let seen = until_idle(&mut of_main).await;
    assert!(names(&seen).contains(&"gate_resolved"), "{seen:#?}");
    let first = until_idle(&mut all).await;
    assert!(first.iter().all(|message| message.data["thread_id"] == json!(other)), "{first:#?}");
    turn(&bob, "hello").await;
    let seen = until_idle(&mut of_bob).await;
    let is_bobs = |message: &ChatStreamMessage| message.data["content"] != json!("tell");
    assert!(seen.iter().all(is_bobs) && seen[0].data["content"] == json!("hello"), "{seen:#?}");
    world.finish().await;
}

#[tokio::test]
async fn a_stream_of_chats_refuses_what_it_does_not_know() {
    let world = World::new().await;
    let ada = world.user("ada");
    ada.get("/api/chat/events?thread=main").await.problem(ErrorCode::Invalid);
    assert_eq!(ada.get("/api/chat/events?after=-1").await.problem(ErrorCode::Invalid).fields(), ["after"]);
    ada.get("/api/chat/events?thread_id=main").await.problem(ErrorCode::NotFound);
    world.anonymous().get("/api/chat/events").await.problem(ErrorCode::Unauthorized);
    world.finish().await;
}

/// The gateway repeats a call itself, with waits that the loop does not see.
#[tokio::test]
async fn a_wait_for_the_model_is_streamed() {
    let away = json!({"times": 1, "error": {"status": 503, "message": "maintenance", "retry_after_seconds": 3}});
    let world = World::builder().script(script_of(&[away, json!({"reply": {"text": "done"}})])).build().await;
    let ada = world.user("ada");
    let mut stream = open(&ada, "", None).await;
    let thread = send(&ada, "hello").await.thread_id;
    let seen = until_idle(&mut stream).await;
    let statuses: Vec<&Value> = seen.iter().filter(|one| one.event == "status").map(|one| &one.data).collect();
    let message = "waiting for the model: attempt 2 of 3, next try in 3 s: server error";
    assert_eq!(statuses, [&json!({"thread_id": thread, "message": message})]);
    world.finish().await;
}
