//! Messages and events of systems.

use std::time::Duration;

use orchestrator::{auth::Role, clock::ManualClock};
use protocol::{ErrorCode, EventReceipt, RunReason, RunStatus, TriggerType};
use rstest::rstest;
use serde_json::{Value, json};
use tests::{User, World, routines::runs};

use super::{PLAIN_SECRET, create, deliver, end_runs, github, unlimited};

async fn post(user: &User, path: &str, body: Value) -> EventReceipt {
    user.post(path, &body).await.expect(202).json()
}

#[tokio::test]
async fn messages_fire_the_routines_of_their_owner() {
    let world = World::new().await;
    let (ada, bob) = (world.user("ada"), world.user("bob"));
    let trigger = json!({"type": "event", "channel": "Support", "pattern": "(?i)refund"});
    let of_support = create(&ada, "support", trigger, unlimited()).await;
    let of_all = create(&ada, "all", json!({"type": "event", "pattern": "refund"}), unlimited()).await;
    let of_bob = create(&bob, "support", json!({"type": "event", "pattern": "."}), unlimited()).await;
    let message = |channel: &str, content: &str| json!({"channel": channel, "content": content, "sender": "carol"});
    let receipt = post(&ada, "/api/messages", message("support", "A REFUND, please")).await;
    assert_eq!(receipt.run_ids, [runs(&ada, &of_support).await[0].id]);
    let receipt = post(&ada, "/api/messages", message("sales", "hello")).await;
    assert_eq!(receipt.run_ids, []);
    // With an idempotency key a repeated message is the same one.
    let first: EventReceipt =
        ada.post_once("/api/messages", "k1", &message("support", "refund")).await.expect(202).json();
    assert_eq!((first.id.as_str(), first.run_ids.len()), ("k1", 2));
    let again: EventReceipt =
        ada.post_once("/api/messages", "k1", &message("support", "refund")).await.expect(202).json();
    assert_eq!(again, first);
    assert_eq!((runs(&ada, &of_support).await.len(), runs(&ada, &of_all).await.len()), (2, 1));
    assert_eq!(runs(&ada, &of_all).await[0].trigger_type, TriggerType::Event);
    assert_eq!(runs(&bob, &of_bob).await, []);
    let large = json!({"content": "x".repeat(64 * 1024 + 1)});
    ada.post("/api/messages", &large).await.problem(ErrorCode::TooLarge);
    assert_eq!(
        ada.post("/api/messages", &json!({"content": "x", "channel": " "})).await.expect(422).fields(),
        ["channel"]
    );
    end_runs(&ada).await;
    world.finish().await;
}

#[tokio::test]
async fn events_of_systems_fire_routines_by_name_filters_and_condition() {
    let world = World::new().await;
    let ada = world.user("ada");
    let trigger = json!({
        "type": "system_event", "source": "GitHub", "event_type": "issue.opened", "filters": {"repo": "a/b"},
        "where": "payload.number > 6",
    });
    let routine = create(&ada, "issues", trigger, unlimited()).await;
    let event =
        |event_type: &str, payload: Value| json!({"source": "github", "event_type": event_type, "payload": payload});
    for (event_type, payload, fired) in [
        ("Issue.Opened", json!({"repo": "a/b", "number": 7}), 1),
        ("issue.closed", json!({"repo": "a/b", "number": 7}), 0),
        ("issue.opened", json!({"repo": "a/c", "number": 7}), 0),
        ("issue.opened", json!({"repo": "a/b", "number": 6}), 0),
        ("issue.opened", json!({"repo": "a/b", "number": "seven"}), 0),
    ] {
        let receipt = post(&ada, "/api/system-events", event(event_type, payload.clone())).await;
        assert_eq!(receipt.run_ids.len(), fired, "{event_type} {payload}");
    }
    assert_eq!(runs(&ada, &routine).await.len(), 1);
    let large = event("issue.opened", json!({"repo": "x".repeat(256 * 1024)}));
    ada.post("/api/system-events", &large).await.problem(ErrorCode::TooLarge);
    end_runs(&ada).await;
    world.finish().await;
}

async fn until_runs(user: &User, routine: &str, number: usize) {
    tests::until("the routine to fire", async || runs(user, routine).await.len() == number).await;
}

