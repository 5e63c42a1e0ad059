//! `POST /api/rpc`: cron jobs, the main session, and the switches.

use orchestrator::auth::Role;
use protocol::RunStatus;
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};
use tests::{
    Reply, User, World,
    routines::{run_of, until_run},
    script_of,
};

async fn answered(user: &User, method: &str, params: Value) -> Value {
    let call = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
    let answer = user.post("/api/rpc", &call).await.expect(200).body;
    assert_eq!((&answer["jsonrpc"], &answer["id"]), (&json!("2.0"), &json!(7)));
    answer
}

async fn result(user: &User, method: &str, params: Value) -> Value {
    let answer = answered(user, method, params).await;
    assert_eq!(answer.get("error"), None, "{method}: {answer}");
    answer["result"].clone()
}

/// The numeric code of an error, and its stable one.
async fn error(user: &User, method: &str, params: Value) -> (i64, Value) {
    let answer = answered(user, method, params).await;
    (
        answer["error"]["code"].as_i64().unwrap_or_else(|| panic!("{method}: {answer}")),
        answer["error"]["data"]["code"].clone(),
    )
}

fn turn(name: &str) -> Value {
    json!({"name": name, "schedule": {"everyMs": 3_600_000}, "payload": {"message": "look"}})
}

#[tokio::test]
async fn a_cron_job_is_a_routine_in_another_shape() {
    let world = World::new().await;
    let (ada, bob) = (world.user("ada"), world.user("bob"));
    let job = result(&ada, "cron.add", json!({"job": turn("news")})).await;
    let id = job["id"].as_str().unwrap();
    assert_eq!(job["payload"], json!({"kind": "agentTurn", "message": "look"}));
    assert_eq!((&job["sessionTarget"], &job["wakeMode"]), (&json!("isolated"), &json!("next-heartbeat")));
    assert!(job["state"]["nextRunAtMs"].as_i64() > job["createdAtMs"].as_i64());
    let routine = ada.get(&format!("/api/routines/{id}")).await.expect(200).body;
    assert_eq!(routine["action"]["prompt"], format!("[cron:{id}] news: look"));
    assert_eq!(
        (&routine["action"]["use_tools"], &routine["action"]["max_tool_rounds"], &routine["post_to_main"]),
        (&json!(true), &json!(20), &json!(true))
    );

    let second = result(&ada, "cron.add", turn("news")).await;
    assert_eq!(second["name"], "news (2)");
    let patch = json!({"id": id, "patch": {"name": "new name", "schedule": {"kind": "cron", "expr": "0 9 * * *"}}});
    let updated = result(&ada, "cron.update", patch).await;
    assert_eq!((&updated["name"], &updated["schedule"]["expr"]), (&json!("new name"), &json!("0 9 * * *")));
    let routine = ada.get(&format!("/api/routines/{id}")).await.expect(200).body;
    assert_eq!(routine["action"]["prompt"], format!("[cron:{id}] new name: look"));

    // Another user's job and a routine without a schedule are no jobs.
    assert_eq!(error(&bob, "cron.remove", json!({"id": id})).await, (-32_000, json!("not_found")));
    let manual = json!({"name": "m", "trigger": {"type": "manual"}, "action": {"type": "lightweight", "prompt": "p"}});
    let manual = ada.post("/api/routines", &manual).await.expect(201).body["id"].clone();
    assert_eq!(error(&ada, "cron.run", json!({"id": manual, "mode": "force"})).await, (-32_000, json!("not_found")));
    assert_eq!(result(&ada, "cron.list", json!({})).await["jobs"].as_array().unwrap().len(), 2);
    assert_eq!(result(&bob, "cron.list", json!({})).await["jobs"], json!([]));
    assert_eq!(result(&ada, "cron.remove", json!({"id": id})).await["removed"], true);
    world.finish().await;
}

#[tokio::test]
async fn a_job_that_another_scheduler_stored_is_added() {
    let world = World::new().await;
    let ada = world.user("ada");
    let stored = json!({"id": "9f1c", "agentId": "main", "name": "brief", "enabled": true, "createdAtMs": 1,
        "updatedAtMs": 2, "schedule": {"kind": "at", "at": "2099-12-01T07:00:00Z"}, "sessionTarget": "isolated",
        "wakeMode": "now", "payload": {"kind": "agentTurn", "message": "look"}, "deleteAfterRun": true,
        "delivery": {"mode": "announce", "channel": "last"}, "state": {"nextRunAtMs": 3}});
    let job = result(&ada, "cron.add", stored).await;
    assert_eq!((&job["schedule"]["atMs"], &job["payload"]["deliver"]), (&json!(4_099_791_600_000_u64), &json!(true)));
    assert_ne!(job["createdAtMs"], 1);
    let ignored: Vec<&Value> = job["warnings"].as_array().unwrap().iter().map(|warning| &warning["field"]).collect();
    assert_eq!(ignored, ["agentId", "deleteAfterRun"]);
    let patch = json!({"id": job["id"], "patch": {"payload": {"message": "read", "model": "opus"}}});
    assert_eq!(result(&ada, "cron.update", patch).await["warnings"][0]["field"], "payload.model");
    world.finish().await;
}

