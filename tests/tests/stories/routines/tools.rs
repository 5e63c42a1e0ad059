//! The tools for routines, called by the model of a chat.

use protocol::ChatContent;
use rstest::rstest;
use serde_json::{Value, json};
use tests::{User, World, script_of};

use crate::chat::{history, send, turn};

/// A script whose model calls one tool with these arguments, and then repeats the result.
fn calling(tool: &str, arguments: &Value) -> String {
    script_of(&[
        json!({"when": {"tool_name": tool}, "reply": {"text": "It said: {{tool_result}}"}}),
        json!({"reply": {"text": "I will.", "tool_calls": [{"name": tool, "arguments": arguments}]}}),
    ])
}

/// The results of the calls of a thread, in order.
async fn results(user: &User) -> Vec<(bool, String)> {
    let results = history(user).await.messages.into_iter().filter_map(|message| match message.content {
        ChatContent::ToolResult { success, output, .. } => Some((success, output)),
        _ => None,
    });
    results.collect()
}

/// The result of one call, with every call allowed.
async fn called(tool: &str, arguments: Value, before: &[Value]) -> (World, bool, String) {
    let world = World::builder().script(calling(tool, &arguments)).build().await;
    let ada = world.user("ada");
    for routine in before {
        ada.post("/api/routines", routine).await.expect(201);
    }
    ada.put(
        &format!("/api/tools/{tool}/permission"),
        "application/json",
        json!({"permission": "always_allow"}).to_string(),
    )
    .await
    .expect(200);
    turn(&ada, "go").await;
    let (success, output) = results(&ada).await.pop().expect("a call");
    (world, success, output)
}

fn manual(name: &str) -> Value {
    json!({"name": name, "trigger": {"type": "manual"}, "action": {"type": "lightweight", "prompt": "p"}})
}

#[tokio::test]
async fn a_model_creates_a_routine_for_its_user() {
    let arguments = json!({"name": "news", "trigger": {"type": "cron", "schedule": "every day at 7:00"},
        "action": {"type": "lightweight", "prompt": "look", "use_tools": true}});
    let (world, success, output) = called("routine_create", arguments, &[]).await;
    assert!(success && output.contains("next_fire_at"), "{output}");
    let page = world.user("ada").get("/api/routines?name=news").await.expect(200).body;
    assert_eq!(page["items"][0]["action"]["use_tools"], true);
    assert_eq!(world.user("bob").get("/api/routines").await.expect(200).body["items"], json!([]));
    world.finish().await;
}

#[tokio::test]
async fn no_user_is_asked_about_a_routine_that_is_invalid() {
    let arguments = json!({"name": "news", "trigger": {"type": "cron", "schedule": "at some time"},
        "action": {"type": "lightweight", "prompt": "look"}});
    let world = World::builder().script(calling("routine_create", &arguments)).build().await;
    let ada = world.user("ada");
    turn(&ada, "go").await;
    let (success, output) = results(&ada).await.pop().expect("a call");
    assert!(!success && output.contains("trigger.schedule"), "{output}");
    world.finish().await;
}

#[tokio::test]
async fn a_model_cannot_widen_a_routine() {
    let patch = json!({"name": "news", "patch": {"notify": {"webhook_url": "https://a.example"}}});
    let (world, success, output) = called("routine_update", patch, &[manual("news")]).await;
    assert!(!success && output.contains("notify.webhook_url"), "{output}");
    world.finish().await;
}

#[rstest]
#[case(json!({"trigger": ["webhook", "path", "a secret of the model"]}))]
#[case(json!({"action": ["full_job", "t", "d", null, null, null, null, null, ["secret_list"]]}))]
#[case(json!({"notify": [null, true, true, false, "https://a.example", "a secret of the model"]}))]
#[tokio::test]
async fn a_model_cannot_widen_a_routine_by_the_order_of_fields(#[case] patch: Value) {
    let part = patch.as_object().unwrap().keys().next().unwrap().clone();
    let arguments = json!({"name": "news", "patch": patch});
    let (world, success, output) = called("routine_update", arguments, &[manual("news")]).await;
    assert!(!success && output.contains(&part), "{output}");
    let routine = world.user("ada").get("/api/routines").await.expect(200).body["items"][0].clone();
    assert_eq!((&routine["rev"], &routine["trigger"]["type"]), (&json!(1), &json!("manual")), "{routine}");
    world.finish().await;
}

#[tokio::test]
async fn a_model_changes_and_lists_routines_by_name() {
    let patch = json!({"name": "news", "patch": {"description": "d"}});
    let (world, success, output) = called("routine_update", patch, &[manual("news")]).await;
    assert!(success, "{output}");
    let page = world.user("ada").get("/api/routines").await.expect(200).body;
    assert_eq!(page["items"][0]["description"], "d");
    world.finish().await;
    let (world, success, output) = called("routine_list", json!({}), &[manual("a"), manual("b")]).await;
    assert!(success && output.contains("\"a\"") && output.contains("\"b\""), "{output}");
    world.finish().await;
    let (world, success, output) = called("routine_history", json!({"name": "other"}), &[manual("a")]).await;
    assert!(!success && output.contains("routine_list"), "{output}");
    world.finish().await;
}

