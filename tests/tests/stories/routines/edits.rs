//! Changes of routines: what they keep, what they void, and what they refuse.

use std::time::Duration;

use chrono::TimeDelta;
use orchestrator::{
    clock::ManualClock,
    store::{FireOutcome, Firing, Triggered},
};
use protocol::{ErrorCode, Routine, RoutineSaved, RunReason, RunStatus, TriggerType};
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};
use tests::{
    Reply, User, World,
    routines::{run_of, trigger, triggered, until_run},
    script_of,
};

fn ask(prompt: &str) -> Value {
    json!({"type": "lightweight", "prompt": prompt})
}

async fn create(user: &User, name: &str, more: Value) -> Routine {
    let mut body = json!({"name": name, "trigger": {"type": "manual"}, "action": ask("hang")});
    body.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap());
    user.post("/api/routines", &body).await.expect(201).json()
}

async fn patch(user: &User, routine: &Routine, body: Value) -> Reply {
    Reply::of(user.request(Method::PATCH, &format!("/api/routines/{}", routine.id)).json(&body)).await
}

async fn patched(user: &User, routine: &Routine, body: Value) -> Routine {
    let saved: RoutineSaved = patch(user, routine, body).await.expect(200).json();
    saved.routine
}

async fn cancel(user: &User, run: protocol::RunId) {
    user.post(&format!("/api/runs/{run}/cancel"), &json!({})).await.expect(202);
}

fn script() -> String {
    script_of(&[
        json!({"when": {"prompt": {"regex": "^hang"}}, "hang": true}),
        json!({"when": {"prompt": {"regex": "^fail"}}, "error": {"status": 400, "message": "no"}}),
        json!({"reply": {"text": "ROUTINE_OK"}}),
    ])
}

/// A queued run was fired by the old definition. It must not stop the runs of other users either.
#[rstest]
#[case(ask("hang"), json!({"type": "system_event_text", "text": "A line."}))]
#[case(ask("hang"), json!({"type": "full_job", "description": "d"}))]
#[case(ask("hang"), ask("another prompt"))]
#[tokio::test]
async fn a_queued_run_of_an_action_that_is_replaced_is_skipped(#[case] first: Value, #[case] second: Value) {
    let world = World::builder().script(script()).build().await;
    let (ada, bob) = (world.user("ada"), world.user("bob"));
    let routine = create(&ada, "changed", json!({"action": first, "guardrails": {"overlap": "queue_one"}})).await;
    let running = trigger(&ada, routine.id).await;
    until_run(&ada, running.id, RunStatus::Running).await;
    let queued = trigger(&ada, routine.id).await;
    patched(&ada, &routine, json!({"action": second})).await;
    let ended = run_of(&ada, queued.id).await;
    assert_eq!((ended.status, ended.reason), (RunStatus::Skipped, Some(RunReason::RoutineChanged)), "{ended:?}");
    cancel(&ada, running.id).await;
    let other = create(&bob, "other", json!({"action": ask("quick")})).await;
    assert_eq!(triggered(&bob, other.id).await.status, RunStatus::Ok);
    world.finish().await;
}

#[tokio::test]
async fn a_change_that_keeps_trigger_and_action_keeps_queued_runs_and_the_verification() {
    let world = World::builder().script(script()).build().await;
    let ada = world.user("ada");
    let routine = create(&ada, "kept", json!({"guardrails": {"overlap": "queue_one"}})).await;
    let running = trigger(&ada, routine.id).await;
    until_run(&ada, running.id, RunStatus::Running).await;
    let queued = trigger(&ada, routine.id).await;
    let renamed = patched(&ada, &routine, json!({"name": "renamed", "description": "d"})).await;
    assert_eq!((renamed.rev, renamed.name.as_str()), (routine.rev + 1, "renamed"));
    assert_eq!(run_of(&ada, queued.id).await.status, RunStatus::Queued);
    cancel(&ada, running.id).await;
    until_run(&ada, queued.id, RunStatus::Running).await;
    cancel(&ada, queued.id).await;
    world.finish().await;
}

