//! Chat: threads as their users see them. Owns what the stories of chat share.

mod actions;
mod commands;
mod context;
mod fairness;
mod gates;
pub(crate) mod gates_in_chat;
mod heartbeats;
mod interactive;
mod lines_of_routines;
mod rates;
mod refused_texts;
mod stream;
mod terminal;
mod threads;
mod turns;

use protocol::{ChatContent, ChatHistory, MessageReceipt, ThreadState};
use reqwest::Method;
use serde_json::{Value, json};
use tests::{Reply, User};

/// Sends a message to the thread `main`.
pub(crate) async fn send(user: &User, content: &str) -> MessageReceipt {
    user.post("/api/chat/send", &json!({"content": content})).await.expect(202).json()
}

/// The thread `main`.
pub(crate) async fn history(user: &User) -> ChatHistory {
    history_of(user, "main").await
}

/// A thread.
pub(crate) async fn history_of(user: &User, thread: &str) -> ChatHistory {
    user.get(&format!("/api/chat/threads/{thread}?limit=200")).await.expect(200).json()
}

/// Waits until the thread `main` is in this state.
pub(crate) async fn until_state(user: &User, state: ThreadState) -> ChatHistory {
    tests::poll(&format!("the thread to be {state}"), async || {
        Some(history(user).await).filter(|history| history.thread.state == state)
    })
    .await
}

/// Sends a message and waits for the end of its turn.
pub(crate) async fn turn(user: &User, content: &str) -> ChatHistory {
    let sent = send(user, content).await;
    let thread = sent.thread_id.to_string();
    tests::poll("the end of the turn", async || {
        let history = history_of(user, &thread).await;
        let queued = history.messages.iter().any(|message| message.seq.is_none());
        (history.thread.state == ThreadState::Idle && !queued).then_some(history)
    })
    .await
}

/// The stored events of the instance that the user sees.
pub(crate) async fn events(user: &User) -> Value {
    let request = user.request(Method::GET, "/api/events?after=0&limit=200").header("Accept", "application/json");
    Reply::of(request).await.expect(200).body
}

/// What the agent has said, in order.
pub(crate) fn answers(history: &ChatHistory) -> Vec<&str> {
    let texts = history.messages.iter().filter_map(|message| match &message.content {
        ChatContent::Assistant { content } => Some(content.as_str()),
        _ => None,
    });
    texts.collect()
}

/// The text that Gantry has written, in order.
pub(crate) fn notices(history: &ChatHistory) -> Vec<&str> {
    let texts = history.messages.iter().filter_map(|message| match &message.content {
        ChatContent::System { content, .. } => Some(content.as_str()),
        _ => None,
    });
    texts.collect()
}

/// The roles of the entries, in order.
pub(crate) fn roles(history: &ChatHistory) -> Vec<&str> {
    history.messages.iter().map(|message| message.content.role()).collect()
}
