//! Turns of several users: a user with few turns does not wait behind one with many, and no user fills the server.

use orchestrator::store::RetentionLimits;
use protocol::{ErrorCode, JobReason, JobState, MessageReceipt, ThreadState};
use reqwest::Method;
use serde_json::{Value, json};
use tests::{Reply, User, World, script_of};

use super::{answers, history, history_of, send, turn, until_state};

fn script() -> String {
    script_of(&[
        json!({"when": {"last_message": "wait forever"}, "hang": true}),
        json!({"reply": {"text": "You said: {{last_message}}"}}),
    ])
}

/// Starts a turn that does not end in each of this many threads, with another message queued behind it. Returns the
/// threads.
async fn occupy(user: &User, threads: u32) -> Vec<String> {
    let mut occupied = vec![];
    for _ in 0..threads {
        // Moves the key `main` to a new thread.
        let receipt: MessageReceipt = user.post("/api/chat/send", &json!({"content": "/new"})).await.expect(202).json();
        occupied.push(receipt.thread_id.to_string());
        for _ in 0..2 {
            send(user, "wait forever").await;
        }
        until_state(user, ThreadState::Processing).await;
    }
    occupied
}

#[tokio::test]
async fn a_fifth_user_gets_the_next_turn_though_four_have_all_and_waited_longer() {
    let world = World::builder().script(script()).set("GANTRY_LLM_MAX_CONCURRENT", 100).build().await;
    let mut occupied = vec![];
    for user in ["ada", "bob", "cleo", "dan"] {
        occupied.push((world.user(user), occupy(&world.user(user), 16).await));
    }
    let eve = world.user("eve");
    send(&eve, "hello").await;
    let waiting = history(&eve).await;
    assert!(waiting.messages.iter().all(|message| message.seq.is_none()), "there are 64 turns: {waiting:#?}");
    let (ada, threads) = &occupied[0];
    ada.post(&format!("/api/chat/threads/{}/stop", threads[0]), &json!({})).await.expect(202);
    tests::until("eve's answer", async || answers(&history(&eve).await) == ["You said: hello"]).await;
    for (user, threads) in &occupied {
        for thread in threads {
            Reply::of(user.request(Method::DELETE, &format!("/api/chat/threads/{thread}"))).await.expect(204);
        }
    }
    world.finish().await;
}

#[tokio::test]
async fn a_user_whose_account_is_full_deletes_threads() {
    let world = World::builder().script(script()).set("GANTRY_USER_STORAGE_MAX_MB", 1).build().await;
    let (ada, bob) = (world.user("ada"), world.user("bob"));
    turn(&ada, "hello").await;
    let stored = stored_bytes(&world, "ada").await;
    assert!(stored > 100, "{stored}");
    // As if other threads had the rest.
    set_stored_bytes(&world, 1024 * 1024).await;
    for content in ["more", "/help", "/unknown", "/new", "/compact"] {
        let refused = ada.post("/api/chat/send", &json!({"content": content})).await;
        let problem = refused.problem(ErrorCode::UserStorageFull).body;
        assert!(problem["detail"].as_str().unwrap().contains("chats: 1048576"), "{content}: {problem:#}");
    }
    turn(&bob, "hello").await;
    set_stored_bytes(&world, stored).await;
    turn(&ada, "again").await;
    Reply::of(ada.request(Method::DELETE, "/api/chat/threads/main")).await.expect(204);
    assert_eq!(stored_bytes(&world, "ada").await, 0);
    world.finish().await;
}

#[tokio::test]
async fn a_turn_that_was_queued_before_the_account_was_full_does_not_begin() {
    let world = World::builder().script(script()).set("GANTRY_USER_STORAGE_MAX_MB", 1).build().await;
    let ada = world.user("ada");
    send(&ada, "wait forever").await;
    until_state(&ada, ThreadState::Processing).await;
    send(&ada, "hello").await;
    let stored = stored_bytes(&world, "ada").await;
    set_stored_bytes(&world, 1024 * 1024).await;
    ada.post("/api/chat/threads/main/stop", &json!({})).await.expect(202);
    let full = tests::poll("the end of the queued turn", async || {
        let history = history(&ada).await;
        super::turns::errors(&history).contains(&JobReason::DiskLimit).then_some(history)
    })
    .await;
    assert_eq!(answers(&full), Vec::<&str>::new());
    // With room again the model reads both.
    set_stored_bytes(&world, stored).await;
    let history = turn(&ada, "again").await;
    assert_eq!(answers(&history), ["You said: again"]);
    world.finish().await;
}

