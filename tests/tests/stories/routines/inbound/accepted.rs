//! What was accepted before is known for a time that no other traffic shortens, and firings that a guardrail stops are
//! counted.

use std::time::Duration;

use orchestrator::{clock::ManualClock, store::RetentionLimits};
use protocol::{ErrorCode, EventReceipt, Page, RoutineRun, RoutineSaved, RoutineTrigger, RunReason, RunStatus};
use reqwest::Method;
use serde_json::{Value, json};
use tests::{
    Reply, User, World,
    routines::{runs, until_run},
};

use super::{PLAIN_SECRET, create, deliver, deliveries, end_runs, github, unlimited};

fn noon() -> ManualClock {
    ManualClock::at("2026-11-23T12:00:00Z".parse().unwrap())
}

async fn post(user: &User, channel: &str, content: &str) -> EventReceipt {
    user.post("/api/messages", &json!({"channel": channel, "content": content})).await.expect(202).json()
}

/// Does what the hourly sweep does with the database.
async fn sweep(world: &World) {
    let store = world.store().await;
    let limits = RetentionLimits { days: 90, audit_days: 365, max_mb: 0 };
    store.trim(&limits, world.clock().now()).await;
    store.close().await;
}

async fn run_events(world: &World) -> i64 {
    sqlx::query_scalar("SELECT COUNT(*) FROM instance_events WHERE kind = 'run' AND data LIKE '%\"skipped\"%'")
        .fetch_one(&mut world.database().await)
        .await
        .unwrap()
}

#[tokio::test]
async fn messages_within_a_cooldown_are_counted_in_one_entry_a_minute() {
    let time = noon();
    let world = World::builder().clock(&time).build().await;
    let ada = world.user("ada");
    let routine = create(&ada, "answer", json!({"type": "event", "pattern": "."}), json!({})).await;
    assert_eq!(post(&ada, "support", "first").await.run_ids.len(), 1);
    for n in 0..500 {
        assert_eq!(post(&ada, "support", &n.to_string()).await.run_ids, [], "it fired no run");
    }
    time.advance(Duration::from_secs(30));
    post(&ada, "sales", "last of the minute").await;
    time.advance(Duration::from_secs(30));
    post(&ada, "support", "in the next minute").await;
    let recorded = runs(&ada, &routine).await;
    let [next, entry, run] = recorded.as_slice() else { panic!("{recorded:#?}") };
    assert_eq!((run.skipped_count, next.skipped_count), (None, Some(1)));
    assert_eq!((entry.status, entry.reason), (RunStatus::Skipped, Some(RunReason::Cooldown)));
    assert_eq!(entry.skipped_count, Some(501));
    let (first, last) = (entry.created_at, entry.last_skipped_at.unwrap());
    assert_eq!((last - first).num_seconds(), 30);
    let last = entry.last_skipped_detail.as_ref().unwrap();
    assert_eq!((&entry.trigger_detail["channel"], &last["channel"]), (&json!("support"), &json!("sales")));
    assert_eq!(run_events(&world).await, 2, "one for the first firing of each entry");
    end_runs(&ada).await;
    world.finish().await;
}

