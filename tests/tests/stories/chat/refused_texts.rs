//! Texts that a provider's filter refuses: what the model reads of them afterwards. The provider refuses each request in which the
//! word is, wherever.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use protocol::{ChatContent, WakeMode};
use serde_json::{Value, json};

use super::{
    answers,
    context::{Requests, last, said},
    heartbeats::{COALESCE, append_external, heartbeats, noon, texts, wake},
    turn,
    turns::errors,
};
use crate::models::upstream::{Answer, Upstream};

const WORD: &str = "FLAGGED";

/// A provider with a filter, whose model gets the word from a tool if it is asked to.
async fn provider() -> (Upstream, Requests) {
    let requests = Requests::default();
    let kept = Arc::clone(&requests);
    let upstream = Upstream::start(move |request| {
        kept.lock().unwrap().push(request.clone());
        let newest = request["messages"].as_array().unwrap().last().unwrap();
        let answer = match said(newest["content"].as_str().unwrap_or_default()) {
            _ if request["messages"].to_string().contains(WORD) => {
                Answer::Refusal(400, "data_inspection_failed".to_owned())
            }
            "read it" => Answer::Calls(vec![("json", json!({"operation": "parse", "text": r#""FL\u0041GGED""#}))]),
            text => Answer::Text(format!("You said: {text}")),
        };
        (answer, json!({"prompt_tokens": 3, "completion_tokens": 2}))
    })
    .await;
    (upstream, requests)
}

#[tokio::test]
async fn a_message_that_is_refused_is_not_sent_again() {
    let (upstream, requests) = provider().await;
    let world = upstream.world().build().await;
    let ada = world.user("ada");
    turn(&ada, "hello").await;
    let refused = turn(&ada, "this is FLAGGED").await;
    let Some(ChatContent::Error { content, .. }) = refused.messages.last().map(|message| &message.content) else {
        panic!("{refused:?}")
    };
    for part in ["the provider refused to answer", "data_inspection_failed", "/new"] {
        assert!(content.contains(part), "{content}");
    }
    let history = turn(&ada, "something harmless").await;
    assert_eq!(answers(&history), ["You said: hello", "You said: something harmless"]);
    assert_eq!(texts(&last(&requests))[1..], ["hello", "You said: hello", "something harmless"]);
    world.finish().await;
}

#[tokio::test]
async fn a_result_that_is_refused_becomes_a_note() {
    let (upstream, requests) = provider().await;
    let world = upstream.world().build().await;
    let ada = world.user("ada");
    assert_eq!(errors(&turn(&ada, "read it").await).len(), 1);
    assert_eq!(answers(&turn(&ada, "go on").await), ["You said: go on"]);
    let request = last(&requests);
    let results: Vec<&Value> =
        request["messages"].as_array().unwrap().iter().filter(|message| message["role"] == "tool").collect();
    assert_eq!(results.len(), 1, "each call has its result: {request:#}");
    assert!(results[0]["content"].as_str().unwrap().contains("was left out"), "{request:#}");
    world.finish().await;
}

/// Of a turn, and of a heartbeat.
#[tokio::test]
async fn a_line_from_outside_that_is_refused_breaks_nothing() {
    let (upstream, requests) = provider().await;
    let time = noon();
    let world = upstream.world().clock(&time).build().await;
    let ada = world.user("ada");
    append_external(&world, "ada", "this is FLAGGED").await;
    assert_eq!(errors(&turn(&ada, "hello").await).len(), 1);
    assert_eq!(answers(&turn(&ada, "again").await), ["You said: again"]);
    assert_eq!(texts(&last(&requests))[1..], ["again"], "the line is not read again");

    append_external(&world, "ada", "this is FLAGGED, too").await;
    wake(&world, "ada", "the build is green", WakeMode::Now).await;
    time.advance(COALESCE);
    assert_eq!(errors(&heartbeats(&ada, 1).await).len(), 1);
    wake(&world, "ada", "the build is red", WakeMode::Now).await;
    time.advance(COALESCE);
    let log = heartbeats(&ada, 2).await;
    assert_eq!((errors(&log).len(), answers(&log).len()), (1, 1), "heartbeats go on: {log:?}");
    let shown = turn(&ada, "hello").await;
    let lines: Vec<&str> = shown
        .messages
        .iter()
        .filter_map(|message| match &message.content {
            ChatContent::System { content, origin: Some(_) } => Some(content.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(lines, ["this is FLAGGED", "this is FLAGGED, too", "the build is green", "the build is red"]);
    assert_eq!(answers(&shown).last(), Some(&"You said: hello"));
    world.finish().await;
}

/// A model's name that does not exist says nothing of the message.
#[tokio::test]
async fn a_message_that_failed_for_another_reason_is_read_with_the_next_one() {
    let (is_there, requests) = (Arc::new(AtomicBool::new(false)), Requests::default());
    let (there, kept) = (Arc::clone(&is_there), Arc::clone(&requests));
    let upstream = Upstream::start(move |request| {
        kept.lock().unwrap().push(request.clone());
        let answer = if there.load(Ordering::Relaxed) {
            Answer::Text("Fine.".to_owned())
        } else {
            Answer::Refusal(404, "model_not_found".to_owned())
        };
        (answer, json!({"prompt_tokens": 3, "completion_tokens": 2}))
    })
    .await;
    let world = upstream.world().build().await;
    let ada = world.user("ada");
    assert_eq!(errors(&turn(&ada, "hello").await).len(), 1);
    is_there.store(true, Ordering::Relaxed);
    turn(&ada, "go on").await;
    assert_eq!(texts(&last(&requests))[1..], ["hello", "go on"]);
    world.finish().await;
}
