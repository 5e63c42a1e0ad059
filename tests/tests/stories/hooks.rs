//! Hooks as users, workers and a webhook's server see them.

mod receiver;

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use axum::{
    http::{StatusCode, header::LOCATION},
    response::{IntoResponse as _, Response},
};
use orchestrator::app::{App, TestOverrides, check};
use protocol::{ChatContent, ErrorCode, JobReason, JobState};
use rstest::rstest;
use serde_json::{Value, json};
use tests::{ManualWorker, User, World};

use self::receiver::json_answer;
pub(crate) use self::receiver::{Receiver, allow};

const SECRET: &str = "correct-horse-battery";
/// A rule's table.
fn rule(name: &str, point: &str, more: &str) -> String {
    format!("[[hooks]]\nname = '{name}'\npoint = '{point}'\n{more}\n")
}

async fn job(world: &World, user: &User) -> (protocol::JobId, ManualWorker) {
    let id = user.create_job("work").await;
    (id, world.manual_worker(id).await)
}

async fn store_secret(user: &User) {
    user.post("/api/secrets", &json!({"name": "TOKEN", "value": SECRET})).await.expect(201);
}

#[tokio::test]
async fn rules_deny_redact_and_allow_tool_calls() {
    let file = [
        rule("exception", "before_tool_call", "match = { tool = 'echo', text = 'friend' }\naction = 'allow'"),
        rule(
            "no-bombs",
            "before_tool_call",
            "match = { tool = 'echo', text = 'bomb' }\naction = 'deny'\nreason = 'ask ops'",
        ),
        rule("cards", "before_tool_call", "match = { text = '[0-9]{4}' }\naction = 'redact'"),
        rule("names", "after_tool_call", "match = { tool = 'echo', text = 'Ada' }\naction = 'redact'"),
        rule("results", "after_tool_call", "match = { text = 'top secret' }\naction = 'deny'"),
    ];
    let world = World::builder().config_file(file.concat()).build().await;
    let ada = world.user("ada");
    let (id, worker) = job(&world, &ada).await;
    let echo = async |call: &str, message: &str| worker.tool("echo", call, json!({"message": message})).await.body;
    let denied = echo("t1", "a bomb").await;
    assert_eq!(denied["error"]["kind"], "not_authorized", "{denied:#}");
    assert_eq!(denied["error"]["message"], "refused by the hook no-bombs: ask ops");
    assert_eq!(echo("t2", "a bomb of a friend, 1234").await["output"], "a bomb of a friend, 1234");
    assert_eq!(echo("t3", "card 1234").await["output"], "card [redacted]");
    assert_eq!(echo("t4", "I am Ada").await["output"], "I am [redacted]");
    let withheld = echo("t5", "top secret").await;
    assert_eq!(withheld["error"]["message"], "refused by the hook results", "{withheld:#}");
    let query = json!({"operation": "parse", "text": "\"bomb\""});
    assert_eq!(worker.tool("json", "t6", query).await.body["output"], "bomb");
    worker.finish("done").await;
    let actions = ada.get(&format!("/api/jobs/{id}/actions")).await.expect(200).body["items"].clone();
    assert_eq!(actions.as_array().map(Vec::len), Some(6), "a refused call has its row: {actions:#}");
    assert!(!actions.to_string().contains("card 1234"), "the row has what ran: {actions:#}");
    world.finish().await;
}

/// The server does what the message says.
fn obey(parameters: &Value) -> Response {
    let message = parameters["message"].as_str().or(parameters["content"].as_str()).unwrap_or_default().to_owned();
    let changed = |value: Value| json!({"decision": "allow", "parameters": {"message": value}});
    match message.as_str() {
        "deny" => json_answer(&json!({"decision": "deny", "reason": "not\nthis"})),
        "fail" => (StatusCode::INTERNAL_SERVER_ERROR, allow()).into_response(),
        "html" => "<html>".into_response(),
        "nothing" => StatusCode::NO_CONTENT.into_response(),
        "redirect" => (StatusCode::TEMPORARY_REDIRECT, [(LOCATION, "/elsewhere")], allow()).into_response(),
        "flood" => format!("{{\"decision\": \"allow\", \"reason\": \"{}\"}}", "x".repeat(3 << 20)).into_response(),
        "no object" => json_answer(&json!({"decision": "allow", "parameters": ["x"]})),
        "change" => json_answer(&changed(json!("changed"))),
        "break" => json_answer(&changed(json!({"not": "a string"}))),
        _ => allow(),
    }
}

