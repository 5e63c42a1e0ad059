//! Signed thinking, which is taken only behind what it was made behind.

use std::time::Duration;

use orchestrator::clock::ManualClock;
use serde_json::{Value, json};

use crate::{answer, double::Double, families::family, put, turn};

/// Nothing changes what came before a signed reply: not two days, a changed document, a restart or a heartbeat. A compaction
/// begins another one.
#[tokio::test]
async fn signed_replies_keep_their_beginning() {
    let double = Double::start(family("anthropic")).await;
    let clock = ManualClock::at("2026-11-23T22:00:00Z".parse().unwrap());
    let mut world = double.world().clock(&clock).build().await;
    let ada = world.user("ada");
    assert_eq!(answer(&turn(&ada, "use echo").await), "1 results.");
    clock.advance(Duration::from_hours(49));
    // Its token has expired.
    let ada = world.user("ada");
    assert_eq!(answer(&turn(&ada, "hello").await), "Hello.");
    put(&ada, "/api/memory?path=IDENTITY.md", &json!({"content": "Your name is Marvin."})).await;
    assert_eq!(answer(&turn(&ada, "use two").await), "2 results.");
    let replayed = signatures(double.kept().requests.last().unwrap());
    assert_eq!(replayed, 4, "the thinking of four replies");
    world.restart().await;
    let ada = world.user("ada");
    assert_eq!(answer(&turn(&ada, "hello").await), "Hello.");
    assert_eq!(signatures(double.kept().requests.last().unwrap()), replayed + 1);
    put(&ada, "/api/memory?path=HEARTBEAT.md", &json!({"content": "- look"})).await;
    let before = double.kept().requests.len();
    clock.advance(Duration::from_hours(1));
    tests::until("the heartbeat", async || double.kept().requests.len() > before).await;
    let ada = world.user("ada");
    assert_eq!(answer(&turn(&ada, "hello").await), "Hello.");
    turn(&ada, "/compact").await;
    assert_eq!(answer(&turn(&ada, "use echo").await), "1 results.");
    assert_eq!(double.refusals(), [""; 0], "and no request was refused");
    world.finish().await;
}

/// A tool less and a tool more: what was signed with the others before stays here, and what is signed now goes back.
#[tokio::test]
async fn other_tools_begin_another_prefix() {
    let double = Double::start(family("anthropic")).await;
    let world = double.world().build().await;
    let ada = world.user("ada");
    assert_eq!(answer(&turn(&ada, "use echo").await), "1 results.");
    assert_eq!(answer(&turn(&ada, "hello").await), "Hello.");
    assert_eq!(signatures(double.kept().requests.last().unwrap()), 2);
    let mut offered = tools(double.kept().requests.last().unwrap());
    for permission in ["disabled", "default"] {
        put(&ada, "/api/tools/time/permission", &json!({"permission": permission})).await;
        let before = double.kept().requests.len();
        assert_eq!(answer(&turn(&ada, "use two").await), "2 results.");
        assert_eq!(answer(&turn(&ada, "hello").await), "Hello.");
        let sent: Vec<usize> = double.kept().requests[before..].iter().map(signatures).collect();
        assert_eq!(sent, [0, 1, 2], "{permission}: the thinking of replies to the same tools alone");
        let now = tools(double.kept().requests.last().unwrap());
        assert_eq!(now.abs_diff(offered), 1, "{permission}");
        offered = now;
    }
    assert_eq!(double.refusals(), [""; 0]);
    world.finish().await;
}

/// A text before them that is redacted since a secret was stored ends the signed replies, and one that was redacted before they were
/// made does not. A reply that is redacted has no signed form, and those before it stay.
#[tokio::test]
async fn signed_replies_follow_what_was_sent() {
    let double = Double::start(family("anthropic")).await;
    let world = double.world().build().await;
    let ada = world.user("ada");
    let sent = || double.kept().requests.iter().map(signatures).collect::<Vec<_>>();
    assert_eq!(answer(&turn(&ada, "hello correct-horse-battery").await), "Hello.");
    assert_eq!(answer(&turn(&ada, "use echo").await), "1 results.");
    assert_eq!(sent(), [0, 1, 2]);
    ada.post("/api/secrets", &json!({"name": "HORSE", "value": "correct-horse-battery"})).await.expect(201);
    assert_eq!(answer(&turn(&ada, "use two").await), "2 results.");
    assert_eq!(answer(&turn(&ada, "hello").await), "Hello.");
    assert_eq!(sent()[3..], [0, 1, 2], "only what was made behind the redacted text");
    let reply = json!({"name": "REPLY", "value": "1 results.", "force": true});
    ada.post("/api/secrets", &reply).await.expect(201);
    let before = sent().len();
    assert_eq!(answer(&turn(&ada, "use echo").await), "[redacted]");
    assert_eq!(answer(&turn(&ada, "hello").await), "Hello.");
    assert_eq!(answer(&turn(&ada, "hello").await), "Hello.");
    assert_eq!(sent()[before..], [0, 1, 1, 2], "all but the redacted reply");
    assert_eq!(double.refusals(), [""; 0]);
    world.finish().await;
}

fn tools(request: &Value) -> usize {
    request["tools"].as_array().map(Vec::len).unwrap_or_default()
}

fn signatures(request: &Value) -> usize {
    request.to_string().matches("\"signature\"").count()
}
