//! Schedules: their times, their runs, and what edits and switches do to them.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use orchestrator::clock::ManualClock;
use protocol::{DisabledReason, Routine, RoutineRun, RunReason, RunStatus};
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};
use tests::{
    User, World, WorldBuilder, poll,
    routines::{runs, triggered},
    script_of,
};

const START: &str = "2026-11-22T12:00:00Z";

fn start() -> DateTime<Utc> {
    START.parse().unwrap()
}

fn at(seconds: i64) -> DateTime<Utc> {
    start() + TimeDelta::seconds(seconds)
}

fn world(clock: &ManualClock) -> WorldBuilder {
    World::builder().clock(clock).script(script_of(&[json!({"reply": {"text": "ROUTINE_OK"}})]))
}

/// Creates a routine with a schedule.
async fn scheduled(user: &User, trigger: Value, guardrails: Value) -> String {
    let action = json!({"type": "lightweight", "prompt": "Check."});
    let body = json!({"name": "scheduled", "trigger": trigger, "action": action, "guardrails": guardrails});
    user.post("/api/routines", &body).await.expect(201).body["id"].as_str().unwrap().to_owned()
}

fn every_minute() -> Value {
    json!({"type": "every", "every_seconds": 60})
}

async fn routine(user: &User, id: &str) -> Routine {
    user.get(&format!("/api/routines/{id}")).await.expect(200).json()
}

/// Waits until the routine has this number of runs, all ended. The oldest first.
async fn ended(user: &User, id: &str, number: usize) -> Vec<RoutineRun> {
    let mut all = poll(&format!("{number} ended runs"), async || {
        let runs = runs(user, id).await;
        (runs.len() == number && runs.iter().all(|run| run.status.is_finished())).then_some(runs)
    })
    .await;
    all.reverse();
    all
}

fn outcomes(runs: &[RoutineRun]) -> Vec<(Option<DateTime<Utc>>, RunStatus)> {
    runs.iter().map(|run| (run.due_at, run.status)).collect()
}

#[tokio::test]
async fn each_time_has_one_run_and_the_next_time_follows() {
    let clock = ManualClock::at(start());
    let world = world(&clock).build().await;
    let ada = world.user("ada");
    let id = scheduled(&ada, every_minute(), json!({})).await;
    assert_eq!(routine(&ada, &id).await.next_fire_at, Some(at(60)));
    for number in 1..=3_u32 {
        clock.advance(Duration::from_mins(1));
        ended(&ada, &id, number as usize).await;
    }
    let all = ended(&ada, &id, 3).await;
    let expected = [60, 120, 180].map(|seconds| (Some(at(seconds)), RunStatus::Ok));
    assert_eq!(outcomes(&all), expected);
    let now = routine(&ada, &id).await;
    assert_eq!((now.next_fire_at, now.run_count, now.verified), (Some(at(240)), 3, true), "{now:?}");
    assert_eq!(now.last_run_at, Some(at(180)));
    world.finish().await;
}

#[rstest]
#[case::in_time(60, json!({}), RunStatus::Ok)]
#[case::caught_up(3600, json!({}), RunStatus::Ok)]
#[case::not_caught_up(3600, json!({"catch_up": "none"}), RunStatus::Missed)]
#[case::too_late(2 * 86_400, json!({}), RunStatus::Missed)]
#[tokio::test]
async fn a_single_time_has_one_outcome_and_the_routine_is_done(
    #[case] seconds_later: u64,
    #[case] guardrails: Value,
    #[case] expected: RunStatus,
) {
    let clock = ManualClock::at(start());
    let mut world = world(&clock).build().await;
    let ada = world.user("ada");
    let id = scheduled(&ada, json!({"type": "at", "at": at(60)}), guardrails).await;
    if seconds_later == 60 {
        clock.advance(Duration::from_mins(1));
    } else {
        world.stop().await;
        clock.advance(Duration::from_secs(60 + seconds_later));
        world.start().await;
    }
    let ada = world.user("ada");
    let all = ended(&ada, &id, 1).await;
    assert_eq!(all[0].status, expected, "{all:?}");
    let now = routine(&ada, &id).await;
    assert_eq!((now.enabled, now.disabled_reason), (false, Some(DisabledReason::Completed)));
    let notified = ada.get("/api/notifications").await.expect(200).body;
    assert_eq!(notified["items"], json!([]), "its end was expected");
    world.finish().await;
}

#[tokio::test]
async fn a_schedule_that_skips_months_is_saved_with_a_warning() {
    let world = World::new().await;
    let ada = world.user("ada");
    let action = json!({"type": "lightweight", "prompt": "p"});
    let of_day = |day: &str| json!({"type": "cron", "schedule": format!("every month on {day} at 9:00 Europe/Oslo")});
    let body = json!({"name": "31", "trigger": of_day("31"), "action": action});
    let preview = ada.post("/api/routines?dry_run=true", &body).await.expect(200).body;
    let saved = ada.post("/api/routines", &body).await.expect(201).body;
    assert_eq!(preview["warnings"], saved["warnings"]);
    let warning = &saved["warnings"][0];
    assert_eq!((&warning["code"], &warning["field"]), (&json!("months_skipped"), &json!("trigger.schedule")));
    let detail = warning["detail"].as_str().unwrap();
    assert!(detail.contains("February, April, June, September, November"), "{detail}");
    let body = json!({"name": "last", "trigger": of_day("last day"), "action": action});
    assert_eq!(ada.post("/api/routines", &body).await.expect(201).body["warnings"], json!([]));
    world.finish().await;
}