#[rstest]
#[case::closed("", false)]
#[case::open("on_failure = 'open'", true)]
#[tokio::test]
async fn a_webhook_decides_about_tool_calls(#[case] more: &str, #[case] is_open: bool) {
    let receiver = Receiver::start(obey).await;
    let world = World::builder().config_file(receiver.hook("before_tool_call", more)).build().await;
    let ada = world.user("ada");
    let (id, worker) = job(&world, &ada).await;
    let echo = async |call: &str, message: &str| worker.tool("echo", call, json!({"message": message})).await.body;
    assert_eq!(echo("ok", "hello").await["output"], "hello");
    assert_eq!(echo("changed", "change").await["output"], "changed");
    let denied = echo("denied", "deny").await;
    assert_eq!(denied["error"]["message"], "refused by the hook guard: not this", "{denied:#}");
    assert_eq!(denied["error"]["kind"], "not_authorized");
    assert_eq!(echo("broken", "break").await["error"]["kind"], "invalid_parameters");
    for behaviour in ["fail", "html", "nothing", "redirect", "flood", "no object", "be slow"] {
        // Failed calls are limited to a few in a second.
        let reply = tests::poll("the call to be accepted", async || {
            let reply = worker.tool("echo", behaviour, json!({"message": behaviour})).await;
            (reply.status.as_u16() == 200).then_some(reply.body)
        })
        .await;
        if is_open {
            assert_eq!(reply["output"], behaviour);
        } else {
            let message = reply["error"]["message"].as_str().unwrap_or_default();
            assert!(message.contains("guard must allow this and did not answer"), "{behaviour}: {reply:#}");
        }
    }
    worker.finish("done").await;
    let data = receiver.bodies()[0].clone();
    assert_eq!(data["type"], "before_tool_call");
    let expected = json!({
        "hook": "guard", "user": "ada", "job_id": id, "tool": "echo", "call_id": "ok", "parameters": {"message": "hello"}
    });
    assert_eq!(data["data"], expected);
    world.finish().await;
}

/// The tool finds its value only with the secret that the webhook did not see.
#[tokio::test]
async fn a_webhook_sees_no_secret_and_what_it_leaves_keeps_its_value() {
    let pretty = |parameters: &Value| {
        let mut parameters = parameters.clone();
        parameters["pretty"] = json!(true);
        json_answer(&json!({"decision": "allow", "parameters": parameters}))
    };
    let receiver = Receiver::start(pretty).await;
    let world = World::builder().config_file(receiver.hook("before_tool_call", "")).build().await;
    let ada = world.user("ada");
    store_secret(&ada).await;
    let (_, worker) = job(&world, &ada).await;
    let text = r#"{"\u0063orrect-horse-battery": 7}"#;
    let query = json!({"operation": "query", "text": text, "pointer": format!("/{SECRET}")});
    assert_eq!(worker.tool("json", "t1", query).await.body["output"], "7");
    worker.finish("done").await;
    let bodies = receiver.bodies();
    assert_eq!(bodies[0]["data"]["parameters"]["pointer"], "/[redacted:TOKEN]");
    assert!(!json!(bodies).to_string().contains(SECRET), "{bodies:#?}");
    world.finish().await;
}

#[tokio::test]
async fn a_webhook_gets_a_result_as_it_is_shown_and_may_replace_it() {
    let replace = |parameters: &Value| {
        let text = parameters["content"].as_str().unwrap_or_default().to_uppercase();
        json_answer(&json!({"decision": "allow", "parameters": {"content": text}}))
    };
    let receiver = Receiver::start(replace).await;
    let world = World::builder().config_file(receiver.hook("after_tool_call", "match = { tool = 'e*' }")).build().await;
    let ada = world.user("ada");
    store_secret(&ada).await;
    let (_, worker) = job(&world, &ada).await;
    let reply = worker.tool("echo", "t1", json!({"message": format!("it is {SECRET}")})).await.body;
    assert_eq!(reply["output"], "IT IS [REDACTED]");
    let data = receiver.bodies()[0]["data"].clone();
    assert_eq!(data["input"], json!({"message": "it is [redacted:TOKEN]"}));
    assert_eq!(data["parameters"], json!({"content": "it is [redacted]"}));
    worker.finish("done").await;
    world.finish().await;
}

