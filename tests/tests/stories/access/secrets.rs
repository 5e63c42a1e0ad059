//! Secrets: values that go in and never come back, sealed in the database.

use std::{fs, path::Path};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use orchestrator::{
    app::{App, TestOverrides},
    auth::Role,
    secrets::{KeySource, NamedSecret, Secrets},
    store::backup,
};
use protocol::{AuditOutcome, AuditRecord, ErrorCode, Page, SecretSummary};
use rstest::rstest;
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};
use tests::{Reply, User, World, install::program};

use crate::worker_api::running_job;

/// Long enough not to occur by chance, in any encoding.
const VALUE: &str = "ghp_correct-horse/battery+staple";

async fn set(user: &User, name: &str, value: &str) -> SecretSummary {
    user.post("/api/secrets", &json!({"name": name, "value": value})).await.expect(201).json()
}

async fn names(user: &User) -> Vec<String> {
    let page: Page<SecretSummary> = user.get("/api/secrets?limit=200").await.expect(200).json();
    page.items.into_iter().map(|secret| secret.name).collect()
}

async fn delete(user: &User, name: &str) -> Reply {
    Reply::of(user.request(reqwest::Method::DELETE, &format!("/api/secrets/{name}"))).await
}

/// The values as the orchestrator opens them.
async fn values(world: &World, owner: &str) -> Vec<(String, String)> {
    let store = world.store().await;
    let config = world.config();
    let source = KeySource::new(config.master_key.as_ref(), &config.data_dir);
    let secrets = Secrets::open(store.clone(), &source).await.expect("the key opens the secrets");
    let values = secrets.values_of(owner).await.expect("the database responds");
    store.close().await;
    let text = |one: &NamedSecret| (one.name.clone(), one.value.expose_secret().to_owned());
    values.iter().map(text).collect()
}

