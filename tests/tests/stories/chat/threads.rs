//! Threads: whose they are, how they are named, listed and deleted, and their limits.

use orchestrator::auth::Role;
use protocol::{AuditRecord, ChatThread, ErrorCode, MessageReceipt, Page, ThreadId, ThreadState};
use reqwest::Method;
use serde_json::{Value, json};
use tests::{Reply, User, World, script_of};

use super::{answers, history, history_of, send, turn, until_state};

async fn delete(user: &User, thread: &str) -> Reply {
    Reply::of(user.request(Method::DELETE, &format!("/api/chat/threads/{thread}"))).await
}

async fn threads(user: &User) -> Vec<ThreadId> {
    let page: Page<ChatThread> = user.get("/api/chat/threads").await.expect(200).json();
    page.items.iter().map(|thread| thread.id).collect()
}

#[tokio::test]
async fn a_thread_of_another_user_does_not_exist() {
    let world = World::new().await;
    let (ada, bob) = (world.user("ada"), world.user("bob"));
    let thread = turn(&ada, "hello").await.thread.id;
    for name in [thread.to_string(), ThreadId::nil().to_string(), "routine:x".to_owned(), "main".to_owned()] {
        let path = format!("/api/chat/threads/{name}");
        bob.get(&path).await.problem(ErrorCode::NotFound);
        bob.post(&format!("{path}/stop"), &json!({})).await.problem(ErrorCode::NotFound);
        delete(&bob, &name).await.problem(ErrorCode::NotFound);
        bob.get(&format!("/api/chat/events?thread_id={name}")).await.problem(ErrorCode::NotFound);
        if name != "main" {
            bob.post("/api/chat/send", &json!({"thread_id": name, "content": "hi"})).await.problem(ErrorCode::NotFound);
        }
    }
    assert_eq!((threads(&ada).await, threads(&bob).await), (vec![thread], vec![]));
    // Each user has a thread `main`.
    assert_ne!(turn(&bob, "hello").await.thread.id, thread);
    let (viewer, root) = (world.someone("ada", Role::Viewer), world.someone("root", Role::Admin));
    assert_eq!(history(&viewer).await.thread.id, thread);
    viewer.post("/api/chat/send", &json!({"content": "hi"})).await.problem(ErrorCode::Forbidden);
    assert_eq!(history_of(&root, &thread.to_string()).await.thread.id, thread);
    // An admin reads, and does not speak for others.
    root.post("/api/chat/send", &json!({"thread_id": thread, "content": "hi"})).await.problem(ErrorCode::NotFound);
    let page: Page<AuditRecord> = root.get("/api/audit?action=chat.send").await.expect(200).json();
    assert!(page.items.iter().any(|row| row.user == "bob" && row.code.is_some()), "{page:?}");
    world.finish().await;
}

#[tokio::test]
async fn a_thread_that_is_deleted_is_gone_with_its_turn() {
    let world = World::builder().script(script_of(&[
        json!({"when": {"last_message": "wait"}, "hang": true}),
        json!({"reply": {"text": "You said: {{last_message}}"}}),
    ]));
    let world = world.build().await;
    let ada = world.user("ada");
    let thread = send(&ada, "wait").await.thread_id;
    until_state(&ada, ThreadState::Processing).await;
    delete(&ada, "main").await.expect(204);
    ada.get(&format!("/api/chat/threads/{thread}")).await.problem(ErrorCode::NotFound);
    delete(&ada, "main").await.problem(ErrorCode::NotFound);
    let next = turn(&ada, "again").await;
    assert_ne!(next.thread.id, thread);
    assert_eq!(answers(&next), ["You said: again"]);
    let events = super::events(&ada).await;
    let threads: Vec<&Value> = events["items"].as_array().unwrap().iter().map(|event| &event["thread_id"]).collect();
    assert!(threads.contains(&&json!(next.thread.id)) && !threads.contains(&&json!(thread)), "{events:#}");
    world.finish().await;
}

#[tokio::test]
async fn a_message_that_is_sent_again_with_its_key_is_one_message() {
    let world = World::new().await;
    let ada = world.user("ada");
    let body = json!({"content": "hello"});
    let first: MessageReceipt = ada.post_once("/api/chat/send", "k", &body).await.expect(202).json();
    let again = ada.post_once("/api/chat/send", "k", &body).await.expect(202);
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
    assert_eq!(again.json::<MessageReceipt>(), first);
    ada.post_once("/api/chat/send", "k", &json!({"content": "other"})).await.problem(ErrorCode::IdempotencyMismatch);
    let history = turn(&ada, "next").await;
    assert_eq!(answers(&history), ["You said: hello", "You said: next"]);
    // A command is done once.
    let new: MessageReceipt =
        ada.post_once("/api/chat/send", "n", &json!({"content": "/new"})).await.expect(202).json();
    let same: MessageReceipt =
        ada.post_once("/api/chat/send", "n", &json!({"content": "/new"})).await.expect(202).json();
    assert_eq!((same.thread_id, threads(&ada).await.len()), (new.thread_id, 2));
    world.finish().await;
}

#[tokio::test]
async fn messages_are_limited_in_size_and_number() {
    let script = script_of(&[json!({"hang": true})]);
    let world = World::builder().script(script).build().await;
    let ada = world.user("ada");
    let too_long = "x".repeat(256 * 1024 + 1);
    for content in ["", " \n", too_long.as_str()] {
        let refused = ada.post("/api/chat/send", &json!({"content": content})).await;
        assert_eq!(refused.problem(ErrorCode::Invalid).fields(), ["content"]);
    }
    ada.post("/api/chat/send", &json!({"content": "hi", "more": 1})).await.problem(ErrorCode::Invalid);
    send(&ada, &"x".repeat(256 * 1024)).await;
    until_state(&ada, ThreadState::Processing).await;
    for _ in 0..100 {
        send(&ada, "more").await;
    }
    let refused = ada.post("/api/chat/send", &json!({"content": "too much"})).await;
    assert!(refused.header("retry-after").is_some());
    refused.problem(ErrorCode::RateLimited);
    // Commands do not wait in the queue, and others have another queue.
    send(&ada, "/status").await;
    send(&world.user("bob"), "hello").await;
    for user in ["ada", "bob"] {
        delete(&world.user(user), "main").await.expect(204);
    }
    world.finish().await;
}

#[tokio::test]
async fn a_history_has_pages() {
    let world = World::new().await;
    let ada = world.user("ada");
    for n in 0..3 {
        turn(&ada, &format!("message {n}")).await;
    }
    let (mut all, mut cursor) = (vec![], String::new());
    loop {
        let page: protocol::ChatHistory =
            ada.get(&format!("/api/chat/threads/main?limit=4{cursor}")).await.expect(200).json();
        all = page.messages.iter().filter_map(|message| message.seq).chain(all).collect();
        match page.next_cursor {
            Some(next) => cursor = format!("&cursor={next}"),
            None => break,
        }
    }
    assert_eq!(all, [1, 2, 3, 4, 5, 6]);
    world.finish().await;
}