#[tokio::test]
async fn prompts_are_asked_about_before_they_are_stored() {
    let file = [
        rule("polite", "inbound_message", "match = { text = 'please not' }\naction = 'deny'\nreason = 'as you say'"),
        rule("numbers", "inbound_message", "match = { text = '[0-9]{4}' }\naction = 'redact'"),
        rule("empty", "inbound_message", "match = { text = '^all$' }\naction = 'redact'"),
    ];
    let receiver = Receiver::start(|parameters| match parameters["content"].as_str() {
        Some("nothing") => json_answer(&json!({"decision": "allow", "parameters": {"content": ""}})),
        _ => allow(),
    })
    .await;
    let file = file.concat() + &receiver.hook("inbound_message", "");
    let world = World::builder().config_file(file).build().await;
    let ada = world.user("ada");
    store_secret(&ada).await;
    let denied = ada.post("/api/jobs", &json!({"prompt": "please not"})).await.problem(ErrorCode::HookDenied);
    assert_eq!(denied.body["detail"], "refused by the hook polite: as you say");
    let slow = ada.post("/api/jobs", &json!({"prompt": "be slow"})).await.problem(ErrorCode::Unavailable);
    assert!(slow.header("retry-after").is_some());
    // What a hook makes of a prompt is validated.
    let invalid = ada.post("/api/jobs", &json!({"prompt": "nothing"})).await.problem(ErrorCode::Invalid);
    assert_eq!(invalid.fields(), ["prompt"]);
    assert!(ada.jobs().await.is_empty(), "nothing is stored");

    let prompt = format!("card 1234 and {SECRET}");
    let id = ada.create_job(&prompt).await;
    assert_eq!(ada.job(id).await.prompt, "card [redacted] and [redacted]");
    let own = format!("the key is {SECRET}");
    let kept = ada.create_job(&own).await;
    assert_eq!(ada.job(kept).await.prompt, own, "an unchanged prompt stays as it is");
    let worker = world.manual_worker(id).await;
    ada.prompt(id, json!({"content": "please not"})).await.problem(ErrorCode::HookDenied);
    ada.prompt(id, json!({"content": "card 1234"})).await.expect(202);
    let prompt = worker.prompt(protocol::PromptId::nil(), 10).await.unwrap();
    assert_eq!(prompt.content, "card [redacted]");
    worker.prompt(prompt.prompt_id, 0).await;
    worker.report(json!({"outcome": "failed", "message": "stopped", "text": "", "iterations": 1})).await.expect(200);
    worker.exit(1);
    ada.wait_for_end(id).await;
    let restart = ada.post(&format!("/api/jobs/{id}/restart"), &json!({"prompt": "please not"})).await;
    restart.problem(ErrorCode::HookDenied);
    world.manual_worker(kept).await.finish("done").await;
    let bodies = json!(receiver.bodies()).to_string();
    assert!(!bodies.contains(SECRET), "{bodies}");
    world.finish().await;
}