fn pair(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

#[tokio::test]
async fn a_user_sees_the_names_of_its_own_secrets_and_no_value() {
    let world = World::new().await;
    let (ada, bob, root) = (world.user("ada"), world.user("bob"), world.someone("root", Role::Admin));
    let created = set(&ada, "GITHUB_TOKEN", "the first value").await;
    assert_eq!((created.name.as_str(), created.created_at), ("GITHUB_TOKEN", created.updated_at));
    set(&ada, "a.b-c", VALUE).await;
    set(&bob, "GITHUB_TOKEN", "the value of bob").await;
    let replaced = set(&ada, "GITHUB_TOKEN", VALUE).await;
    assert_eq!(replaced.created_at, created.created_at);
    assert!(replaced.updated_at > created.updated_at);
    let listed = ada.get("/api/secrets").await.expect(200);
    assert_eq!(listed.body["items"][0], serde_json::to_value(&replaced).unwrap());
    assert_eq!(listed.body["items"][0].as_object().unwrap().len(), 4, "{:#}", listed.body);
    assert!(!listed.body.to_string().contains(VALUE));
    assert_eq!(names(&ada).await, ["GITHUB_TOKEN", "a.b-c"]);
    assert_eq!(values(&world, "ada").await, [pair("GITHUB_TOKEN", VALUE), pair("a.b-c", VALUE)]);
    // A list in pages, by name.
    let first: Page<SecretSummary> = ada.get("/api/secrets?limit=1").await.expect(200).json();
    let next = first.next_cursor.expect("a second page");
    let second: Page<SecretSummary> = ada.get(&format!("/api/secrets?limit=1&cursor={next}")).await.expect(200).json();
    assert_eq!((second.items[0].name.as_str(), second.next_cursor), ("a.b-c", None));
    // Another user's secret is like a missing one, for an admin too.
    for other in [&bob, &root] {
        assert!(!names(other).await.contains(&"a.b-c".to_owned()));
        delete(other, "a.b-c").await.problem(ErrorCode::NotFound);
    }
    ada.get("/api/secrets/a.b-c").await.problem(ErrorCode::MethodNotAllowed);
    delete(&ada, "GITHUB_TOKEN").await.expect(204);
    delete(&ada, "GITHUB_TOKEN").await.problem(ErrorCode::NotFound);
    assert_eq!((names(&ada).await, names(&bob).await), (vec!["a.b-c".to_owned()], vec!["GITHUB_TOKEN".to_owned()]));
    world.finish().await;
}

#[tokio::test]
async fn a_secret_keeps_the_hosts_that_it_is_for_until_others_are_named() {
    let world = World::new().await;
    let ada = world.user("ada");
    let hosts = async |body: &Value| ada.post("/api/secrets", body).await.expect(201).body["hosts"].clone();
    assert_eq!(hosts(&json!({"name": "A", "value": VALUE})).await, json!([]));
    let named = json!({"name": "A", "value": VALUE, "hosts": ["API.example.org", "[2001:0db8::1]"]});
    assert_eq!(hosts(&named).await, json!(["api.example.org", "[2001:db8::1]"]));
    assert_eq!(
        hosts(&json!({"name": "A", "value": "another value"})).await,
        json!(["api.example.org", "[2001:db8::1]"])
    );
    assert_eq!(ada.get("/api/secrets").await.expect(200).body["items"][0]["hosts"][0], "api.example.org");
    assert_eq!(hosts(&json!({"name": "A", "value": VALUE, "hosts": []})).await, json!([]));
    for (wrong, field) in [
        (json!(["*.example.org"]), "hosts[0]"),
        (json!(["example.org", "example.org:443"]), "hosts[1]"),
        (json!(["https://example.org"]), "hosts[0]"),
        (json!(["127.1"]), "hosts[0]"),
        (json!([""]), "hosts[0]"),
        (Value::from(vec!["example.org"; 21]), "hosts"),
    ] {
        let body = json!({"name": "A", "value": "a third value", "hosts": wrong});
        let problem = ada.post("/api/secrets", &body).await.problem(ErrorCode::Invalid);
        assert_eq!(problem.body["errors"][0]["field"], field, "{:#}", problem.body);
    }
    ada.post("/api/secrets", &json!({"name": "A", "value": "a third value", "hosts": "x"}))
        .await
        .problem(ErrorCode::Invalid);
    assert_eq!(values(&world, "ada").await, [pair("A", VALUE)]);
    world.finish().await;
}

#[tokio::test]
async fn a_viewer_lists_secrets_and_changes_none() {
    let world = World::new().await;
    let (ada, viewer) = (world.user("ada"), world.someone("ada", Role::Viewer));
    set(&ada, "TOKEN", VALUE).await;
    assert_eq!(names(&viewer).await, ["TOKEN"]);
    viewer
        .post("/api/secrets", &json!({"name": "TOKEN", "value": "another value"}))
        .await
        .problem(ErrorCode::Forbidden);
    delete(&viewer, "TOKEN").await.problem(ErrorCode::Forbidden);
    world.anonymous().get("/api/secrets").await.problem(ErrorCode::Unauthorized);
    assert_eq!(values(&world, "ada").await, [pair("TOKEN", VALUE)]);
    world.finish().await;
}

#[tokio::test]
async fn a_refused_secret_is_not_repeated_to_the_caller() {
    let world = World::new().await;
    let ada = world.user("ada");
    let too_long = format!("{VALUE}{}", "x".repeat(65_536 - VALUE.len() + 1));
    for (name, value, field) in [
        ("TOKEN", "hunter2", "value"),
        ("TOKEN", &too_long, "value"),
        ("", VALUE, "name"),
        ("a b", VALUE, "name"),
        ("../TOKEN", VALUE, "name"),
        ("ÄÖÜ", VALUE, "name"),
        (&"x".repeat(65), VALUE, "name"),
    ] {
        let reply = ada.post("/api/secrets", &json!({"name": name, "value": value})).await.problem(ErrorCode::Invalid);
        assert_eq!(reply.fields(), [field], "{:#}", reply.body);
        let text = reply.body.to_string();
        assert!(!text.contains("hunter") && !text.contains("ghp_"), "{text}");
    }
    for body in [
        json!({"name": "TOKEN", "value": [VALUE]}),
        json!({"name": "TOKEN", VALUE: "value"}),
        json!({"name": "TOKEN", "value": VALUE, "more": VALUE}),
        json!(VALUE),
    ] {
        let reply = ada.post("/api/secrets", &body).await.problem(ErrorCode::Invalid);
        assert!(!reply.body.to_string().contains("ghp_"), "{:#}", reply.body);
    }
    ada.post_raw("/api/secrets", &format!("{{\"name\": \"{VALUE}")).await.problem(ErrorCode::BadRequest);
    for size in [8, 65_536] {
        set(&ada, &format!("of{size}"), &"ä-1".repeat(size / 4)).await;
    }
    assert_eq!(names(&ada).await, ["of65536", "of8"]);
    world.finish().await;
}

#[tokio::test]
async fn a_value_that_ordinary_text_contains_is_stored_only_with_force() {
    let world = World::new().await;
    let ada = world.user("ada");
    let token = world.fresh("ada", Role::User);
    let as_ada = environment(&world, &[("GANTRY_URL", ada.base()), ("GANTRY_TOKEN", &token)]);
    for value in [
        "production",
        "Production",
        "PASSWORD",
        "password123",
        "Summer2026!",
        "authentication",
        "weathervane",
        "20261127",
    ] {
        let body = json!({"name": "DB_ENV", "value": value});
        let refused = ada.post("/api/secrets", &body).await.problem(ErrorCode::WeakSecret);
        let detail = refused.body["detail"].as_str().unwrap();
        assert!(refused.status == 422 && detail.contains("--force") && !detail.contains(value), "{detail}");
        ada.post("/api/secrets", &json!({"name": "DB_ENV", "value": value, "force": false}))
            .await
            .problem(ErrorCode::WeakSecret);
        let refused = program::run_with_input(&["secret", "set", "DB_ENV"], &as_ada, value).await;
        assert!(refused.code == Some(2) && refused.stderr.contains("--force"), "{refused:?}");
    }
    assert_eq!(names(&ada).await, Vec::<String>::new());
    ada.post("/api/secrets", &json!({"name": "DB_ENV", "value": "production", "force": true})).await.expect(201);
    let stored = program::run_with_input(&["secret", "set", "DAY", "--force"], &as_ada, "20261127").await;
    assert_eq!(stored.code, Some(0), "{stored:?}");
    assert_eq!(values(&world, "ada").await, [pair("DAY", "20261127"), pair("DB_ENV", "production")]);
    // What it changes names it.
    let id = ada.create(json!({"prompt": "work"})).await;
    let worker = world.manual_worker(id).await;
    worker.tool("echo", "t1", json!({"message": "cat /etc/production/app.toml"})).await.expect(200);
    worker.finish("done").await;
    ada.wait_for_end(id).await;
    let actions = ada.get(&format!("/api/jobs/{id}/actions")).await.expect(200).body;
    assert_eq!(actions["items"][0]["input"]["message"], "cat /etc/[redacted:DB_ENV]/app.toml", "{actions:#}");
    world.finish().await;
}

#[tokio::test]
async fn a_user_has_at_most_200_secrets() {
    let world = World::new().await;
    let ada = world.user("ada");
    for n in 0..200 {
        set(&ada, &format!("S{n}"), VALUE).await;
    }
    let body = json!({"name": "one.more", "value": VALUE});
    let refused = ada.post("/api/secrets", &body).await.problem(ErrorCode::Conflict);
    assert!(refused.body["detail"].as_str().unwrap().contains("delete one"), "{:#}", refused.body);
    set(&ada, "S7", "another value").await;
    set(&world.user("bob"), "TOKEN", VALUE).await;
    delete(&ada, "S0").await.expect(204);
    set(&ada, "one.more", VALUE).await;
    world.finish().await;
}

/// Every file below a directory with its content.
fn files(directory: &Path, found: &mut Vec<(String, Vec<u8>)>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else if path.is_file() {
            found.push((path.display().to_string(), fs::read(&path).unwrap()));
        }
    }
}

