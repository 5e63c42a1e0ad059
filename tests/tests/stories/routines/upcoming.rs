//! The firings to come of all routines, and the numbers of those that were.

use orchestrator::{auth::Role, clock::ManualClock};
use protocol::{Page, RoutineRun, RunHistogram, RunReason, RunStatus};
use reqwest::Method;
use serde_json::{Value, json};
use tests::{Reply, User, World, routines::triggered, script_of};

fn definition(name: &str, trigger: &Value) -> Value {
    let action = json!({"type": "lightweight", "prompt": "Check."});
    json!({"name": name, "trigger": trigger, "action": action})
}

async fn created(user: &User, name: &str, trigger: Value) -> String {
    user.post("/api/routines", &definition(name, &trigger)).await.expect(201).body["id"].as_str().unwrap().to_owned()
}

fn every(seconds: u64) -> Value {
    json!({"type": "every", "every_seconds": seconds})
}

async fn upcoming(user: &User, query: &str) -> Value {
    user.get(&format!("/api/routines/upcoming?{query}")).await.expect(200).body
}

fn names(upcoming: &Value) -> Vec<&str> {
    upcoming["items"].as_array().unwrap().iter().map(|item| item["routine_name"].as_str().unwrap()).collect()
}

fn total(upcoming: &Value) -> u64 {
    upcoming["hours"].as_array().unwrap().iter().map(|hour| hour["count"].as_u64().unwrap()).sum()
}

#[tokio::test]
async fn the_soonest_firings_of_all_routines_are_listed_and_counted_by_hour() {
    let clock = ManualClock::at("2026-11-22T12:00:00Z".parse().unwrap());
    let world = World::builder().clock(&clock).build().await;
    let (ada, eve, root) = (world.user("ada"), world.user("eve"), world.someone("root", Role::Admin));
    let settings = json!({"timezone": "America/New_York"});
    Reply::of(ada.request(Method::PUT, "/api/settings").json(&settings)).await.expect(200);
    let often = created(&ada, "often", every(1_800)).await;
    let morning = json!({"type": "cron", "schedule": "30 14 * * *", "timezone": "Europe/Berlin"});
    let morning = created(&ada, "morning", morning).await;
    created(&ada, "once", json!({"type": "at", "at": "2026-11-25T10:00:00Z"})).await;
    created(&ada, "by hand", json!({"type": "manual"})).await;
    let disabled = created(&ada, "disabled", every(60)).await;
    ada.post(&format!("/api/routines/{disabled}/disable"), &json!({})).await.expect(200);
    created(&eve, "hers", every(3_600)).await;

    let found = upcoming(&ada, "until=2026-11-22T14:00:00Z").await;
    let item = |id: &str, name: &str, utc: &str, local: &str| json!({"routine_id": id, "routine_name": name, "user_id": "ada", "utc": utc, "local": local});
    let expected = json!({
        "items": [
            item(&often, "often", "2026-11-22T12:30:00Z", "2026-11-22T07:30:00-05:00"),
            item(&often, "often", "2026-11-22T13:00:00Z", "2026-11-22T08:00:00-05:00"),
            item(&often, "often", "2026-11-22T13:30:00Z", "2026-11-22T08:30:00-05:00"),
            item(&morning, "morning", "2026-11-22T13:30:00Z", "2026-11-22T14:30:00+01:00"),
        ],
        "hours": [{"hour": "2026-11-22T12:00:00Z", "count": 1}, {"hour": "2026-11-22T13:00:00Z", "count": 3}],
        "until": "2026-11-22T14:00:00Z",
        "left_out": 0,
    });
    // Two fire at the same time: the order of these is not defined.
    let mut sorted = found.clone();
    sorted["items"].as_array_mut().unwrap().sort_by_key(|item| (item["utc"].to_string(), item["local"].to_string()));
    assert_eq!(sorted, expected, "{found:#}");

    assert_eq!(names(&upcoming(&ada, "limit=2").await), ["often", "often"]);
    for query in ["", "until=2027-01-01T00:00:00Z"] {
        let all = upcoming(&ada, query).await;
        assert_eq!((&all["until"], names(&all).len()), (&json!("2026-11-30T12:00:00Z"), 50), "at most 8 days");
        assert_eq!(total(&all), 383 + 8 + 1, "every half hour, each day, and once");
    }
    assert_eq!(upcoming(&ada, "until=2026-11-22T11:00:00Z").await["items"], json!([]), "nothing was");
    assert_eq!(names(&upcoming(&eve, "limit=1").await), ["hers"]);
    assert_eq!(total(&upcoming(&root, "").await), 392 + 191);
    assert_eq!(total(&upcoming(&root, "user=eve").await), 191);
    eve.get("/api/routines/upcoming?user=ada").await.expect(403);
    world.finish().await;
}