#[tokio::test]
async fn a_model_fires_a_routine() {
    let (world, success, output) = called("routine_fire", json!({"name": "a"}), &[manual("a")]).await;
    assert!(success && output.contains("run_id"), "{output}");
    let ada = world.user("ada");
    tests::poll("the run to end", async || {
        let page = ada.get("/api/runs?status=ok,attention,failed").await.expect(200).body;
        page["items"].as_array().filter(|runs| runs.len() == 1).map(|_| ())
    })
    .await;
    world.finish().await;
}

#[tokio::test]
async fn deleting_a_routine_asks_every_time() {
    let world = World::builder().script(calling("routine_delete", &json!({"name": "a"}))).build().await;
    let ada = world.user("ada");
    ada.post("/api/routines", &manual("a")).await.expect(201);
    send(&ada, "go").await;
    let gate = tests::poll("a gate", async || {
        let page = ada.get("/api/gates").await.expect(200).body;
        page["items"].as_array().and_then(|gates| gates.first().cloned())
    })
    .await;
    assert_eq!((&gate["tool"], &gate["can_be_remembered"]), (&json!("routine_delete"), &json!(false)));
    let path = format!("/api/gates/{}/resolve", gate["id"].as_str().unwrap());
    ada.post(&path, &json!({"decision": "approve"})).await.expect(200);
    tests::poll("the call to end", async || results(&ada).await.pop().filter(|(success, _)| *success)).await;
    assert_eq!(ada.get("/api/routines").await.expect(200).body["items"], json!([]));
    world.finish().await;
}

/// A definition with these parts in place of valid ones, and what the model reads about it.
const WRONG: [(&str, &str); 13] = [
    (
        r#"{"trigger": {"type": "daily", "schedule": "0 9 * * *"}}"#,
        "trigger.type: must be one of cron, every, at, event, system_event, webhook, manual",
    ),
    (
        r#"{"trigger": {"type": "cron", "schedule": "every fortnight"}}"#,
        "trigger.schedule: \"fortnight\" is not an interval, \"day\", \"weekday\", \"month\" or a day of the week; use one of",
    ),
    (
        r#"{"trigger": {"type": "at", "at": "tomorrow morning"}}"#,
        "trigger.at: \"at\" needs a date and a time, such as 2030-12-01T07:00:00Z; write a time with its offset",
    ),
    (r#"{"trigger": {"type": "every"}}"#, "trigger.every_seconds: is required with the type every"),
    (
        r#"{"trigger": {"type": "cron", "schedule": "0 9 * * *", "every_seconds": 60}}"#,
        "trigger.every_seconds: the type cron has no such field; its fields are schedule, timezone",
    ),
    (
        r#"{"trigger": {"type": "cron", "schedule": "0 9 * * *", "timezone": "Mars/Olympus"}}"#,
        "trigger.timezone: unknown time zone \"Mars/Olympus\"; use an IANA name, such as Europe/Oslo or UTC",
    ),
    (r#"{"trigger": {"type": "cron", "schedule": "61 * * * *"}}"#, "trigger.schedule: not a cron expression: "),
    (
        r#"{"action": {"type": "shell", "prompt": "p"}}"#,
        "action.type: must be one of lightweight, full_job, system_event_text",
    ),
    (
        r#"{"action": {"type": "full_job", "prompt": "p"}}"#,
        "action.prompt: the type full_job has no such field; its fields are title, description, ",
    ),
    (r#"{"guardrails": {"max_concurrent": 101}}"#, "guardrails.max_concurrent: must be 1 to 100"),
    (
        r#"{"trigger": {"type": "every", "every_seconds": "often"}}"#,
        "trigger.every_seconds: must be an integer of at least 0",
    ),
    (r#"{"notify": {"on_succes": true}}"#, "notify.on_succes: unknown field; the fields are channel, on_attention"),
    (r#"{"color": "blue"}"#, "'color' was unexpected"),
];

#[tokio::test]
async fn the_errors_of_a_wrong_definition_let_a_model_correct_it() {
    let rule = |(number, (part, _)): (usize, &(&str, &str))| {
        let mut arguments = manual(&format!("wrong {number}"));
        arguments.as_object_mut().unwrap().extend(serde_json::from_str::<serde_json::Map<_, _>>(part).unwrap());
        json!({"when": {"last_message": format!("case {number}.")},
            "reply": {"text": "I will.", "tool_calls": [{"name": "routine_create", "arguments": arguments}]}})
    };
    let mut rules =
        vec![json!({"when": {"tool_name": "routine_create"}, "reply": {"text": "It said: {{tool_result}}"}})];
    rules.extend(WRONG.iter().enumerate().map(rule));
    let world = World::builder().script(script_of(&rules)).build().await;
    let ada = world.user("ada");
    for (number, (part, expected)) in WRONG.iter().enumerate() {
        turn(&ada, &format!("case {number}.")).await;
        let (success, output) = results(&ada).await.pop().expect("a call");
        assert!(!success && output.contains(expected), "{part}: {output}");
    }
    assert_eq!(ada.get("/api/routines").await.expect(200).body["items"], json!([]));
    world.finish().await;
}
