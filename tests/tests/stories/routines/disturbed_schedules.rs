//! Schedules while the machine is suspended, the clock is stepped, the process is down, several sweeps work at once, or
//! a row is unreadable: each time has one outcome.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use orchestrator::{
    clock::{Clock, ManualClock},
    dispatch::RoutineWaker,
    routine::RoutineScheduler,
};
use protocol::{Page, RoutineRun, RunStatus};
use serde_json::{Value, json};
use tests::World;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const NOON: &str = "2026-11-23T12:00:00Z";

fn at(text: &str) -> DateTime<Utc> {
    text.parse().unwrap()
}

async fn at_noon() -> (World, ManualClock) {
    let time = ManualClock::at(at(NOON));
    (World::builder().clock(&time).build().await, time)
}

/// Creates a routine that only puts a line into the main session.
async fn create(world: &World, name: &str, trigger: Value, guardrails: Value) -> String {
    let action = json!({"type": "system_event_text", "text": "A line."});
    let body = json!({"name": name, "trigger": trigger, "action": action, "guardrails": guardrails});
    world.user("ada").post("/api/routines", &body).await.expect(201).body["id"].as_str().unwrap().to_owned()
}

async fn every_ten_minutes(world: &World, name: &str) -> String {
    let trigger = json!({"type": "every", "every_seconds": 600, "anchor": NOON});
    create(world, name, trigger, json!({"max_concurrent": 100})).await
}

async fn routine(world: &World, id: &str) -> Value {
    world.user("ada").get(&format!("/api/routines/{id}")).await.expect(200).body
}

/// The outcomes of a routine's times, the earliest first: `ok 13:00`, or `missed 13:00-15:00 x3 late`.
async fn outcomes(world: &World, id: &str) -> Vec<String> {
    let page: Page<RoutineRun> =
        world.user("ada").get(&format!("/api/routines/{id}/runs?limit=200")).await.expect(200).json();
    let time = |time: Option<DateTime<Utc>>| time.unwrap().format("%d %H:%M").to_string();
    let mut runs: Vec<(DateTime<Utc>, String)> = page
        .items
        .iter()
        .map(|run| {
            let status = run.status.as_str();
            if run.status == RunStatus::Missed {
                let (from, to, count) = (time(run.missed_from), time(run.missed_to), run.missed_count.unwrap());
                (run.missed_from.unwrap(), format!("missed {from} to {to} x{count} {}", run.reason.unwrap().as_str()))
            } else {
                (run.due_at.unwrap(), format!("{status} {}", time(run.due_at)))
            }
        })
        .collect();
    runs.sort();
    runs.into_iter().map(|(_, run)| run).collect()
}

/// Waits until the routine's times have these outcomes.
async fn until_outcomes(world: &World, id: &str, expected: &[&str]) {
    tests::until(&format!("{expected:?}"), async || outcomes(world, id).await == expected).await;
}

/// Lets another routine fire a minute from now. Then every sweep has seen the present time.
async fn fence(world: &World, time: &ManualClock, name: &str) {
    let soon = world.clock().now() + TimeDelta::seconds(1);
    let id = create(world, name, json!({"type": "at", "at": soon}), json!({})).await;
    time.advance(Duration::from_secs(2));
    tests::until("the fence", async || !outcomes(world, &id).await.is_empty()).await;
}

#[tokio::test]
async fn a_suspended_machine_fires_the_newest_time_and_records_the_others() {
    let (world, time) = at_noon().await;
    let daily = create(&world, "daily", json!({"type": "cron", "schedule": "0 13 * * *"}), json!({})).await;
    let often = every_ten_minutes(&world, "often").await;
    time.advance(Duration::from_hours(1));
    until_outcomes(&world, &daily, &["ok 23 13:00"]).await;
    until_outcomes(&world, &often, &["missed 23 12:10 to 23 12:50 x5 late", "ok 23 13:00"]).await;
    // Eight hours over the next time.
    time.advance(Duration::from_hours(20));
    until_outcomes(
        &world,
        &often,
        &["missed 23 12:10 to 23 12:50 x5 late", "ok 23 13:00", "missed 23 13:10 to 24 08:50 x119 late", "ok 24 09:00"],
    )
    .await;
    time.advance(Duration::from_hours(8));
    until_outcomes(&world, &daily, &["ok 23 13:00", "ok 24 13:00"]).await;
    assert_eq!(routine(&world, &daily).await["next_fire_at"], json!("2026-11-25T13:00:00Z"));
    world.finish().await;
}

#[tokio::test]
async fn a_clock_that_is_set_forward_and_back_fires_nothing_twice() {
    let (world, time) = at_noon().await;
    let often = every_ten_minutes(&world, "often").await;
    time.advance(Duration::from_mins(10));
    until_outcomes(&world, &often, &["ok 23 12:10"]).await;
    // Only the wall clock: the sweep notices it by itself.
    time.step_wall_to(at("2026-11-23T14:15:00Z"));
    let after = ["ok 23 12:10", "missed 23 12:20 to 23 14:00 x11 late", "ok 23 14:10"];
    until_outcomes(&world, &often, &after).await;
    time.step_wall_to(at("2026-11-23T12:15:00Z"));
    time.advance(Duration::from_mins(30));
    fence(&world, &time, "first").await;
    assert_eq!(outcomes(&world, &often).await, after, "these times have had their outcomes");
    time.step_wall_to(at("2026-11-23T14:19:59Z"));
    time.advance(Duration::from_secs(1));
    until_outcomes(&world, &often, &[after.as_slice(), &["ok 23 14:20"]].concat()).await;
    world.finish().await;
}