#[tokio::test]
async fn times_while_automation_is_off_are_missed_and_not_caught_up() {
    let clock = ManualClock::at(start());
    let mut world = world(&clock).build().await;
    let ada = world.user("ada");
    let id = scheduled(&ada, every_minute(), json!({"catch_up": "all"})).await;
    world.restart_with(|config| config.routines.cron_enabled = false).await;
    let ada = world.user("ada");
    clock.advance(Duration::from_mins(10));
    let body =
        json!({"name": "other", "trigger": {"type": "manual"}, "action": {"type": "lightweight", "prompt": "p"}});
    let saved = ada.post("/api/routines", &body).await.expect(201).body;
    assert_eq!(saved["warnings"][0]["code"], "automation_disabled", "{saved:#}");
    let by_hand = triggered(&ada, &id).await;
    assert_eq!(
        (by_hand.status, by_hand.due_at),
        (RunStatus::Ok, None),
        "automation does not concern what a person asks for"
    );
    assert_eq!(runs(&ada, &id).await.len(), 1);
    world.restart_with(|config| config.routines.cron_enabled = true).await;
    let ada = world.user("ada");
    let all = ended(&ada, &id, 2).await;
    let missed = &all[1];
    assert_eq!((missed.status, missed.reason), (RunStatus::Missed, Some(RunReason::AutomationDisabled)));
    assert_eq!((missed.missed_count, missed.missed_from, missed.missed_to), (Some(10), Some(at(60)), Some(at(600))));
    clock.advance(Duration::from_mins(1));
    let all = ended(&ada, &id, 3).await;
    assert_eq!(all[2].due_at, Some(at(660)));
    world.finish().await;
}

#[tokio::test]
async fn automation_that_was_switched_on_while_the_clock_was_ahead_fires_once_the_clock_is_right() {
    let clock = ManualClock::at(start());
    let mut world = world(&clock).build().await;
    world.restart_with(|config| config.routines.cron_enabled = false).await;
    clock.step_wall_to(at(86_400));
    world.restart_with(|config| config.routines.cron_enabled = true).await;
    clock.step_wall_to(start());
    let ada = world.user("ada");
    let id = scheduled(&ada, every_minute(), json!({})).await;
    let store = world.store().await;
    tests::until("the time of switching on to be corrected", async || {
        store.automation().await.unwrap().resumed_at.is_some_and(|resumed_at| resumed_at <= start())
    })
    .await;
    store.close().await;
    clock.advance(Duration::from_mins(1));
    let all = ended(&ada, &id, 1).await;
    assert_eq!(outcomes(&all), [(Some(at(60)), RunStatus::Ok)]);
    world.finish().await;
}

#[tokio::test]
async fn an_edit_replays_no_time_and_a_change_of_the_name_moves_none() {
    let clock = ManualClock::at(start());
    let world = world(&clock).build().await;
    let ada = world.user("ada");
    let id = scheduled(&ada, every_minute(), json!({})).await;
    clock.advance(Duration::from_secs(90));
    ended(&ada, &id, 1).await;
    let path = format!("/api/routines/{id}");
    let renamed = ada.request(Method::PATCH, &path).json(&json!({"name": "renamed"}));
    let renamed: Routine = tests::Reply::of(renamed).await.expect(200).json();
    assert_eq!((renamed.next_fire_at, renamed.verified, renamed.rev), (Some(at(120)), true, 2));
    let trigger = json!({"trigger": {"type": "every", "every_seconds": 300}});
    let changed = ada.request(Method::PATCH, &path).json(&trigger);
    let changed: Routine = tests::Reply::of(changed).await.expect(200).json();
    assert_eq!((changed.next_fire_at, changed.verified), (Some(at(300)), false), "counted from its creation");
    ada.post(&format!("{path}/disable"), &json!({})).await.expect(200);
    clock.advance(Duration::from_hours(1));
    // The token has expired.
    let ada = world.user("ada");
    let enabled: Routine = ada.post(&format!("{path}/enable"), &json!({})).await.expect(200).json();
    assert_eq!(enabled.next_fire_at, Some(at(3900)));
    assert_eq!(runs(&ada, &id).await.len(), 1, "nothing that passed while it was disabled");
    ada.request(Method::DELETE, &path).send().await.unwrap();
    clock.advance(Duration::from_hours(1));
    let ada = world.user("ada");
    ada.get(&path).await.expect(404);
    let all = ada.get("/api/runs").await.expect(200).body;
    assert_eq!(all["items"].as_array().unwrap().len(), 1, "its runs stay: {all:#}");
    world.finish().await;
}

#[tokio::test]
async fn the_next_times_are_shown_in_the_zone_of_the_routine() {
    let clock = ManualClock::at(start());
    let world = world(&clock).build().await;
    let ada = world.user("ada");
    let trigger = json!({"type": "cron", "schedule": "every weekday at 9:00", "timezone": "Europe/Berlin"});
    let id = scheduled(&ada, trigger, json!({"until": "2026-11-25T23:00:00Z"})).await;
    let stored = routine(&ada, &id).await;
    assert_eq!(
        serde_json::to_value(&stored.trigger).unwrap(),
        json!({"type": "cron", "schedule": "0 9 * * MON-FRI", "timezone": "Europe/Berlin"})
    );
    let times = ada.get(&format!("/api/routines/{id}/upcoming?count=200")).await.expect(200).body;
    let expected = json!({"items": [
        {"utc": "2026-11-23T08:00:00Z", "local": "2026-11-23T09:00:00+01:00"},
        {"utc": "2026-11-24T08:00:00Z", "local": "2026-11-24T09:00:00+01:00"},
        {"utc": "2026-11-25T08:00:00Z", "local": "2026-11-25T09:00:00+01:00"},
    ]});
    assert_eq!(times, expected);
    world.finish().await;
}
