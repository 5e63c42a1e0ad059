//! `gantry routine`, `runs`, `cron` and `wake`: what a person types, against a whole orchestrator.

use orchestrator::auth::Role;
use serde_json::{Value, json};
use tests::{
    World,
    install::program::{self, Ended},
    script_of,
};

const FILE: &str = "\
- name: morning
  trigger: {type: cron, schedule: every weekday at 9:00, timezone: Europe/Berlin}
  action: {type: lightweight, prompt: What is new?, context_paths: [notes.md]}
  guardrails: {budget: {max_tokens: 100000, per: day}}
- name: hook
  trigger: {type: webhook, path: deploys}
  action: {type: lightweight, prompt: Describe the deployment.}
";

fn script() -> String {
    script_of(&[
        json!({"when": {"last_message": "quiet"}, "reply": {"text": "ROUTINE_OK"}}),
        json!({"when": {"last_message": "break"}, "error": {"status": 400, "message": "broken"}}),
        json!({"reply": {"text": "There is news."}}),
    ])
}

/// A person at a terminal.
struct Person {
    environment: Vec<(String, String)>,
}

impl Person {
    fn new(world: &World, user: &str, role: Role) -> Self {
        let url = world.user(user).base().to_owned();
        let environment = [("GANTRY_URL", url), ("GANTRY_TOKEN", world.fresh(user, role))];
        Self { environment: environment.map(|(name, value)| (name.to_owned(), value)).into() }
    }

    /// The same person at a machine in another time zone.
    fn at_machine_in(mut self, zone: &str) -> Self {
        self.environment.push(("TZ".to_owned(), zone.to_owned()));
        self
    }

    /// The zone that the schedule of a routine is stored with.
    async fn zone_of(&self, routine: &str) -> Value {
        self.json(&["routine", "show", routine]).await["trigger"]["timezone"].clone()
    }

    async fn types(&self, arguments: &[&str]) -> Ended {
        program::run(arguments, &self.environment).await
    }

    /// What a command that succeeds prints.
    async fn text(&self, arguments: &[&str]) -> String {
        let ended = self.types(arguments).await;
        assert_eq!(ended.code, Some(0), "{arguments:?}: {ended:?}");
        ended.stdout
    }

    async fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.text(&[&["--json"], arguments].concat()).await).unwrap()
    }

    async fn apply(&self, file: &str, flags: &[&str]) -> Ended {
        let arguments = [&["routine", "apply", "-f", "-"], flags].concat();
        program::run_with_input(&arguments, &self.environment, file).await
    }

    /// The names of the person's routines.
    async fn names(&self) -> Vec<String> {
        let page = self.json(&["routine", "list"]).await;
        page["items"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap().to_owned()).collect()
    }
}

#[tokio::test]
async fn a_file_is_applied_once_and_again_without_a_change() {
    let world = World::builder().script(script()).build().await;
    let ada = Person::new(&world, "ada", Role::User);
    let tried = ada.apply(FILE, &["--dry-run"]).await;
    assert_eq!((tried.code, tried.stdout.as_str()), (Some(0), "morning created (dry run)\nhook created (dry run)"));
    assert_eq!(ada.names().await, Vec::<String>::new());
    let first = ada.apply(FILE, &[]).await;
    assert_eq!(first.code, Some(0), "{first:?}");
    assert!(
        first
            .stdout
            .starts_with("morning created\nhook created\n    POST /api/webhooks/deploys\n    webhook secret whsec_")
    );
    let again = ada.apply(FILE, &[]).await;
    assert_eq!((again.code, again.stdout.as_str()), (Some(0), "morning unchanged\nhook unchanged"));

    ada.text(&["routine", "disable", "hook"]).await;
    let changed = FILE.replace("What is new?", "What is old?");
    let changed = ada.apply(&changed, &[]).await;
    assert_eq!(changed.stdout, "morning updated: action\nhook unchanged", "what the file does not say is kept");
    let shown = ada.json(&["routine", "show", "hook"]).await;
    assert_eq!(shown["enabled"], false);
    world.finish().await;
}

#[tokio::test]
async fn pruning_deletes_only_the_callers_routines() {
    let world = World::builder().script(script()).build().await;
    let (root, eve) = (Person::new(&world, "root", Role::Admin), Person::new(&world, "eve", Role::User));
    eve.text(&["routine", "create", "hers", "--every", "1h", "--prompt", "look"]).await;
    root.text(&["routine", "create", "old", "--every", "1h", "--prompt", "look"]).await;
    assert_eq!(root.names().await, ["old", "hers"], "an admin sees all");
    let tried = root.apply(FILE, &["--dry-run", "--prune"]).await;
    assert!(tried.stdout.ends_with("\nold deleted (dry run)"), "{tried:?}");
    assert_eq!(root.names().await.len(), 2);
    let pruned = root.apply(FILE, &["--prune"]).await;
    assert!(pruned.stdout.ends_with("\nold deleted"), "{pruned:?}");
    assert_eq!(eve.names().await, ["hers"]);
    let empty = root.apply("", &["--prune"]).await;
    assert_eq!(empty.code, Some(2), "{empty:?}");
    assert_eq!(root.names().await.len(), 3);
    world.finish().await;
}