#[tokio::test]
async fn texts_for_people_are_asked_about() {
    let file = [
        rule(
            "internal",
            "outbound_message",
            "match = { text = 'internal' }\naction = 'deny'\nreason = 'not for users'",
        ),
        rule("names", "outbound_message", "match = { text = 'Ada' }\naction = 'redact'"),
    ];
    let world = World::builder().config_file(file.concat()).build().await;
    let ada = world.user("ada");
    for (text, expected) in [
        ("for all", "for all"),
        ("by Ada", "by [redacted]"),
        ("an internal matter", "[withheld: refused by the hook internal: not for users]"),
    ] {
        let (id, worker) = job(&world, &ada).await;
        worker.finish(text).await;
        let result = ada.wait_for_end(id).await.result.unwrap();
        assert_eq!(result.text.as_deref(), Some(expected));
    }
    let (id, worker) = job(&world, &ada).await;
    let partial = json!({"text": "by Ada", "last_actions": [], "iterations": 1, "tool_calls": 0, "usage": {}});
    let report = json!({"outcome": "failed", "message": "no", "text": "by Ada", "partial": partial});
    worker.report(report).await.expect(200);
    worker.exit(1);
    let job = serde_json::to_string(&ada.wait_for_end(id).await).unwrap();
    assert!(job.contains("by [redacted]") && !job.contains("by Ada"), "{job}");

    let (_, worker) = self::job(&world, &ada).await;
    let message =
        async |call: &str, content: &str| worker.tool("message", call, json!({"content": content})).await.body;
    assert_eq!(message("m1", "an internal matter").await["error"]["kind"], "not_authorized");
    assert_eq!(message("m2", "by Ada").await["success"], true);
    worker.finish("done").await;
    let items = ada.get("/api/notifications").await.expect(200).body["items"].clone();
    assert_eq!(items.as_array().map(Vec::len), Some(1), "{items:#}");
    assert!(items.to_string().contains("by [redacted]"), "{items:#}");
    world.finish().await;
}

#[tokio::test]
async fn messages_of_a_chat_are_asked_about() {
    let file = [
        rule("polite", "inbound_message", "match = { text = 'please not' }\naction = 'deny'"),
        rule("numbers", "inbound_message", "match = { text = '[0-9]{4}' }\naction = 'redact'"),
        rule("names", "outbound_message", "match = { text = 'Ada' }\naction = 'redact'"),
        rule("internal", "outbound_message", "match = { text = 'internal' }\naction = 'deny'"),
    ];
    let world = World::builder().config_file(file.concat()).build().await;
    let ada = world.user("ada");
    let content = |content: &str| json!({"content": content});
    ada.post("/api/chat/send", &content("please not")).await.problem(ErrorCode::HookDenied);
    for (message, stored, answer) in [
        ("card 1234", "card [redacted]", "You said: card [redacted]"),
        ("I am Ada", "I am Ada", "You said: I am [redacted]"),
        ("internal", "internal", "[withheld: refused by the hook internal]"),
    ] {
        crate::chat::send(&ada, message).await;
        let history = tests::poll(answer, async || {
            let history = crate::chat::history(&ada).await;
            crate::chat::answers(&history).contains(&answer).then_some(history)
        })
        .await;
        assert!(!serde_json::to_string(&history).unwrap().contains("You said: I am Ada"), "{history:#?}");
        let user = |content: &ChatContent| matches!(content, ChatContent::User { content } if content == stored);
        assert!(history.messages.iter().any(|message| user(&message.content)), "{history:#?}");
    }
    world.finish().await;
}

#[rstest]
#[case("inbound_message")]
#[case("outbound_message")]
#[tokio::test]
async fn a_secret_in_the_text_of_a_webhook_is_not_shown(#[case] point: &str) {
    let answer = |parameters: &Value| {
        let text = format!("{} {SECRET}", parameters["content"].as_str().unwrap());
        json_answer(&json!({"decision": "allow", "parameters": {"content": text}}))
    };
    let receiver = Receiver::start(answer).await;
    let world = World::builder().config_file(receiver.hook(point, "")).build().await;
    let ada = world.user("ada");
    store_secret(&ada).await;
    let history = crate::chat::turn(&ada, "hello").await;
    let text = serde_json::to_string(&history).unwrap();
    assert!(text.contains("[redacted]") && !text.contains(SECRET), "{history:#?}");
    world.finish().await;
}