fn contains(bytes: &[u8], text: &[u8]) -> bool {
    bytes.windows(text.len()).any(|window| window == text)
}

#[tokio::test]
async fn no_file_and_no_table_contains_a_value_in_any_encoding() {
    let mut world = World::new().await;
    let ada = world.user("ada");
    for name in ["TOKEN", "OTHER", "TOKEN"] {
        ada.post_once("/api/secrets", "k", &json!({"name": name, "value": VALUE})).await.expect(201);
    }
    delete(&ada, "OTHER").await.expect(204);
    let copy = world.directory().join("data/copy.db");
    backup(&world.config().database_url, &copy).await.unwrap();
    let mut kept = vec![];
    files(world.directory(), &mut kept);
    world.stop().await;
    files(world.directory(), &mut kept);
    let encoded = BASE64_STANDARD.encode(VALUE);
    let percent = VALUE.replace('/', "%2F").replace('+', "%2B");
    for (file, bytes) in &kept {
        for form in [VALUE, &encoded[..32], &percent] {
            assert!(!contains(bytes, form.as_bytes()), "{form} is in {file}");
        }
    }
    let has_name = |(file, bytes): &(String, Vec<u8>)| file.contains("gantry.db") && contains(bytes, b"TOKEN");
    assert!(kept.iter().any(has_name), "the search finds what is there");
    // The backup is useless without the key, which is not in it.
    let key = fs::read(world.config().data_dir.join("master.key")).unwrap();
    let bytes = BASE64_STANDARD.decode(&key).unwrap();
    let copied = fs::read(&copy).unwrap();
    assert!(!contains(&copied, &key) && !contains(&copied, &bytes));
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &fs::metadata(world.config().data_dir.join("master.key")).unwrap().permissions(),
    );
    assert_eq!(mode & 0o777, 0o600);
    world.start().await;
    let kept: i64 =
        sqlx::query_scalar("SELECT COUNT(*) FROM accepted").fetch_one(&mut world.database().await).await.unwrap();
    assert_eq!(kept, 0, "a request with a value is not kept for its idempotency key");
    world.finish().await;
}