#[tokio::test]
async fn a_stored_secret_that_is_sent_again_changes_nothing() {
    let world = World::builder().set("GANTRY_NOTIFY_ALLOW", "hooks.example.org").script(script()).build().await;
    let ada = world.user("ada");
    let trigger = json!({"type": "webhook", "path": "p", "secret": "a secret of the sender"});
    let notify = json!({"webhook_url": "https://hooks.example.org/x", "webhook_secret": "a secret of the receiver"});
    let routine = create(&ada, "hooked", json!({"trigger": trigger, "action": ask("quick"), "notify": notify})).await;
    assert_eq!(triggered(&ada, routine.id).await.status, RunStatus::Ok);
    let again = patched(&ada, &routine, json!({"trigger": trigger, "notify": notify})).await;
    assert_eq!((again.rev, again.verified), (routine.rev, true), "nothing has changed");
    let other = json!({"trigger": {"type": "webhook", "path": "p", "secret": "another secret of the sender"}});
    let changed = patched(&ada, &routine, other).await;
    assert_eq!((changed.rev, changed.verified), (routine.rev + 1, false));
    world.finish().await;
}

#[tokio::test]
async fn a_routine_can_be_switched_off_although_it_would_be_refused_now() {
    let mut world = World::builder().script(script()).build().await;
    let ada = world.user("ada");
    let action = json!({"type": "lightweight", "prompt": "quick", "use_tools": true, "max_tool_rounds": 20});
    let routine = create(&ada, "large", json!({"action": action})).await;
    world.restart_with(|config| config.routines.max_tool_rounds = 2).await;
    let ada = world.user("ada");
    let refused = patch(&ada, &routine, json!({"description": "d"})).await.problem(ErrorCode::Invalid);
    assert_eq!(refused.fields(), ["action.max_tool_rounds"]);
    assert!(!patched(&ada, &routine, json!({"enabled": false})).await.enabled);
    assert!(patched(&ada, &routine, json!({"enabled": true})).await.enabled);
    // The limit concerns only runs that have tools.
    create(&ada, "plain", json!({"action": ask("quick")})).await;
    world.finish().await;
}

#[tokio::test]
async fn enabling_a_routine_forgets_its_failures() {
    let world = World::builder().script(script()).build().await;
    let ada = world.user("ada");
    let more = json!({"action": ask("fail"), "guardrails": {"disable_after_failures": 2}});
    let routine = create(&ada, "failing", more).await;
    for _ in 0..2 {
        assert_eq!(triggered(&ada, routine.id).await.status, RunStatus::Failed);
    }
    let enabled = patched(&ada, &routine, json!({"enabled": true})).await;
    assert_eq!((enabled.enabled, enabled.consecutive_failures), (true, 0));
    triggered(&ada, routine.id).await;
    let now: Routine = ada.get(&format!("/api/routines/{}", routine.id)).await.expect(200).json();
    assert_eq!((now.enabled, now.consecutive_failures), (true, 1), "one failure does not disable it again");
    world.finish().await;
}

#[tokio::test]
async fn another_delay_moves_the_next_time_and_repeats_none() {
    let clock = ManualClock::at("2026-11-22T09:05:00Z".parse().unwrap());
    let world = World::builder().clock(&clock).script(script()).build().await;
    let ada = world.user("ada");
    let daily = json!({"type": "cron", "schedule": "0 9 * * *"});
    let routine = create(&ada, "daily", json!({"trigger": daily, "action": ask("quick")})).await;
    let tomorrow = "2026-11-23T09:00:00Z".parse().unwrap();
    assert_eq!(routine.next_fire_at, Some(tomorrow));
    let delayed = patched(&ada, &routine, json!({"guardrails": {"stagger_seconds": 3600}})).await;
    let delay = delayed.next_fire_at.unwrap() - tomorrow;
    assert!((TimeDelta::zero()..=TimeDelta::hours(1)).contains(&delay), "{delay}: the time of today has passed");
    let back = patched(&ada, &routine, json!({"guardrails": {"stagger_seconds": 0}})).await;
    assert_eq!(back.next_fire_at, Some(tomorrow), "the time of tomorrow is not lost");
    clock.advance(Duration::from_secs(1));
    world.finish().await;
}