#[tokio::test]
async fn a_job_starts_if_the_hooks_allow_it() {
    let answers = Arc::new(AtomicUsize::new(0));
    let asked = Arc::clone(&answers);
    // Does not answer the first time.
    let first_fails = move |_: &Value| match asked.fetch_add(1, Ordering::SeqCst) {
        0 => StatusCode::SERVICE_UNAVAILABLE.into_response(),
        _ => allow(),
    };
    let receiver = Receiver::start(first_fails).await;
    let file = rule("night", "job_start", "match = { user = 'bob' }\naction = 'deny'\nreason = 'closed'")
        + &receiver.hook("job_start", "");
    let world = World::builder().config_file(file).build().await;
    let bob = world.user("bob");
    let id = bob.create_job("work").await;
    let job = bob.wait_for_end(id).await;
    assert_eq!((job.state, job.reason, job.attempt), (JobState::Failed, Some(JobReason::Rejected), 0));
    assert_eq!(job.message.as_deref(), Some("refused by the hook night: closed"));
    let ada = world.user("ada");
    let id = ada.create(json!({"prompt": "work", "tools": ["echo"]})).await;
    // It waits in the queue until the hook answers.
    world.manual_worker(id).await.finish("done").await;
    ada.wait_for_end(id).await;
    assert_eq!(answers.load(Ordering::SeqCst), 2);
    let data = receiver.bodies()[1]["data"].clone();
    assert_eq!((&data["user"], &data["job_id"]), (&json!("ada"), &json!(id)));
    assert_eq!((&data["parameters"]["prompt"], &data["parameters"]["tools"]), (&json!("work"), &json!(["echo"])));
    world.finish().await;
}

#[tokio::test]
async fn every_end_of_a_job_is_announced() {
    let receiver = Receiver::start(|_| StatusCode::NO_CONTENT.into_response()).await;
    let world = World::builder().config_file(receiver.hook("job_end", "")).build().await;
    let ada = world.user("ada");
    store_secret(&ada).await;
    let (completed, worker) = job(&world, &ada).await;
    worker.finish(&format!("it is {SECRET}")).await;
    ada.wait_for_end(completed).await;
    let held = ada.create(json!({"prompt": "work", "title": format!("with {SECRET}"), "hold": true})).await;
    ada.cancel(held).await.expect(202);
    ada.wait_for_end(held).await;
    let reviewed = ada.create(json!({"prompt": "work", "review": true})).await;
    world.manual_worker(reviewed).await.finish("to review").await;
    ada.wait_for(reviewed, JobState::Submitted).await;
    tests::until("two announcements", async || receiver.bodies().len() == 2).await;
    ada.post(&format!("/api/jobs/{reviewed}/accept"), &json!({})).await.expect(200);
    tests::until("the announcement of the reviewed job", async || receiver.bodies().len() == 3).await;
    let ended = |body: &Value| (body["data"]["job_id"].clone(), body["data"]["parameters"]["state"].clone());
    let announced: Vec<_> = receiver.bodies().iter().map(ended).collect();
    for expected in [(completed, "completed"), (held, "cancelled"), (reviewed, "accepted")] {
        assert!(announced.contains(&(json!(expected.0), json!(expected.1))), "{announced:?}");
    }
    let bodies = json!(receiver.bodies()).to_string();
    assert!(bodies.contains("it is [redacted]") && bodies.contains("with [redacted]"), "{bodies}");
    assert!(!bodies.contains(SECRET), "{bodies}");
    world.finish().await;
}

#[rstest]
#[case("https://bob:hunter2@hooks.example/", "user or password")]
#[case("file:///etc/passwd", "begin with")]
#[tokio::test]
async fn an_invalid_url_stops_the_start(#[case] url: &str, #[case] expected: &str) {
    let mut world = World::builder().config_file(rule("a", "job_start", "action = 'allow'")).build().await;
    world.stop().await;
    let receiver = Receiver::start(|_| allow()).await;
    let good = receiver.hook("job_start", "");
    let other = World::builder().config_file(good).build().await;
    let mut hooks = other.config().hooks.clone();
    other.finish().await;
    if let orchestrator::config::HookAction::Webhook(webhook) = &mut hooks[0].action {
        url.clone_into(&mut webhook.url);
    }
    world.configure(|config| config.hooks = hooks);
    // `gantry config` finds it before the server is replaced.
    assert!(check(world.config()).is_err_and(|error| error.to_string().contains(expected)));
    let error = match App::build(world.config().clone(), TestOverrides::default()).await {
        Ok(_) => panic!("the daemon was built"),
        Err(error) => error.to_string(),
    };
    assert!(error.starts_with("hooks: guard: ") && error.contains(expected) && !error.contains("hunter2"), "{error}");
    world.configure(|config| config.hooks.clear());
    world.start().await;
    world.finish().await;
}
