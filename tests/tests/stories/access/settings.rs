//! A user's settings.

use orchestrator::auth::Role;
use protocol::{AuditRecord, ErrorCode, Page};
use reqwest::Method;
use rstest::rstest;
use serde_json::{Value, json};
use tests::{Reply, User, World, install::program};

async fn put(user: &User, body: &Value) -> Reply {
    Reply::of(user.request(Method::PUT, "/api/settings").json(body)).await
}

async fn get(user: &User) -> Value {
    user.get("/api/settings").await.expect(200).body
}

fn defaults() -> Value {
    json!({"model": null, "temperature": null, "timezone": null, "quiet_hours": null, "heartbeat_every_seconds": null})
}

#[tokio::test]
async fn settings_are_replaced_as_a_whole_and_belong_to_their_user() {
    let mut world = World::builder().set("GANTRY_LLM_MODELS", "large").build().await;
    let (ada, bob, viewer) = (world.user("ada"), world.user("bob"), world.someone("ada", Role::Viewer));
    assert_eq!(get(&ada).await, defaults());
    let settings = json!({"model": "large", "temperature": 0.5, "timezone": "Europe/Oslo",
        "quiet_hours": {"from": "22:00", "to": "07:00"}, "heartbeat_every_seconds": 1800});
    assert_eq!(put(&ada, &settings).await.expect(200).body, settings);
    assert_eq!(
        (get(&ada).await, get(&viewer).await, get(&bob).await),
        (settings.clone(), settings.clone(), defaults())
    );
    put(&viewer, &defaults()).await.problem(ErrorCode::Forbidden);
    world.anonymous().get("/api/settings").await.problem(ErrorCode::Unauthorized);
    world.restart().await;
    let ada = world.user("ada");
    assert_eq!(get(&ada).await, settings);
    let mut rest = defaults();
    rest["temperature"] = json!(1.0);
    assert_eq!(put(&ada, &json!({"temperature": 1.0})).await.expect(200).body, rest);
    assert_eq!(get(&ada).await, rest);
    let root = world.someone("root", Role::Admin);
    let page: Page<AuditRecord> = root.get("/api/audit?action=settings.put").await.expect(200).json();
    let rows: Vec<_> = page.items.iter().rev().map(|row| (row.user.as_str(), row.code.as_deref())).collect();
    assert_eq!(rows, [("ada", None), ("ada", Some("forbidden")), ("ada", None)]);
    world.finish().await;
}

#[tokio::test]
async fn a_job_that_names_no_model_gets_its_owners() {
    let mut world = World::builder().set("GANTRY_LLM_MODELS", "large,small").build().await;
    put(&world.user("ada"), &json!({"model": "large"})).await.expect(200);
    let model = async |user: &User, body: Value| {
        let id = user.create(body).await;
        let model = user.job(id).await.model;
        user.cancel(id).await.expect(202);
        user.wait_for_end(id).await;
        model
    };
    let (ada, bob) = (world.user("ada"), world.user("bob"));
    let default = model(&bob, json!({"prompt": "work"})).await;
    assert_eq!(model(&ada, json!({"prompt": "work"})).await, "large");
    assert_eq!(model(&ada, json!({"prompt": "work", "model": "small"})).await, "small");
    // A model that the operator no longer offers does not stop the user's jobs.
    world.stop().await;
    world.configure(|config| config.llm.models.clear());
    world.start().await;
    assert_eq!(model(&world.user("ada"), json!({"prompt": "work"})).await, default);
    world.finish().await;
}