#[tokio::test]
async fn a_key_that_does_not_open_the_secrets_stops_the_start() {
    let mut world = World::new().await;
    set(&world.user("ada"), "TOKEN", VALUE).await;
    world.stop().await;
    let start = async |config| match App::build(config, TestOverrides::default()).await {
        Ok(_) => panic!("it must not start"),
        Err(error) => error.to_string(),
    };
    let mut config = world.config().clone();
    config.master_key = Some(SecretString::from("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="));
    let error = start(config.clone()).await;
    assert!(error.starts_with("the master key GANTRY_MASTER_KEY") && !error.contains('\n'), "{error}");
    assert!(error.contains("does not open the stored secrets") && !error.contains("AAECAw"), "{error}");
    // A data directory that was restored without its key.
    let (key, elsewhere) = (config.data_dir.join("master.key"), config.data_dir.join("elsewhere"));
    fs::rename(&key, &elsewhere).unwrap();
    config.master_key = None;
    let error = start(config).await;
    assert!(error.contains("master.key is missing") && !key.exists(), "{error}");
    // The same key in the configuration.
    let text = SecretString::from(fs::read_to_string(&elsewhere).unwrap());
    world.configure(|config| config.master_key = Some(text));
    world.start().await;
    assert_eq!(values(&world, "ada").await, [pair("TOKEN", VALUE)]);
    world.finish().await;
}