#[tokio::test]
async fn an_entry_stands_among_the_runs() {
    let time = noon();
    let world = World::builder().clock(&time).build().await;
    let ada = world.user("ada");
    let routine = create(&ada, "answer", json!({"type": "event", "pattern": "."}), json!({})).await;
    let run = post(&ada, "c", "1").await.run_ids[0];
    for _ in 0..3 {
        time.advance(Duration::from_mins(1));
        post(&ada, "c", "2").await;
    }
    time.advance(Duration::from_mins(10));
    end_runs(&ada).await;
    let last = post(&ada, "c", "3").await.run_ids[0];
    until_run(&ada, last, RunStatus::Running).await;
    let all = runs(&ada, &routine).await;
    let statuses: Vec<_> = all.iter().map(|run| run.status == RunStatus::Skipped).collect();
    assert_eq!(statuses, [false, true, true, true, false]);
    assert_eq!(all[4].id, run);
    for path in ["/api/runs".to_owned(), format!("/api/routines/{routine}/runs")] {
        let (mut paged, mut cursor) = (Vec::new(), String::new());
        loop {
            let page: Page<RoutineRun> = ada.get(&format!("{path}?limit=2{cursor}")).await.expect(200).json();
            paged.extend(page.items);
            let Some(next) = page.next_cursor else { break };
            cursor = format!("&cursor={next}");
        }
        assert_eq!(paged, all, "{path}");
        let of_status: Page<RoutineRun> = ada.get(&format!("{path}?status=skipped")).await.expect(200).json();
        assert_eq!(of_status.items, all[1..4], "{path}");
    }
    let entry = &all[1];
    let path = format!("/api/runs/{}", entry.id);
    assert_eq!(&ada.get(&path).await.expect(200).json::<RoutineRun>(), entry);
    world.user("bob").get(&path).await.problem(ErrorCode::NotFound);
    ada.post(&format!("{path}/cancel"), &json!({})).await.problem(ErrorCode::RunFinished);
    assert_eq!(ada.get(&format!("{path}/actions")).await.expect(200).body["items"], json!([]));
    end_runs(&ada).await;
    world.finish().await;
}

/// More than the log of a routine keeps.
const MANY: usize = 2_102;

#[tokio::test]
async fn a_payload_is_a_duplicate_for_its_whole_window() {
    let time = noon();
    let world = World::builder().set("GANTRY_INBOUND_RATE_BURST", 0).clock(&time).build().await;
    let ada = world.user("ada");
    let guardrails =
        json!({"guardrails": {"cooldown_seconds": 0, "max_concurrent": 100, "dedup_window_seconds": 86_400}});
    let routine = create(&ada, "alert", json!({"type": "event", "pattern": "."}), guardrails).await;
    assert_eq!(post(&ada, "alerts", "the disk is full").await.run_ids.len(), 1);
    for _ in 0..MANY {
        assert_eq!(post(&ada, "alerts", "the disk is full").await.run_ids, []);
    }
    end_runs(&ada).await;
    sweep(&world).await;
    assert_eq!(post(&ada, "alerts", "the disk is full").await.run_ids, [], "the window has not passed");
    time.advance(Duration::from_secs(86_401));
    let ada = world.user("ada");
    assert_eq!(post(&ada, "alerts", "the disk is full").await.run_ids.len(), 1);
    // A shorter window counts for what fired before.
    time.advance(Duration::from_secs(601));
    let shorter = json!({"guardrails": {"cooldown_seconds": 0, "max_concurrent": 100, "dedup_window_seconds": 600}});
    let patch = ada.request(Method::PATCH, &format!("/api/routines/{routine}")).json(&shorter);
    Reply::of(patch).await.expect(200);
    assert_eq!(post(&ada, "alerts", "the disk is full").await.run_ids.len(), 1);
    end_runs(&ada).await;
    world.finish().await;
}

#[tokio::test]
async fn a_key_is_known_for_a_day_however_much_comes_after_it() {
    let time = noon();
    let world = World::builder().set("GANTRY_INBOUND_RATE_BURST", 0).clock(&time).build().await;
    let ada = world.user("ada");
    let routine = create(&ada, "order", json!({"type": "event", "pattern": "."}), json!({})).await;
    let order = json!({"channel": "orders", "content": "one book"});
    let first: EventReceipt = ada.post_once("/api/messages", "order-1", &order).await.expect(202).json();
    // A run that has not started holds no other one back once it was cancelled.
    until_run(&ada, first.run_ids[0], RunStatus::Running).await;
    end_runs(&ada).await;
    for n in 0..MANY {
        post(&ada, "orders", &n.to_string()).await;
    }
    time.advance(Duration::from_hours(23));
    let ada = world.user("ada");
    sweep(&world).await;
    let again = ada.post_once("/api/messages", "order-1", &order).await.expect(202);
    assert_eq!(again.header("idempotent-replayed"), Some("true"));
    assert_eq!(again.json::<EventReceipt>(), first);
    let started = runs(&ada, &routine).await.into_iter().filter(|run| run.status != RunStatus::Skipped).count();
    assert_eq!(started, 1);
    time.advance(Duration::from_mins(61));
    let ada = world.user("ada");
    let later: EventReceipt = ada.post_once("/api/messages", "order-1", &order).await.expect(202).json();
    assert_ne!(later.run_ids, first.run_ids, "the key has expired");
    end_runs(&ada).await;
    world.finish().await;
}

