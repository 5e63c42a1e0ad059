//! The time zones of schedules: which one a schedule takes when it is made, and that it keeps it.

use chrono::{DateTime, Utc};
use orchestrator::clock::ManualClock;
use protocol::{Routine, RoutineTrigger};
use reqwest::Method;
use serde_json::{Value, json};
use tests::{Reply, User, World, script_of};

fn start() -> DateTime<Utc> {
    "2026-11-22T12:00:00Z".parse().unwrap()
}

async fn world() -> World {
    let clock = ManualClock::at(start());
    World::builder().clock(&clock).script(script_of(&[json!({"reply": {"text": "ROUTINE_OK"}})])).build().await
}

fn definition(name: &str, schedule: &str) -> Value {
    json!({"name": name, "trigger": {"type": "cron", "schedule": schedule},
        "action": {"type": "lightweight", "prompt": "Check."}})
}

async fn set_zone(user: &User, zone: &Value) {
    let body = json!({"timezone": zone});
    Reply::of(user.request(Method::PUT, "/api/settings").json(&body)).await.expect(200);
}

/// Whether the answer warns that no zone is set.
fn warns(answer: &Value) -> bool {
    let warnings = answer["warnings"].as_array().unwrap();
    warnings.iter().any(|one| one["code"] == "timezone_not_set" && one["field"] == "trigger.timezone")
}

async fn create(user: &User, definition: &Value) -> Value {
    user.post("/api/routines", definition).await.expect(201).body
}

async fn patch(user: &User, id: &Value, body: Value) -> Value {
    let path = format!("/api/routines/{}", id.as_str().unwrap());
    Reply::of(user.request(Method::PATCH, &path).json(&body)).await.expect(200).body
}

async fn routine(user: &User, id: &Value) -> Routine {
    user.get(&format!("/api/routines/{}", id.as_str().unwrap())).await.expect(200).json()
}

#[tokio::test]
async fn without_a_zone_anywhere_a_schedule_is_in_utc_and_the_answer_warns() {
    let world = world().await;
    let ada = world.user("ada");
    let made = create(&ada, &definition("morning", "every day at 9:00")).await;
    assert_eq!(made["trigger"], json!({"type": "cron", "schedule": "0 9 * * *", "timezone": "UTC"}));
    assert!(warns(&made), "{made:#}");
    let detail = made["warnings"].to_string();
    assert!(detail.contains("gantry settings set --timezone ZONE"), "{detail}");
    let once = create(&ada, &definition("once", "at 2030-12-01 07:00")).await;
    assert_eq!((&once["trigger"]["at"], warns(&once)), (&json!("2030-12-01T07:00:00Z"), true));
    let tried = ada.post("/api/routines?dry_run=true", &definition("tried", "0 9 * * *")).await.expect(200).body;
    assert!(warns(&tried), "{tried:#}");
    // Where a zone is named, or no local time is, there is nothing to warn of.
    for (name, schedule) in [("named", "every day at 9:00 Europe/Oslo"), ("interval", "every 2h"), ("soon", "in 20m")] {
        let made = create(&ada, &definition(name, schedule)).await;
        assert!(!warns(&made), "{made:#}");
    }
    // A zone that is set later moves nothing, and neither does the same definition again.
    let before = routine(&ada, &made["id"]).await;
    set_zone(&ada, &json!("Asia/Tokyo")).await;
    assert_eq!(routine(&ada, &made["id"]).await, before);
    let again = patch(&ada, &made["id"], definition("morning", "every day at 9:00")).await;
    assert_eq!((&again["rev"], &again["trigger"], warns(&again)), (&json!(before.rev), &made["trigger"], false));
    world.finish().await;
}

#[tokio::test]
async fn a_schedule_takes_the_zone_of_the_settings_and_keeps_it() {
    let world = world().await;
    let ada = world.user("ada");
    set_zone(&ada, &json!("Europe/Oslo")).await;
    let made = create(&ada, &definition("morning", "0 9 * * *")).await;
    assert_eq!(made["trigger"]["timezone"], "Europe/Oslo");
    assert_eq!((&made["next_fire_at"], warns(&made)), (&json!("2026-11-23T08:00:00Z"), false));
    let once = create(&ada, &definition("once", "at 2030-12-01 07:00")).await;
    assert_eq!(once["trigger"]["at"], "2030-12-01T06:00:00Z");
    let call = json!({"jsonrpc": "2.0", "id": 1, "method": "cron.add", "params": {"name": "turn",
        "schedule": {"kind": "cron", "expr": "0 9 * * *"}, "payload": {"kind": "agentTurn", "message": "look"}}});
    let job = ada.post("/api/rpc", &call).await.expect(200).body;
    assert_eq!(job["result"]["schedule"]["tz"], "Europe/Oslo", "{job:#}");

    let before = routine(&ada, &made["id"]).await;
    for zone in [json!("Asia/Tokyo"), json!(null)] {
        set_zone(&ada, &zone).await;
        assert_eq!(routine(&ada, &made["id"]).await, before);
        for schedule in ["0 9 * * *", "every day at 9:00"] {
            let again = patch(&ada, &made["id"], definition("morning", schedule)).await;
            assert_eq!((&again["rev"], &again["next_fire_at"]), (&json!(before.rev), &made["next_fire_at"]));
        }
    }
    // Another time keeps the zone as well.
    let moved = patch(&ada, &made["id"], json!({"trigger": {"type": "cron", "schedule": "0 10 * * *"}})).await;
    assert_eq!((&moved["trigger"]["timezone"], warns(&moved)), (&json!("Europe/Oslo"), false));
    // A schedule in place of another trigger is a new one.
    set_zone(&ada, &json!("Asia/Tokyo")).await;
    patch(&ada, &made["id"], json!({"trigger": {"type": "manual"}})).await;
    let new = patch(&ada, &made["id"], json!({"trigger": {"type": "cron", "schedule": "0 9 * * *"}})).await;
    assert_eq!(new["trigger"]["timezone"], "Asia/Tokyo");
    let stored = routine(&ada, &new["id"]).await;
    assert!(matches!(&stored.trigger, RoutineTrigger::Cron { timezone: Some(zone), .. } if zone == "Asia/Tokyo"));
    world.finish().await;
}
