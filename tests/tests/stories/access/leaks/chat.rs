//! A stored secret in chats: in answers piece by piece, in calls that wait for their user, and in what the user reads
//! afterwards.

use std::sync::{Arc, Mutex};

use protocol::{Gate, GateDecision, JobId, ThreadState};
use serde_json::{Value, json};
use tests::{ChatStream, User};

use super::{SECRET, assert_clean, assert_stored_clean, forms, leak, store_secret};
use crate::{
    chat::{events, gates_in_chat::waiting, history, until_state},
    models::upstream::{Answer, Upstream},
};

/// A model that repeats the secret in calls and in its answer, and a provider that refuses its last request with it.
async fn leaking_model() -> (Upstream, Arc<Mutex<Vec<Value>>>) {
    let requests = Arc::<Mutex<Vec<Value>>>::default();
    let received = Arc::clone(&requests);
    let upstream = Upstream::start(move |request| {
        let mut received = received.lock().unwrap();
        received.push(request.clone());
        let answer = match received.len() {
            1 => Answer::Calls(vec![
                ("echo", json!({"message": leak()})),
                ("json", json!({"operation": "parse", "text": leak()})),
                ("memory_search", json!({"query": leak()})),
                (SECRET, json!({SECRET: leak()})),
            ]),
            2 => Answer::Calls(vec![("message", json!({"content": leak()}))]),
            3 => Answer::Calls(vec![("memory_write", json!({"path": "notes.md", "content": leak()}))]),
            4 => Answer::Calls(vec![("create_job", json!({"title": SECRET, "prompt": leak()}))]),
            5 => Answer::Pieces(leak(), 5),
            _ => Answer::Refusal(400, SECRET.to_owned()),
        };
        (answer, json!({"prompt_tokens": 3, "completion_tokens": 2}))
    })
    .await;
    (upstream, requests)
}

async fn send(user: &User, content: &str) {
    user.post("/api/chat/send", &json!({"content": content})).await.expect(202);
}

/// Checks the call that waits in every place that shows it, and approves it.
async fn check_and_approve(user: &User, tool: &str) {
    let gate: Gate = waiting(user).await;
    assert_eq!(gate.tool, tool);
    assert!(gate.parameters.to_string().contains("[redacted:TOKEN]"), "{gate:?}");
    let list = user.get("/api/gates").await.expect(200).body;
    let shown = user.get(&format!("/api/gates/{}", gate.id)).await.expect(200).body;
    assert_clean("the gate", format!("{list}{shown}").as_bytes());
    let answer = json!({"decision": GateDecision::Approve, "parameters_digest": gate.parameters_digest});
    user.post(&format!("/api/gates/{}/resolve", gate.id), &answer).await.expect(200);
}

/// The messages of the stream up to the end of a turn, and the text of its pieces.
async fn until_idle(stream: &mut ChatStream) -> (String, String) {
    let (mut all, mut pieces) = (String::new(), String::new());
    while let Some(message) = stream.next().await {
        all.push_str(&message.data.to_string());
        if message.event == "delta" {
            pieces.push_str(message.data["text"].as_str().unwrap_or_default());
        }
        if message.event == "thread_state" && message.data["state"] == json!("idle") {
            break;
        }
    }
    (all, pieces)
}

#[tokio::test]
async fn an_agent_that_repeats_a_secret_is_redacted_everywhere() {
    let (upstream, requests) = leaking_model().await;
    let mut world = upstream.world().build().await;
    let ada = world.user("ada");
    store_secret(&ada).await;
    let mut stream = ada.chat_stream("/api/chat/events", None).await;
    send(&ada, "work").await;
    for tool in ["message", "memory_write", "create_job"] {
        check_and_approve(&ada, tool).await;
    }
    let (streamed, pieces) = until_idle(&mut stream).await;
    assert!(pieces.contains("a=[redacted] b"), "{pieces}");
    assert_clean("the pieces of the answer", pieces.as_bytes());
    assert_clean("the stream", streamed.as_bytes());

    send(&ada, "go on").await;
    let (streamed, _) = until_idle(&mut stream).await;
    assert!(streamed.contains("refused by the story"), "{streamed}");
    assert_clean("the refusal", streamed.as_bytes());
    drop(stream);

    let job: JobId = ada.jobs().await.first().expect("a job was created").id;
    assert!(ada.job(job).await.prompt.contains("a=[redacted:TOKEN] b"));
    ada.cancel(job).await.expect(202);
    ada.wait_for_end(job).await;
    world.engine().until_empty().await;
    let paths = ["/api/chat/threads/main", "/api/chat/threads", "/api/notifications", "/api/memory?path=notes.md"];
    for path in paths {
        assert_clean(path, ada.get(path).await.expect(200).body.to_string().as_bytes());
    }
    assert_clean("the events of the instance", events(&ada).await.to_string().as_bytes());
    assert_clean("the requests to the provider", json!(*requests.lock().unwrap()).to_string().as_bytes());
    assert_eq!(requests.lock().unwrap().len(), 6);
    assert_stored_clean(&mut world).await;
    world.finish().await;
}

#[tokio::test]
async fn a_secret_in_a_message_is_redacted_before_it_is_stored() {
    let (upstream, requests) = leaking_model().await;
    let world = upstream.world().build().await;
    let ada = world.user("ada");
    store_secret(&ada).await;
    let percent = forms().pop().unwrap();
    send(&ada, &format!("log in with {SECRET} or {percent}")).await;
    check_and_approve(&ada, "message").await;
    let requests = json!(*requests.lock().unwrap()).to_string();
    assert!(requests.contains("log in with [redacted] or [redacted]"), "{requests}");
    assert_clean("the requests to the provider", requests.as_bytes());
    let shown = json!(history(&ada).await.messages[0]).to_string();
    assert!(shown.contains("log in with [redacted] or [redacted]"), "{shown}");
    ada.post("/api/chat/threads/main/stop", &json!({})).await.expect(202);
    until_state(&ada, ThreadState::Idle).await;
    world.finish().await;
}