#[rstest]
#[case(json!({"model": "other"}), "model")]
#[case(json!({"temperature": 2.5}), "temperature")]
#[case(json!({"temperature": "hot"}), "temperature")]
#[case(json!({"timezone": "Europe/Atlantis"}), "timezone")]
#[case(json!({"timezone": ["UTC"]}), "timezone")]
#[case(json!({"quiet_hours": {"from": "22:00"}}), "quiet_hours.to")]
#[case(json!({"quiet_hours": {"from": "22:00", "to": "24:00"}}), "quiet_hours.to")]
#[case(json!({"quiet_hours": {"from": "22:00", "to": "22:00"}}), "quiet_hours")]
#[case(json!({"quiet_hours": ["22:00", "07:00"]}), "quiet_hours")]
#[case(json!({"heartbeat_every_seconds": 59}), "heartbeat_every_seconds")]
#[case(json!({"heartbeat_every_seconds": -1}), "heartbeat_every_seconds")]
#[case(json!({"colour": "blue"}), "colour")]
#[tokio::test]
async fn an_invalid_setting_is_named_and_nothing_changes(#[case] body: Value, #[case] field: &str) {
    let world = World::new().await;
    let ada = world.user("ada");
    let reply = put(&ada, &body).await.problem(ErrorCode::Invalid);
    assert_eq!(reply.fields(), [field], "{:#}", reply.body);
    assert_eq!(get(&ada).await, defaults());
    world.finish().await;
}

#[tokio::test]
async fn a_change_from_settings_that_have_changed_meanwhile_is_refused() {
    let world = World::new().await;
    let (ada, bob) = (world.user("ada"), world.user("bob"));
    let tag = async || ada.get("/api/settings").await.expect(200).header("etag").unwrap().to_owned();
    let put_if = async |tag: &str, zone: &str| {
        let request = ada.request(Method::PUT, "/api/settings").header("If-Match", tag);
        Reply::of(request.json(&json!({"timezone": zone}))).await
    };
    let unset = tag().await;
    let first = put_if(&unset, "Europe/Oslo").await.expect(200).header("etag").unwrap().to_owned();
    assert_eq!(tag().await, first);
    assert_ne!(first, unset);
    // Another tab read them before that.
    put_if(&unset, "Asia/Tokyo").await.problem(ErrorCode::PreconditionFailed);
    put_if("yesterday", "Asia/Tokyo").await.problem(ErrorCode::BadRequest);
    assert_eq!(get(&ada).await["timezone"], "Europe/Oslo");
    for tag in [first.as_str(), "*"] {
        put_if(tag, "Asia/Tokyo").await.expect(200);
    }
    put(&ada, &json!({})).await.expect(200);
    assert_eq!((get(&ada).await, get(&bob).await), (defaults(), defaults()));
    put_if(&first, "Europe/Oslo").await.problem(ErrorCode::PreconditionFailed);
    world.finish().await;
}

#[tokio::test]
async fn the_command_line_shows_and_changes_settings() {
    let world = World::new().await;
    let ada = world.user("ada");
    let variables = [("GANTRY_URL", ada.base().to_owned()), ("GANTRY_TOKEN", world.fresh("ada", Role::User))];
    let environment = variables.map(|(name, value)| (name.to_owned(), value));
    let run = async |arguments: &[&str]| program::run(arguments, &environment).await;
    let set = run(&["--json", "settings", "set", "--timezone", "Europe/Oslo", "--quiet-hours", "22:00-07:00"]).await;
    assert_eq!(set.json()["quiet_hours"], json!({"from": "22:00", "to": "07:00"}), "{set:?}");
    let set = run(&["settings", "set", "--heartbeat-every", "1h", "--reset", "quiet-hours"]).await;
    assert_eq!(set.code, Some(0), "{set:?}");
    let mut expected = defaults();
    (expected["timezone"], expected["heartbeat_every_seconds"]) = (json!("Europe/Oslo"), json!(3_600));
    assert_eq!((get(&ada).await, run(&["--json", "settings", "show"]).await.json()), (expected.clone(), expected));
    assert!(run(&["settings", "show"]).await.stdout.contains("Europe/Oslo"));
    let refused = run(&["settings", "set", "--model", "other"]).await;
    assert_eq!(refused.code, Some(2), "{refused:?}");
    assert!(refused.stderr.contains("model: must be one of scripted"), "{refused:?}");
    world.finish().await;
}