async fn stored_bytes(world: &World, user: &str) -> i64 {
    let bytes = sqlx::query_scalar("SELECT bytes FROM user_bytes WHERE user_id = $1 AND kind = 'chats'").bind(user);
    bytes.fetch_one(&mut world.database().await).await.unwrap()
}

async fn set_stored_bytes(world: &World, bytes: i64) {
    let set = sqlx::query("UPDATE user_bytes SET bytes = $1 WHERE user_id = 'ada' AND kind = 'chats'").bind(bytes);
    set.execute(&mut world.database().await).await.unwrap();
}

#[tokio::test]
async fn messages_and_commands_have_one_rate() {
    let world = World::builder().script(script()).build().await;
    let ada = world.user("ada");
    let mut refused = None;
    for _ in 0..400 {
        let reply = ada.post("/api/chat/send", &json!({"content": "/unknown"})).await;
        if reply.status.as_u16() != 202 {
            refused = Some(reply);
            break;
        }
    }
    let refused = refused.expect("a limit");
    assert!(refused.headers.contains_key("retry-after"), "{refused:?}");
    refused.problem(ErrorCode::RateLimited);
    ada.post("/api/chat/send", &json!({"content": "hello"})).await.problem(ErrorCode::RateLimited);
    world.user("bob").post("/api/chat/send", &json!({"content": "/help"})).await.expect(202);
    world.finish().await;
}

#[tokio::test]
async fn old_entries_of_idle_threads_go_with_the_records_of_jobs() {
    let world = World::builder().script(script()).build().await;
    let (ada, bob) = (world.user("ada"), world.user("bob"));
    turn(&ada, "hello").await;
    send(&bob, "wait forever").await;
    until_state(&bob, ThreadState::Processing).await;
    let store = world.store().await;
    let limits = RetentionLimits { days: 1, audit_days: 3650, max_mb: 0 };
    let now = world.clock().now();
    assert_eq!(store.trim(&limits, now).await.rows_of("chats"), 0, "they are young");
    let trimmed = store.trim(&limits, now + chrono::TimeDelta::days(2)).await;
    assert!(trimmed.rows_of("chats") > 0, "{trimmed:?}");
    assert_eq!(history(&ada).await.messages, []);
    assert_eq!(stored_bytes(&world, "ada").await, 0);
    assert_eq!(history(&bob).await.messages.len(), 1, "its turn is in progress");
    store.close().await;
    // The thread goes on.
    let history = turn(&ada, "and again").await;
    assert_eq!(answers(&history), ["You said: and again"]);
    bob.post("/api/chat/threads/main/stop", &json!({})).await.expect(202);
    until_state(&bob, ThreadState::Idle).await;
    world.finish().await;
}

#[tokio::test]
async fn one_users_chats_do_not_displace_the_records_of_others() {
    let world = World::builder().script(script()).build().await;
    let (ada, bob) = (world.user("ada"), world.user("bob"));
    let job = bob.create_job("work").await;
    let worker = world.manual_worker(job).await;
    worker.record_message(1, &"x".repeat(200_000)).await.expect(200);
    worker.finish("done").await;
    bob.wait_for(job, JobState::Completed).await;
    turn(&bob, "hello").await;
    for n in 0..8 {
        send(&ada, &format!("/{n}{}", "y".repeat(250_000))).await;
    }
    let newest = turn(&ada, "the newest").await.thread.id.to_string();
    let store = world.store().await;
    let events = bob.events(job).await;
    let now = world.clock().now() + chrono::TimeDelta::days(2);
    let before = store.used_bytes().await.unwrap();
    assert!(before > 4 * 1024 * 1024, "{before}");
    let trimmed = store.trim(&RetentionLimits { days: 3650, audit_days: 3650, max_mb: 3 }, now).await;
    assert!(store.used_bytes().await.unwrap() <= 3 * 1024 * 1024, "{trimmed:?}");
    assert_eq!(trimmed.rows.keys().collect::<Vec<_>>(), [&"chats"], "{trimmed:?}");
    assert_eq!(bob.events(job).await, events);
    assert_eq!(answers(&history(&bob).await), ["You said: hello"]);
    store.close().await;
    let _: Value = ada.get(&format!("/api/chat/threads/{newest}")).await.expect(200).body;
    assert_eq!(history_of(&ada, &newest).await.thread.state, ThreadState::Idle);
    world.finish().await;
}