#[tokio::test]
async fn a_trial_of_a_definition_says_how_often_it_fires() {
    let clock = ManualClock::at("2026-11-22T12:00:00Z".parse().unwrap());
    let world = World::builder().clock(&clock).build().await;
    let ada = world.user("ada");
    for (trigger, guardrails, expected) in [
        (every(60), json!({}), 8 * 1_440 - 1),
        (json!({"type": "cron", "schedule": "* * * * *"}), json!({}), 8 * 1_440 - 1),
        (every(60), json!({"max_runs": 5}), 5),
        (every(60), json!({"until": "2026-11-22T12:10:00Z"}), 10),
        (json!({"type": "at", "at": "2026-12-25T10:00:00Z"}), json!({}), 0),
        (json!({"type": "manual"}), json!({}), 0),
    ] {
        let mut body = definition("tried", &trigger);
        body["guardrails"] = guardrails;
        let tried = ada.post("/api/routines?dry_run=true", &body).await.expect(200).body;
        assert_eq!(tried["count"], expected, "{body:#}");
    }
    world.finish().await;
}

#[tokio::test]
async fn runs_are_found_by_reason_and_time_and_counted_by_hour() {
    let script = script_of(&[
        json!({"when": {"last_message": "break"}, "error": {"status": 400, "message": "broken"}}),
        json!({"reply": {"text": "ROUTINE_OK"}}),
    ]);
    let world = World::builder().script(script).build().await;
    let (ada, eve, root) = (world.user("ada"), world.user("eve"), world.someone("root", Role::Admin));
    let action = |prompt: &str| json!({"type": "lightweight", "prompt": prompt});
    let broken = super::create(&ada, "broken", action("break")).await;
    let good = super::create(&ada, "good", action("look")).await;
    let failed = triggered(&ada, &broken).await;
    let reason = failed.reason.unwrap();
    assert_eq!((failed.status, reason), (RunStatus::Failed, RunReason::LlmError));
    let ok = triggered(&ada, &good).await;
    let listed = async |user: &User, path: String| {
        let page: Page<RoutineRun> = user.get(&path).await.expect(200).json();
        page.items.into_iter().map(|run| run.id).collect::<Vec<_>>()
    };
    assert_eq!(listed(&ada, "/api/runs?reason=llm_error".to_owned()).await, [failed.id]);
    assert_eq!(listed(&root, "/api/runs?reason=llm_error&trigger=manual".to_owned()).await, [failed.id]);
    assert_eq!(listed(&eve, "/api/runs?reason=llm_error".to_owned()).await, []);
    assert_eq!(listed(&ada, format!("/api/routines/{broken}/runs?reason=cooldown")).await, []);
    let at = ok.created_at.to_rfc3339_opts(chrono::SecondsFormat::Micros, true);
    assert_eq!(listed(&ada, format!("/api/routines/{good}/runs?since={at}")).await, [ok.id]);
    assert_eq!(listed(&ada, format!("/api/routines/{good}/runs?until={at}")).await, []);

    let counted = async |user: &User, query: String| {
        let counts: RunHistogram = user.get(&format!("/api/runs/histogram?{query}")).await.expect(200).json();
        let statuses = counts.items.into_iter().flat_map(|hour| hour.statuses);
        let mut statuses: Vec<String> = statuses.map(|(status, runs)| format!("{status} {runs}")).collect();
        statuses.sort();
        statuses
    };
    assert_eq!(counted(&ada, String::new()).await, ["failed 1", "ok 1"]);
    assert_eq!(counted(&root, String::new()).await, ["failed 1", "ok 1"]);
    assert_eq!(counted(&ada, format!("routine_id={good}")).await, ["ok 1"]);
    assert_eq!(counted(&eve, format!("routine_id={good}")).await, Vec::<String>::new());
    world.finish().await;
}