#[tokio::test]
async fn a_row_that_was_moved_to_another_user_opens_for_no_one() {
    let mut world = World::new().await;
    set(&world.user("ada"), "TOKEN", VALUE).await;
    set(&world.user("bob"), "OWN", "the value of bob").await;
    sqlx::query("UPDATE secrets SET user_id = 'bob' WHERE user_id = 'ada'")
        .execute(&mut world.database().await)
        .await
        .unwrap();
    world.restart().await;
    assert_eq!(values(&world, "bob").await, [pair("OWN", "the value of bob")]);
    assert_eq!(values(&world, "ada").await, []);
    // It can be set again.
    set(&world.user("bob"), "TOKEN", "another value").await;
    assert_eq!(values(&world, "bob").await, [pair("OWN", "the value of bob"), pair("TOKEN", "another value")]);
    world.finish().await;
}

async fn audit(world: &World, action: &str) -> Vec<(String, String, Option<String>)> {
    let root = world.someone("root", Role::Admin);
    let page: Page<AuditRecord> = root.get(&format!("/api/audit?action={action}")).await.expect(200).json();
    let shown = |row: AuditRecord| {
        assert!(!serde_json::to_string(&row).unwrap().contains("ghp_"), "{row:?}");
        assert_eq!(row.outcome == AuditOutcome::Done, row.code.is_none());
        (row.user, row.action, row.code)
    };
    page.items.into_iter().rev().map(shown).collect()
}

#[tokio::test]
async fn changes_and_refusals_are_audited_without_values() {
    let world = World::new().await;
    let ada = world.user("ada");
    set(&ada, "TOKEN", VALUE).await;
    ada.post("/api/secrets", &json!({"name": VALUE, "value": VALUE})).await.problem(ErrorCode::Invalid);
    delete(&ada, "TOKEN").await.expect(204);
    delete(&ada, "TOKEN").await.problem(ErrorCode::NotFound);
    let entry = |action: &str, code: Option<&str>| ("ada".to_owned(), action.to_owned(), code.map(str::to_owned));
    assert_eq!(audit(&world, "secret.set").await, [entry("secret.set", None), entry("secret.set", Some("invalid"))]);
    let deletions = [entry("secret.delete", None), entry("secret.delete", Some("not_found"))];
    assert_eq!(audit(&world, "secret.delete").await, deletions);
    world.finish().await;
}

#[tokio::test]
async fn a_job_cannot_list_its_owners_secrets() {
    let world = World::new().await;
    let ada = world.user("ada");
    set(&ada, "TOKEN", VALUE).await;
    let worker = running_job(&world, &ada).await;
    let tools = worker.get("tools").await.expect(200).body.to_string();
    assert!(tools.contains("message") && !tools.contains("secret_list"), "{tools}");
    let reply = worker.tool("secret_list", "t1", json!({})).await.expect(200).body;
    assert_eq!(reply["error"]["kind"], "autonomous_unavailable", "{reply:#}");
    worker.finish("done").await;
    world.finish().await;
}