#[tokio::test]
async fn a_list_has_pages_and_cuts_long_texts() {
    let world = World::new().await;
    let ada = world.user("ada");
    for name in ["a", "b", "c"] {
        let mut job = turn(name);
        job["payload"]["message"] = json!("x".repeat(10_000));
        job["enabled"] = json!(name != "b");
        result(&ada, "cron.add", job).await;
    }
    let first = result(&ada, "cron.list", json!({"includeDisabled": true, "limit": 2})).await;
    assert_eq!((&first["jobs"][0]["name"], &first["jobs"][1]["name"]), (&json!("c"), &json!("b")));
    let message = first["jobs"][0]["payload"]["message"].as_str().unwrap();
    assert!(message.ends_with("x…") && message.chars().count() < 1_100, "{} characters", message.chars().count());
    let rest = result(&ada, "cron.list", json!({"includeDisabled": true, "cursor": first["nextCursor"]})).await;
    assert_eq!((&rest["jobs"][0]["name"], rest.get("nextCursor")), (&json!("a"), None));
    assert_eq!(result(&ada, "cron.list", json!({})).await["jobs"].as_array().unwrap().len(), 2);
    assert_eq!(result(&ada, "cron.status", json!({})).await["jobs"], 3);
    world.finish().await;
}

#[rstest]
#[case("no.method", json!({}), -32_601, Value::Null)]
#[case("cron.list", json!([1]), -32_602, json!("invalid"))]
#[case("cron.list", json!({"x": 1}), -32_602, json!("invalid"))]
#[case("cron.add", json!({"name": "n"}), -32_602, json!("invalid"))]
#[case("cron.add", json!({"name": "n", "schedule": {"everyMs": 1_500}, "payload": {"message": "m"}}), -32_602, json!("invalid"))]
#[case("cron.add", json!({"name": "n", "schedule": {"everyMs": 1_000}, "payload": {"message": "m"}}), -32_602, json!("invalid"))]
#[case("cron.run", json!({"id": "01890000-0000-7000-8000-000000000001", "mode": "now"}), -32_602, json!("invalid"))]
#[case("cron.runs", json!({"id": "01890000-0000-7000-8000-000000000001"}), -32_000, json!("not_found"))]
#[case("cron.set_enabled", json!({"enabled": false}), -32_000, json!("forbidden"))]
#[case("set_heartbeats", json!({"enabled": false}), -32_000, json!("forbidden"))]
#[case("wake", json!({"mode": "now", "text": " "}), -32_602, json!("invalid"))]
#[tokio::test]
async fn a_refused_call_has_a_code(
    #[case] method: &str,
    #[case] params: Value,
    #[case] code: i64,
    #[case] name: Value,
) {
    let world = World::new().await;
    assert_eq!(error(&world.user("ada"), method, params).await, (code, name));
    world.finish().await;
}

/// The first words of the message, which begins with the field of the call.
#[rstest]
#[case::expression(json!({"schedule": {"expr": "0 25 * * *"}}), "schedule.expr: not a cron expression")]
#[case::zone(json!({"schedule": {"expr": "0 9 * * *", "tz": "Mars/Base"}}), "schedule.tz: unknown time zone")]
#[case::past(json!({"schedule": {"atMs": 5}}), "schedule.atMs: 1970-01-01T00:00:00.005+00:00 has passed")]
#[case::period(json!({"schedule": {"everyMs": 0}}), "schedule.everyMs: must be from 1 to 316224000 seconds")]
#[case::message(json!({"payload": {"message": " "}}), "payload.message: ")]
#[case::text(json!({"payload": {"text": ""}}), "payload.text: ")]
#[case::timeout(json!({"payload": {"message": "m", "timeoutSeconds": 0}}), "payload.timeoutSeconds: must be 1 to ")]
#[case::target(json!({"payload": {"message": "m", "deliver": true, "to": "https://b.example"}}), "payload.to: ")]
#[case::attempts(json!({"runtime": {"maxAttempts": 99}}), "runtime.maxAttempts: must be 1 to ")]
#[case::backoff(json!({"runtime": {"retryBackoffMs": 99_000_000_000_u64}}), "runtime.retryBackoffMs: must be 0 to 31622400 seconds")]
#[case::session(json!({"sessionTarget": "main"}), "sessionTarget: ")]
#[case::prefix(json!({"isolation": {"postToMainPrefix": "x".repeat(200)}}), "isolation.postToMainPrefix: ")]
#[tokio::test]
async fn an_error_names_the_field_of_the_call(#[case] changes: Value, #[case] expected: &str) {
    let world = World::new().await;
    let ada = world.user("ada");
    let mut job = turn("n");
    job.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    let error = answered(&ada, "cron.add", job).await["error"].clone();
    let message = error["message"].as_str().unwrap_or_else(|| panic!("{error}"));
    assert!(message.starts_with(expected), "{message}");
    assert_eq!(error["data"]["field"].as_str(), message.split_once(": ").map(|(field, _)| field));
    world.finish().await;
}