#[tokio::test]
async fn a_key_is_bound_to_what_it_was_sent_with() {
    let world = World::new().await;
    let ada = world.user("ada");
    let routine = create(&ada, "all", json!({"type": "event", "pattern": "."}), unlimited()).await;
    let trigger = format!("/api/routines/{routine}/trigger");
    let requests: [(&str, Value, Value); 3] = [
        ("/api/messages", json!({"content": "one"}), json!({"content": "two"})),
        (
            "/api/system-events",
            json!({"source": "ci", "event_type": "built", "payload": 1}),
            json!({"source": "ci", "event_type": "built", "payload": 2}),
        ),
        (&trigger, json!({"payload": 1}), json!({"payload": 2})),
    ];
    for (n, (path, body, other)) in requests.iter().enumerate() {
        let key = format!("key-{n}");
        let first = ada.post_once(path, &key, body).await.expect(202);
        assert_eq!(first.header("idempotent-replayed"), None, "{path}");
        ada.post_once(path, &key, other).await.problem(ErrorCode::IdempotencyMismatch);
        let again = ada.post_once(path, &key, body).await.expect(202);
        assert_eq!(again.header("idempotent-replayed"), Some("true"), "{path}");
        // The key of one request is not that of another.
        ada.post_once("/api/jobs", &key, &json!({"prompt": "work"})).await.problem(ErrorCode::IdempotencyMismatch);
        // Another user's keys are different ones.
        if *path != trigger {
            world.user("bob").post_once(path, &key, other).await.expect(202);
        }
    }
    assert_eq!(runs(&ada, &routine).await.len(), 2, "one of the message and one by hand");
    end_runs(&ada).await;
    world.finish().await;
}

#[tokio::test]
async fn a_routine_that_is_triggered_twice_with_a_key_has_one_run() {
    let time = noon();
    let world = World::builder().clock(&time).build().await;
    let ada = world.user("ada");
    let routine = create(&ada, "report", json!({"type": "manual"}), unlimited()).await;
    let path = format!("/api/routines/{routine}/trigger");
    let body = json!({});
    let (one, other) = tokio::join!(ada.post_once(&path, "k", &body), ada.post_once(&path, "k", &body));
    let (one, other): (RoutineRun, RoutineRun) = (one.expect(202).json(), other.expect(202).json());
    assert_eq!(one.id, other.id);
    end_runs(&ada).await;
    let again = ada.post_once(&path, "k", &body).await.expect(202);
    assert_eq!(again.json::<RoutineRun>().status, RunStatus::Failed, "the run as it is now");
    assert_eq!(runs(&ada, &routine).await.len(), 1);
    time.advance(Duration::from_hours(25));
    let ada = world.user("ada");
    let later: RoutineRun = ada.post_once(&path, "k", &body).await.expect(202).json();
    assert_ne!(later.id, one.id);
    end_runs(&ada).await;
    world.finish().await;
}