#[tokio::test]
async fn times_while_the_process_was_down_follow_the_routines_policy() {
    let (mut world, time) = at_noon().await;
    let at_one = json!({"type": "at", "at": "2026-11-23T13:00:00Z"});
    let caught_up = create(&world, "caught up", at_one.clone(), json!({})).await;
    let not = create(&world, "not", at_one, json!({"catch_up": "none"})).await;
    let hourly = json!({"type": "cron", "schedule": "@hourly"});
    let all =
        create(&world, "all", hourly.clone(), json!({"catch_up": "all", "catch_up_max": 2, "max_concurrent": 9})).await;
    let until = create(&world, "until", hourly, json!({"until": "2026-11-23T14:30:00Z"})).await;
    world.stop().await;
    time.advance(Duration::from_mins(4 * 60 + 30));
    world.start().await;
    until_outcomes(&world, &caught_up, &["ok 23 13:00"]).await;
    until_outcomes(&world, &not, &["missed 23 13:00 to 23 13:00 x1 late"]).await;
    until_outcomes(&world, &all, &["missed 23 13:00 to 23 14:00 x2 late", "ok 23 15:00", "ok 23 16:00"]).await;
    until_outcomes(&world, &until, &["missed 23 13:00 to 23 13:00 x1 late", "ok 23 14:00"]).await;
    for (id, reason) in [(&caught_up, "completed"), (&not, "completed"), (&until, "until")] {
        let routine = routine(&world, id).await;
        assert_eq!((&routine["enabled"], &routine["disabled_reason"]), (&json!(false), &json!(reason)), "{routine:#}");
    }
    assert_eq!(routine(&world, &all).await["next_fire_at"], json!("2026-11-23T17:00:00Z"));
    world.finish().await;
}

#[tokio::test]
async fn several_sweeps_at_once_make_one_run_of_each_time() {
    let (world, time) = at_noon().await;
    let mut ids = vec![];
    for number in 0..30 {
        ids.push(every_ten_minutes(&world, &format!("often {number}")).await);
    }
    let (store, drain) = (world.store().await, CancellationToken::new());
    let mut sweeps = JoinSet::new();
    for _ in 0..3 {
        let sweep = RoutineScheduler {
            store: store.clone(),
            clock: Clock::Manual(time.clone()),
            waker: RoutineWaker::default(),
            cron_enabled: true,
        };
        sweeps.spawn(sweep.run(drain.clone()));
    }
    for slots in 1..=5 {
        time.advance(Duration::from_mins(10));
        for id in &ids {
            tests::until("each time to have its run", async || outcomes(&world, id).await.len() >= slots).await;
        }
    }
    // The other sweeps do not wake this process's runner, which polls by itself after a while.
    time.advance(Duration::from_secs(15));
    let expected = ["ok 23 12:10", "ok 23 12:20", "ok 23 12:30", "ok 23 12:40", "ok 23 12:50"];
    for id in &ids {
        until_outcomes(&world, id, &expected).await;
    }
    drain.cancel();
    while sweeps.join_next().await.is_some() {}
    store.close().await;
    world.finish().await;
}

#[tokio::test]
async fn a_routine_that_cannot_be_read_stops_no_other() {
    let (world, time) = at_noon().await;
    every_ten_minutes(&world, "broken").await;
    every_ten_minutes(&world, "wrong").await;
    let sound = every_ten_minutes(&world, "sound").await;
    let mut database = world.database().await;
    for (name, trigger) in [("broken", "{"), ("wrong", r#"{"type":"cron","schedule":"never"}"#)] {
        let change = sqlx::query("UPDATE routines SET trigger = $1 WHERE name = $2").bind(trigger).bind(name);
        change.execute(&mut database).await.unwrap();
    }
    time.advance(Duration::from_mins(10));
    until_outcomes(&world, &sound, &["ok 23 12:10"]).await;
    tests::until("the others to be disabled", async || {
        let reasons: Vec<(String, bool, Option<String>)> =
            sqlx::query_as("SELECT name, enabled, disabled_reason FROM routines WHERE name <> 'sound' ORDER BY name")
                .fetch_all(&mut world.database().await)
                .await
                .unwrap();
        let unreadable = |name: &str| (name.to_owned(), false, Some("unreadable".to_owned()));
        reasons == [unreadable("broken"), unreadable("wrong")]
    })
    .await;
    let runs: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM routine_runs WHERE routine_name <> 'sound'")
        .fetch_one(&mut world.database().await)
        .await
        .unwrap();
    assert_eq!(runs, 0);
    world.finish().await;
}