#[tokio::test]
async fn a_run_of_a_line_has_it_as_its_summary() {
    let world = World::new().await;
    let ada = world.user("ada");
    let mut job = turn("tea");
    job["payload"] = json!({"text": "Tea is ready."});
    let job = result(&ada, "cron.add", job).await;
    let ran = result(&ada, "cron.run", json!({"id": job["id"], "mode": "force"})).await;
    let run = serde_json::from_value(ran["runId"].clone()).unwrap();
    let run = until_run(&ada, run, RunStatus::Ok).await;
    assert_eq!(run.result_summary.as_deref(), Some("Tea is ready."));
    let entries = result(&ada, "cron.runs", json!({"id": job["id"]})).await["entries"].clone();
    assert_eq!(entries[0]["summary"], "Tea is ready.");
    let routine = ada.get(&format!("/api/routines/{}", job["id"].as_str().unwrap())).await.expect(200).body;
    assert_eq!(routine["state"], Value::Null, "the next run puts the same line");
    world.finish().await;
}

#[tokio::test]
async fn a_body_that_is_no_call_is_answered_as_one() {
    let world = World::new().await;
    let ada = world.user("ada");
    for (body, id) in [
        ("[]", Value::Null),
        (r#"[{"jsonrpc": "2.0", "id": 1, "method": "cron.list"}]"#, Value::Null),
        ("7", Value::Null),
        ("{", Value::Null),
        (r#"{"id": 1, "method": "cron.list"}"#, json!(1)),
        (r#"{"jsonrpc": "1.0", "id": "a", "method": "cron.list"}"#, json!("a")),
        (r#"{"jsonrpc": "2.0", "id": {}, "method": "cron.list"}"#, Value::Null),
    ] {
        let answer = ada.post_raw("/api/rpc", body).await.expect(200).body;
        assert_eq!((&answer["error"]["code"], &answer["id"]), (&json!(-32_600), &id), "{body}: {answer}");
    }
    let silent = json!({"jsonrpc": "2.0", "method": "cron.add", "params": turn("n")});
    ada.post("/api/rpc", &silent).await.expect(204);
    assert_eq!(result(&ada, "cron.status", json!({})).await["jobs"], 1);
    let viewer = world.someone("ada", Role::Viewer);
    assert_eq!(result(&viewer, "cron.status", json!({})).await["jobs"], 1);
    assert_eq!(error(&viewer, "cron.add", turn("m")).await, (-32_000, json!("forbidden")));
    world.anonymous().post("/api/rpc", &silent).await.expect(401);
    world.finish().await;
}

#[tokio::test]
async fn an_admin_switches_schedules_and_a_job_that_is_not_due_does_not_run() {
    let world = World::new().await;
    let (ada, root) = (world.user("ada"), world.someone("root", Role::Admin));
    let id = result(&ada, "cron.add", turn("n")).await["id"].clone();
    let not_run = |reason: &str| json!({"ok": true, "ran": false, "reason": reason});
    assert_eq!(result(&ada, "cron.run", json!({"id": id})).await, not_run("not_due"));
    assert_eq!(
        result(&root, "cron.set_enabled", json!({"enabled": false})).await,
        json!({"ok": true, "enabled": false})
    );
    assert_eq!(result(&ada, "cron.status", json!({})).await["enabled"], false);
    assert_eq!(result(&ada, "cron.run", json!({"id": id})).await, not_run("automation_disabled"));
    let warned = result(&ada, "cron.add", turn("m")).await;
    assert_eq!(warned["warnings"][0]["code"], "automation_disabled");
    // By hand it runs: the switch is for what starts by itself.
    assert_eq!(result(&ada, "cron.run", json!({"id": id, "mode": "force"})).await["ran"], true);
    assert_eq!(result(&root, "cron.set_enabled", json!({"enabled": true})).await["enabled"], true);
    result(&root, "set_heartbeats", json!({"enabled": false})).await;
    world.finish().await;
}

/// The actions of the events of cron jobs, in order.
async fn cron_events(user: &User, id: &Value) -> Vec<(String, Option<i64>)> {
    let page = user.request(Method::GET, "/api/events?kind=cron&limit=100").header("accept", "application/json");
    let page = Reply::of(page).await.expect(200).body;
    let of_job = page["items"].as_array().unwrap().iter().filter(|event| event["data"]["jobId"] == *id);
    of_job
        .map(|event| {
            let action = event["data"]["action"].as_str().unwrap().to_owned();
            (action, event["data"]["nextRunAtMs"].as_i64())
        })
        .collect()
}

#[tokio::test]
async fn a_forced_run_has_the_events_of_a_cron_job() {
    let hang =
        script_of(&[json!({"when": {"last_message": "hang"}, "hang": true}), json!({"reply": {"text": "Done."}})]);
    let world = World::builder().script(hang).build().await;
    let ada = world.user("ada");
    let job = result(&ada, "cron.add", turn("n")).await;
    let ran = result(&ada, "cron.run", json!({"id": job["id"], "mode": "force"})).await;
    let run = serde_json::from_value(ran["runId"].clone()).unwrap();
    tests::until("the run to end", async || run_of(&ada, run).await.status.is_finished()).await;
    let next = job["state"]["nextRunAtMs"].as_i64();
    let expected = ["added", "started", "finished"].map(|action| (action.to_owned(), next));
    assert_eq!(cron_events(&ada, &job["id"]).await, expected);

    // Also of one that is disabled while it runs.
    let mut hanging = turn("hanging");
    hanging["payload"]["message"] = json!("hang");
    let job = result(&ada, "cron.add", hanging).await;
    let ran = result(&ada, "cron.run", json!({"id": job["id"], "mode": "force"})).await;
    let run = serde_json::from_value(ran["runId"].clone()).unwrap();
    until_run(&ada, run, RunStatus::Running).await;
    result(&ada, "cron.update", json!({"id": job["id"], "patch": {"enabled": false}})).await;
    ada.post(&format!("/api/runs/{run}/cancel"), &json!({})).await.expect(202);
    until_run(&ada, run, RunStatus::Failed).await;
    let next = job["state"]["nextRunAtMs"].as_i64();
    let expected = [("added", next), ("started", next), ("updated", None), ("finished", None)];
    assert_eq!(cron_events(&ada, &job["id"]).await, expected.map(|(action, next)| (action.to_owned(), next)));
    world.finish().await;
}

#[tokio::test]
async fn fewer_rounds_of_tool_calls_are_told() {
    let world = World::builder().set("GANTRY_ROUTINES_MAX_TOOL_ROUNDS", 5).build().await;
    let ada = world.user("ada");
    let added = result(&ada, "cron.add", turn("n")).await;
    assert_eq!(added["warnings"][0]["code"], "tool_rounds_lowered", "{added:#}");
    assert!(added["warnings"][0]["detail"].as_str().unwrap().contains("5 rounds"), "{added:#}");
    let line = json!({"name": "line", "schedule": {"everyMs": 3_600_000}, "payload": {"text": "look"}});
    let line = result(&ada, "cron.add", line).await;
    assert_eq!(line.get("warnings"), None, "{line:#}");
    let patch = json!({"id": line["id"], "patch": {"payload": {"message": "look"}}});
    let updated = result(&ada, "cron.update", patch).await;
    assert_eq!(updated["warnings"][0]["code"], "tool_rounds_lowered", "{updated:#}");
    world.finish().await;
}

#[tokio::test]
async fn the_provider_last_removes_the_webhook() {
    let world = World::builder().set("GANTRY_NOTIFY_ALLOW", "hooks.example").build().await;
    let ada = world.user("ada");
    let mut job = turn("n");
    job["payload"]["to"] = json!("https://hooks.example/a");
    job["payload"]["deliver"] = json!(true);
    let id = result(&ada, "cron.add", job).await["id"].clone();
    let url = async || {
        let routine = ada.get(&format!("/api/routines/{}", id.as_str().unwrap())).await.expect(200).body;
        routine["notify"]["webhook_url"].clone()
    };
    let update =
        async |payload: Value| result(&ada, "cron.update", json!({"id": id, "patch": {"payload": payload}})).await;
    update(json!({"message": "look again"})).await;
    assert_eq!(url().await, "https://hooks.example/a", "what a patch does not say stays");
    update(json!({"message": "look again", "provider": "last"})).await;
    assert_eq!(url().await, Value::Null);
    world.finish().await;
}