/// The environment of `gantry` as the operator of a world and as one of its users.
fn environment(world: &World, more: &[(&str, &str)]) -> Vec<(String, String)> {
    let config = world.config();
    let mut variables = vec![
        ("GANTRY_DATA_DIR".to_owned(), config.data_dir.display().to_string()),
        ("GANTRY_RUN_DIR".to_owned(), config.run_dir.display().to_string()),
    ];
    variables.extend(more.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    variables
}

#[tokio::test]
async fn the_command_line_sets_lists_and_deletes_secrets() {
    let world = World::new().await;
    let ada = world.user("ada");
    let token = world.fresh("ada", Role::User);
    let as_ada = environment(&world, &[("GANTRY_URL", ada.base()), ("GANTRY_TOKEN", &token)]);
    let done = program::run_with_input(&["secret", "set", "TOKEN"], &as_ada, &format!("{VALUE}\n")).await;
    assert_eq!((done.code, done.stdout.as_str(), done.stderr.as_str()), (Some(0), "TOKEN set", ""), "{done:?}");
    let done =
        program::run_with_input(&["--json", "secret", "set", "PEM", "--keep-newline"], &as_ada, "two\nlines\n").await;
    assert_eq!(done.json()["name"], "PEM");
    assert_eq!(values(&world, "ada").await, [pair("PEM", "two\nlines\n"), pair("TOKEN", VALUE)]);
    let listed = program::run(&["--json", "secret", "ls"], &as_ada).await.json();
    let names: Vec<&Value> = listed["items"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert_eq!(names, ["PEM", "TOKEN"]);
    assert_eq!(program::run(&["secret", "list"], &as_ada).await.stdout.lines().count(), 3);
    let done = program::run(&["secret", "rm", "PEM"], &as_ada).await;
    assert_eq!((done.code, done.stdout.as_str()), (Some(0), "PEM deleted"));
    assert_eq!(program::run(&["secret", "rm", "PEM"], &as_ada).await.code, Some(4));
    for (arguments, input) in [
        (&["secret", "set", "a b"][..], VALUE),
        (&["secret", "set", "S", VALUE], ""),
        (&["secret", "set", "S"], "short\n"),
    ] {
        let refused = program::run_with_input(arguments, &as_ada, input).await;
        assert_eq!(refused.code, Some(2), "{refused:?}");
    }
    assert_eq!(self::names(&ada).await, ["TOKEN"]);
    world.finish().await;
}

#[rstest]
#[case::whole("")]
#[case::killed_before_the_commit("rotate.before_commit")]
#[case::killed_after_the_commit("rotate.after_commit")]
#[case::killed_once_the_commit_is_on_the_disk("rotate.after_sync")]
#[case::killed_before_the_keys_change("rotate.before_rename")]
#[tokio::test]
async fn the_master_key_is_rotated_while_the_server_is_stopped(#[case] failpoint: &str) {
    let mut world = World::new().await;
    for n in 0..3 {
        set(&world.user("ada"), &format!("S{n}"), VALUE).await;
    }
    let expected: Vec<_> = (0..3).map(|n| pair(&format!("S{n}"), VALUE)).collect();
    let key = world.config().data_dir.join("master.key");
    let before = fs::read(&key).unwrap();
    let operator = environment(&world, &[("GANTRY_FAILPOINT", failpoint)]);
    let rotate = async || program::run(&["--json", "secret", "rotate-key"], &operator).await;
    let refused = rotate().await;
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("stop it first"), "{refused:?}");
    assert_eq!(fs::read(&key).unwrap(), before);
    world.stop().await;
    let done = rotate().await;
    if failpoint.is_empty() {
        assert_eq!((done.json()["resealed"].as_u64(), done.json()["deleted"].as_u64()), (Some(3), Some(0)), "{done:?}");
    } else {
        assert_eq!(done.code, None, "it must be killed: {done:?}");
    }
    world.start().await;
    let is_rotated = failpoint != "rotate.before_commit";
    assert_eq!(fs::read(&key).unwrap() != before, is_rotated);
    for left in ["key.next", "key.previous"] {
        assert!(!key.with_extension(left).exists());
    }
    assert_eq!(values(&world, "ada").await, expected);
    set(&world.user("ada"), "S3", VALUE).await;
    let entries = audit(&world, "secret.rotate_key").await;
    assert_eq!(
        entries.iter().map(|(user, ..)| user.as_str()).collect::<Vec<_>>(),
        vec!["operator"; usize::from(is_rotated)]
    );
    world.finish().await;
}

#[tokio::test]
async fn a_backup_names_the_key_that_it_does_not_contain() {
    let world = World::new().await;
    let copy = world.directory().join("copy.db").display().to_string();
    let done = program::run(&["backup", &copy], &environment(&world, &[])).await;
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.stderr.contains("does not contain the master key") && done.stderr.contains("master.key"), "{done:?}");
    world.finish().await;
}