#[tokio::test]
async fn a_schedule_that_never_fires_is_refused() {
    let clock = ManualClock::at("2026-11-22T09:05:00Z".parse().unwrap());
    let world = World::builder().clock(&clock).script(script()).build().await;
    let ada = world.user("ada");
    let daily = json!({"type": "cron", "schedule": "0 9 * * *"});
    let body = json!({"name": "never", "trigger": daily, "action": ask("quick"), "guardrails": {"until": "2026-11-23T08:00:00Z"}});
    let refused = ada.post("/api/routines", &body).await.problem(ErrorCode::Invalid);
    assert_eq!(refused.fields(), ["guardrails.until"]);
    let routine = create(&ada, "daily", json!({"trigger": daily, "action": ask("quick")})).await;
    let refused = patch(&ada, &routine, json!({"guardrails": {"until": "2026-11-22T08:00:00Z"}})).await;
    assert_eq!(refused.problem(ErrorCode::Invalid).fields(), ["guardrails.until"]);
    world.finish().await;
}

#[tokio::test]
async fn names_paths_and_revisions_are_checked() {
    let world = World::builder().script(script()).build().await;
    let (ada, bob) = (world.user("ada"), world.user("bob"));
    let webhook = json!({"trigger": {"type": "webhook", "path": "deploys"}});
    let first = create(&ada, "one", webhook.clone()).await;
    let second = create(&ada, "two", json!({})).await;
    create(&bob, "one", json!({})).await;
    patch(&ada, &second, json!({"name": "one"})).await.problem(ErrorCode::NameTaken);
    patch(&ada, &second, webhook).await.problem(ErrorCode::WebhookPathTaken);
    patch(&bob, &second, json!({"name": "mine"})).await.problem(ErrorCode::NotFound);
    let path = format!("/api/routines/{}", first.id);
    let stale = ada.request(Method::PATCH, &path).header("If-Match", "\"7\"").json(&json!({"description": "d"}));
    Reply::of(stale).await.expect(412);
    let current = ada.request(Method::PATCH, &path).header("If-Match", format!("\"{}\"", first.rev));
    let changed = Reply::of(current.json(&json!({"description": "d"}))).await.expect(200);
    assert_eq!(changed.header("etag"), Some(format!("\"{}\"", first.rev + 1).as_str()));
    Reply::of(ada.request(Method::DELETE, &path)).await.expect(204);
    create(&ada, "one", json!({"trigger": {"type": "webhook", "path": "deploys"}})).await;
    world.finish().await;
}

/// An event was compared with the old trigger, and the routine was changed before it fired.
#[tokio::test]
async fn a_firing_that_was_compared_with_an_old_definition_is_void() {
    let world = World::builder().script(script()).build().await;
    let ada = world.user("ada");
    let event = json!({"type": "event", "pattern": "refund"});
    let routine = create(&ada, "answer", json!({"trigger": event, "action": ask("quick")})).await;
    let store = world.store().await;
    let fire = async |rev| {
        let firing = Firing {
            routine: routine.id,
            rev: Some(rev),
            trigger: TriggerType::Event,
            detail: json!({}),
            payload: None,
            depth: 0,
        };
        store.trigger(firing, None, world.clock().now()).await.unwrap()
    };
    patched(&ada, &routine, json!({"trigger": {"type": "event", "pattern": "invoice"}})).await;
    assert_eq!(fire(routine.rev).await, Triggered::Decided(FireOutcome::Changed));
    patched(&ada, &routine, json!({"name": "renamed"})).await;
    let fired = fire(routine.rev + 1).await;
    assert!(matches!(fired, Triggered::Decided(FireOutcome::Fired(_))), "the trigger is the same");
    tests::until("the run to end", async || {
        let runs = tests::routines::runs(&ada, routine.id).await;
        runs.len() == 1 && runs[0].status == RunStatus::Ok
    })
    .await;
    store.close().await;
    world.finish().await;
}