#[rstest]
#[case::job("job.completed")]
#[case::memory("memory.write")]
#[tokio::test]
async fn gantry_emits_events_of_jobs_and_memory(#[case] event_type: &str) {
    let world = World::new().await;
    let ada = world.user("ada");
    let trigger = json!({"type": "system_event", "source": "gantry", "event_type": event_type});
    // A run of it does not fire it again within the cooldown.
    let routine = create(&ada, "watch", trigger, json!({})).await;
    if event_type == "memory.write" {
        ada.put("/api/memory?path=notes.md", "application/json", r#"{"content": "hello"}"#).await.expect(201);
    } else {
        let job = ada.create_job("work").await;
        world.manual_worker(job).await.finish("done").await;
    }
    until_runs(&ada, &routine, 1).await;
    end_runs(&ada).await;
    world.finish().await;
}

#[tokio::test]
async fn a_message_in_a_chat_fires_routines() {
    let world = World::new().await;
    let ada = world.user("ada");
    let trigger = json!({"type": "event", "channel": "chat", "pattern": "deploy"});
    let routine = create(&ada, "deploys", trigger, unlimited()).await;
    for content in ["please deploy", "nothing"] {
        ada.post("/api/chat/send", &json!({"content": content})).await.expect(202);
    }
    until_runs(&ada, &routine, 1).await;
    end_runs(&ada).await;
    world.finish().await;
}

/// Each run ends, which is an event that fires the routine again.
#[tokio::test]
async fn a_routine_that_fires_itself_is_stopped() {
    let world = World::new().await;
    let ada = world.user("ada");
    let trigger = json!({"type": "system_event", "source": "gantry", "event_type": "routine.run"});
    let action = json!({"action": {"type": "system_event_text", "text": "again"}});
    let mut more = unlimited();
    more.as_object_mut().unwrap().extend(action.as_object().unwrap().clone());
    let routine = create(&ada, "echo", trigger, more).await;
    let fired = ada.post(&format!("/api/routines/{routine}/trigger"), &json!({})).await.expect(202);
    assert!(fired.body["id"].is_string());
    let stopped = tests::poll("the last run", async || {
        let runs = runs(&ada, &routine).await;
        runs.first().is_some_and(|run| run.status == RunStatus::Skipped).then_some(runs)
    })
    .await;
    assert_eq!(stopped[0].reason, Some(RunReason::Depth));
    assert_eq!(stopped.len(), 6, "by hand, four by itself, and the one that is stopped: {stopped:#?}");
    world.finish().await;
}

#[tokio::test]
async fn the_same_payload_within_the_window_is_a_duplicate() {
    let time = ManualClock::at("2026-11-23T12:00:00Z".parse().unwrap());
    let world = World::builder().clock(&time).build().await;
    let ada = world.user("ada");
    let guardrails = json!({"guardrails": {"cooldown_seconds": 0, "max_concurrent": 100, "dedup_window_seconds": 600}});
    let routine = create(&ada, "answer", json!({"type": "event", "pattern": "."}), guardrails).await;
    for (content, advance) in [("a", 0), ("a", 0), ("b", 601), ("a", 0)] {
        ada.post("/api/messages", &json!({"content": content})).await.expect(202);
        time.advance(Duration::from_secs(advance));
    }
    let mut outcomes: Vec<_> = runs(&ada, &routine).await.iter().map(|run| run.reason).collect();
    outcomes.reverse();
    assert_eq!(outcomes, [None, Some(RunReason::Duplicate), None, None]);
    end_runs(&ada).await;
    world.finish().await;
}

#[tokio::test]
async fn while_automation_is_off_nothing_from_outside_fires() {
    let world = World::new().await;
    let ada = world.user("ada");
    let event = create(&ada, "answer", json!({"type": "event", "pattern": "."}), unlimited()).await;
    let hook = json!({"type": "webhook", "path": "p", "secret": PLAIN_SECRET});
    let webhook = create(&ada, "hooked", hook, unlimited()).await;
    let admin = world.someone("root", Role::Admin);
    let switch = async |enabled: bool| {
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": "cron.set_enabled", "params": {"enabled": enabled}});
        admin.post("/api/rpc", &call).await.expect(200);
    };
    switch(false).await;
    let refused = deliver(&world, "p", &github("d1", "push", "{}"), "{}").await;
    refused.problem(ErrorCode::AutomationDisabled);
    let receipt = post(&ada, "/api/messages", json!({"content": "hello"})).await;
    assert_eq!(receipt.run_ids, []);
    switch(true).await;
    deliver(&world, "p", &github("d1", "push", "{}"), "{}").await.expect(202);
    assert_eq!((runs(&ada, &event).await.len(), runs(&ada, &webhook).await.len()), (0, 1));
    end_runs(&ada).await;
    world.finish().await;
}

/// One of the two patterns takes longer than a search may, so that only the other one fires.
#[tokio::test]
async fn messages_of_a_user_with_a_slow_pattern_are_all_compared() {
    let world = World::new().await;
    let ada = world.user("ada");
    let slow = create(&ada, "slow", json!({"type": "event", "pattern": "a[ab]{3500}[^ab]"}), unlimited()).await;
    let quick = create(&ada, "quick", json!({"type": "event", "pattern": "^[ab]"}), unlimited()).await;
    let message = json!({"content": "ab".repeat(32 * 1024)});
    let posts = (0..12).map(|_| ada.post("/api/messages", &message));
    let fired: Vec<EventReceipt> =
        futures_util::future::join_all(posts).await.into_iter().map(|reply| reply.expect(202).json()).collect();
    assert!(fired.iter().all(|receipt| receipt.run_ids.len() == 1), "{fired:#?}");
    assert_eq!((runs(&ada, &quick).await.len(), runs(&ada, &slow).await.len()), (12, 0));
    end_runs(&ada).await;
    world.finish().await;
}

#[tokio::test]
async fn each_user_may_post_at_a_rate() {
    let time = ManualClock::at("2026-11-23T12:00:00Z".parse().unwrap());
    let world =
        World::builder().clock(&time).set("GANTRY_INBOUND_RATE_BURST", 3).set("GANTRY_INBOUND_RATE_PER_SECOND", 1);
    let world = world.build().await;
    let (ada, bob) = (world.user("ada"), world.user("bob"));
    let (message, event) = (json!({"content": "hello"}), json!({"source": "s", "event_type": "t", "payload": {}}));
    for _ in 0..2 {
        ada.post("/api/messages", &message).await.expect(202);
    }
    ada.post("/api/system-events", &event).await.expect(202);
    for (path, body) in [("/api/messages", &message), ("/api/system-events", &event)] {
        let refused = ada.post(path, body).await.problem(ErrorCode::RateLimited);
        assert_eq!(refused.header("retry-after"), Some("1"));
    }
    bob.post("/api/messages", &message).await.expect(202);
    time.advance(Duration::from_secs(1));
    ada.post("/api/messages", &message).await.expect(202);
    ada.post("/api/messages", &message).await.problem(ErrorCode::RateLimited);
    world.finish().await;
}