#[tokio::test]
async fn a_routine_is_created_run_and_shown() {
    let world = World::builder().script(script()).build().await;
    let ada = Person::new(&world, "ada", Role::User);
    let created =
        ada.text(&["routine", "create", "news", "--every", "90s", "--prompt", "look", "--cooldown", "0s"]).await;
    assert!(created.starts_with("news created (") && created.contains("\nnext "), "{created}");
    let list = ada.text(&["routine", "list"]).await;
    let words: Vec<&str> = list.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(words[1..6], ["news", "unverified", "every", "1m", "30s"], "{list}");
    assert_eq!(ada.json(&["routine", "upcoming", "news", "--count", "3"]).await["items"].as_array().unwrap().len(), 3);
    let soonest = ada.json(&["routine", "upcoming", "--count", "2"]).await;
    assert_eq!((&soonest["items"][1]["routine_name"], soonest["items"].as_array().unwrap().len()), (&json!("news"), 2));
    let table = ada.text(&["routine", "upcoming", "--count", "2"]).await;
    assert!(table.lines().count() == 3 && table.lines().skip(1).all(|line| line.contains("news")), "{table}");

    let ran = ada.types(&["routine", "run", "news", "--wait", "--payload", r#"{"n": 1}"#]).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.stdout.contains("attention") && ran.stdout.ends_with("There is news."), "{ran:?}");
    ada.text(&["routine", "edit", "news", "--prompt", "break", "--every", "2m"]).await;
    assert_eq!(ada.types(&["routine", "run", "news", "--wait"]).await.code, Some(1));
    ada.text(&["routine", "disable", "news"]).await;
    assert_eq!(ada.types(&["routine", "run", "news"]).await.code, Some(5));
    assert_eq!(ada.types(&["routine", "show", "other"]).await.code, Some(4));

    let exported = ada.text(&["runs", "export", "--routine", "news"]).await;
    let statuses: Vec<Value> =
        exported.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["status"].clone()).collect();
    assert_eq!(statuses, ["failed", "attention"], "newest first");
    let recent = ada.json(&["routine", "runs", "news", "--since", "1h", "--reason", "llm_error"]).await;
    assert_eq!(recent["items"].as_array().unwrap().len(), 1, "{recent:#}");
    let earlier = ada.json(&["routine", "runs", "news", "--until", "1h"]).await;
    assert_eq!(earlier["items"], json!([]));
    let jobs = [
        "job",
        "list",
        "--since",
        "1h",
        "--source",
        "routine",
        "--reason",
        "llm_error",
        "--model",
        "m",
        "--routine",
        "news",
    ];
    assert_eq!(ada.json(&jobs).await["items"], json!([]), "its runs have no jobs");
    let failed = ada.json(&["runs", "list", "--status", "failed"]).await;
    let run = failed["items"][0]["id"].as_str().unwrap();
    assert!(ada.text(&["runs", "show", run]).await.contains("reason"), "{failed}");
    assert_eq!(ada.types(&["runs", "cancel", run]).await.code, Some(5), "it has ended");
    ada.text(&["routine", "delete", "news"]).await;
    assert_eq!(ada.text(&["runs", "export"]).await.lines().count(), 2, "the runs stay");
    world.finish().await;
}

#[tokio::test]
async fn a_cron_job_is_managed_by_its_own_commands() {
    let world = World::builder().script(script()).build().await;
    let ada = Person::new(&world, "ada", Role::User);
    let add = ["cron", "add", "--name", "tea", "--cron", "0 16 * * *", "--tz", "Europe/London", "--message", "quiet"];
    let id = ada.text(&add).await;
    ada.text(&add).await;
    let jobs = ada.json(&["cron", "list"]).await;
    let names: Vec<&str> = jobs["jobs"].as_array().unwrap().iter().map(|job| job["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["tea (2)", "tea"]);
    assert!(ada.text(&["cron", "run", &id]).await.starts_with("not run: it is not due"));
    let run = ada.text(&["cron", "run", &id, "--force"]).await;
    tests::poll("the run to end", async || {
        let runs = ada.json(&["cron", "runs", "--id", &id]).await;
        Some(runs["entries"][0].clone()).filter(|entry| entry["runId"] == run.as_str() && entry["status"] == "ok")
    })
    .await;
    ada.text(&["cron", "disable", &id]).await;
    assert_eq!(ada.json(&["cron", "list"]).await["jobs"].as_array().unwrap().len(), 1);
    assert_eq!(ada.json(&["cron", "list", "--all"]).await["jobs"].as_array().unwrap().len(), 2);
    ada.text(&["cron", "edit", &id, "--every", "10m"]).await;
    let status = ada.json(&["cron", "status"]).await;
    assert_eq!((&status["enabled"], &status["jobs"]), (&json!(true), &json!(2)));
    ada.text(&["cron", "rm", &id]).await;
    assert_eq!(ada.types(&["cron", "rm", &id]).await.code, Some(4));
    ada.text(&["wake", "--mode", "next-heartbeat", "--text", "the tea is ready"]).await;
    world.finish().await;
}

#[tokio::test]
async fn times_are_in_the_zone_of_the_option_else_of_the_settings_else_of_the_machine() {
    let world = World::builder().script(script()).build().await;
    let ada = Person::new(&world, "ada", Role::User).at_machine_in("Asia/Tokyo");
    let create = async |name: &str, flags: &[&str]| {
        let arguments = ["routine", "create", name, "--cron", "every day at 9:00", "--prompt", "look"];
        ada.types(&[&arguments, flags].concat()).await
    };
    let made = create("of-the-machine", &[]).await;
    assert!(made.code == Some(0) && made.stdout.contains(" JST") && !made.stderr.contains("UTC is used"), "{made:?}");
    assert_eq!(ada.zone_of("of-the-machine").await, "Asia/Tokyo");
    let add = ["cron", "add", "--name", "tea", "--cron", "0 16 * * *", "--message", "quiet"];
    ada.text(&add).await;
    assert_eq!(ada.zone_of("tea").await, "Asia/Tokyo");
    let list = ada.text(&["routine", "list", "--wide"]).await;
    assert!(list.contains("daily at 09:00 (Asia/Tokyo)") && list.contains(" JST"), "{list}");

    ada.text(&["settings", "set", "--timezone", "Africa/Lagos"]).await;
    create("of-the-settings", &[]).await;
    assert_eq!(ada.zone_of("of-the-settings").await, "Africa/Lagos");
    assert_eq!(ada.zone_of("of-the-machine").await, "Asia/Tokyo", "what is stored stays");
    create("of-the-option", &["--timezone", "America/Phoenix"]).await;
    assert_eq!(ada.zone_of("of-the-option").await, "America/Phoenix");
    let once = ["routine", "create", "once", "--at", "2099-12-01 07:00", "--prompt", "look"];
    ada.text(&once).await;
    assert_eq!(ada.json(&["routine", "show", "once"]).await["trigger"]["at"], "2099-12-01T06:00:00Z");

    ada.text(&["routine", "run", "of-the-machine", "--wait"]).await;
    let run = ada.json(&["runs", "list"]).await["items"][0]["id"].as_str().unwrap().to_owned();
    for command in [
        &["routine", "list", "--wide"][..],
        &["routine", "show", "of-the-machine"],
        &["routine", "upcoming", "of-the-machine"],
        &["runs", "show", &run],
        &["runs", "list", "--wide", "--since", "2020-01-01 00:00"],
        &["cron", "list"],
        &["cron", "status"],
        &["events"],
        &["notification", "ls"],
    ] {
        let text = ada.text(command).await;
        assert!(text.contains(" WAT") && !text.contains(" JST"), "{command:?}: {text}");
        let text = ada.text(&[command, &["--timezone", "America/Phoenix"]].concat()).await;
        assert!(text.contains(" MST") && !text.contains(" WAT"), "{command:?}: {text}");
    }
    let shown = ada.json(&["runs", "show", &run, "--timezone", "America/Phoenix"]).await;
    assert!(shown["created_at"].as_str().unwrap().ends_with('Z'), "JSON has times in UTC: {shown:#}");
    world.finish().await;
}

#[tokio::test]
async fn a_file_without_a_zone_moves_nothing_when_it_is_applied_again() {
    const FILE: &str = "\
- name: morning
  trigger: {type: cron, schedule: every weekday at 9:00}
  action: {type: lightweight, prompt: look}
";
    let world = World::builder().script(script()).build().await;
    let ada = Person::new(&world, "ada", Role::User).at_machine_in("Asia/Tokyo");
    let first = ada.apply(FILE, &[]).await;
    assert_eq!((first.code, first.stdout.as_str(), first.stderr.as_str()), (Some(0), "morning created", ""));
    let stored = ada.json(&["routine", "show", "morning"]).await;
    assert_eq!(stored["trigger"]["timezone"], "Asia/Tokyo");
    ada.text(&["settings", "set", "--timezone", "Africa/Lagos"]).await;
    for flags in [&[][..], &["--timezone", "America/Phoenix"]] {
        assert_eq!(ada.apply(FILE, flags).await.stdout, "morning unchanged");
        assert_eq!(ada.json(&["routine", "show", "morning"]).await, stored);
    }
    let later = ada.apply(&FILE.replace("9:00", "10:00"), &[]).await;
    assert_eq!(later.stdout, "morning updated: trigger");
    assert_eq!(ada.zone_of("morning").await, "Asia/Tokyo");
    world.finish().await;
}