#[tokio::test]
async fn a_routine_that_is_created_twice_with_a_key_is_one() {
    let world = World::new().await;
    let ada = world.user("ada");
    let body =
        json!({"name": "deploys", "trigger": {"type": "webhook"}, "action": {"type": "lightweight", "prompt": "x"}});
    let post = async || ada.post_once("/api/routines", "k", &body).await.expect(201).json::<RoutineSaved>();
    let (one, other) = tokio::join!(post(), post());
    assert_eq!(one.routine.id, other.routine.id);
    let again = post().await;
    assert_eq!(again.routine.id, one.routine.id);
    let secrets = [&one, &other, &again].map(|saved| match &saved.routine.trigger {
        RoutineTrigger::Webhook(webhook) => webhook.secret.is_some(),
        _ => unreachable!(),
    });
    assert_eq!(secrets.iter().filter(|is_shown| **is_shown).count(), 1, "shown in the first response only");
    let changed =
        json!({"name": "other", "trigger": {"type": "manual"}, "action": {"type": "lightweight", "prompt": "x"}});
    ada.post_once("/api/routines", "k", &changed).await.problem(ErrorCode::IdempotencyMismatch);
    let named = |name: &str| json!({"name": name, "trigger": {"type": "manual"}, "action": body["action"]});
    let (two, three) = (named("two"), named("three"));
    let (two, three) =
        tokio::join!(ada.post_once("/api/routines", "l", &two), ada.post_once("/api/routines", "l", &three));
    let mut statuses = [two.status, three.status];
    statuses.sort_unstable();
    assert_eq!(statuses, [201, 422], "one of two requests at the same time has the key");
    Reply::of(ada.request(Method::DELETE, &format!("/api/routines/{}", one.routine.id))).await.expect(204);
    ada.post_once("/api/routines", "k", &body).await.problem(ErrorCode::NotFound);
    world.finish().await;
}

/// A firing that a guardrail stops has no run, and a repetition does not claim one.
#[tokio::test]
async fn a_repetition_of_what_was_stopped_names_no_run() {
    let time = noon();
    let world = World::builder().clock(&time).build().await;
    let ada = world.user("ada");
    create(&ada, "answer", json!({"type": "event", "pattern": "."}), json!({})).await;
    post(&ada, "c", "first").await;
    let body = json!({"content": "second"});
    for _ in 0..2 {
        let stopped: EventReceipt = ada.post_once("/api/messages", "k", &body).await.expect(202).json();
        assert_eq!(stopped.run_ids, []);
    }
    // A request that was refused has not used up its key.
    let single = create(&ada, "report", json!({"type": "manual"}), json!({})).await;
    let path = format!("/api/routines/{single}/trigger");
    ada.post(&path, &json!({})).await.expect(202);
    let busy = ada.post_once(&path, "busy", &json!({})).await.problem(ErrorCode::RoutineBusy);
    let entry = &runs(&ada, &single).await[0];
    assert_eq!((entry.status, entry.skipped_count), (RunStatus::Skipped, Some(1)));
    assert!(busy.body["detail"].as_str().unwrap().contains(&entry.id.to_string()), "{:#}", busy.body);
    end_runs(&ada).await;
    let fired = ada.post_once(&path, "busy", &json!({})).await.expect(202);
    assert_eq!(fired.header("idempotent-replayed"), None);
    end_runs(&ada).await;
    world.finish().await;
}

#[tokio::test]
async fn the_log_of_deliveries_names_the_entry_of_a_stopped_firing() {
    let time = noon();
    let world = World::builder().clock(&time).build().await;
    let ada = world.user("ada");
    let trigger = json!({"type": "webhook", "path": "p", "secret": PLAIN_SECRET});
    let routine = create(&ada, "hooked", trigger, json!({})).await;
    deliver(&world, "p", &github("d0", "push", "0"), "0").await.expect(202);
    for n in 1..4 {
        let body = n.to_string();
        assert_eq!(deliver(&world, "p", &github(&format!("d{n}"), "push", &body), &body).await.status.as_u16(), 409);
    }
    let all = runs(&ada, &routine).await;
    assert_eq!((all.len(), all[0].skipped_count), (2, Some(3)));
    let logged: Vec<_> = deliveries(&ada, &routine).await.into_iter().map(|one| one.run_id.unwrap()).collect();
    assert_eq!(logged, [all[0].id, all[0].id, all[0].id, all[1].id]);
    end_runs(&ada).await;
    world.finish().await;
}
