//! Tests of the routine commands with a scripted server.

use std::sync::{Arc, Mutex};

use axum::{
    Json, Router,
    body::Bytes,
    extract::State,
    http::{Method, StatusCode, Uri},
    response::{IntoResponse, Response},
};
use clap::Parser;
use serde_json::{Map, Value, json};
use tokio::task::JoinSet;

use super::*;

use crate::output::{Format, Paint, table::View};

const ID: &str = "01890000-0000-7000-8000-000000000001";

pub(super) fn routine(user: &str, changes: &Value) -> Routine {
    let mut routine = json!({"id": ID, "user_id": user, "name": "news", "description": null, "enabled": true,
        "disabled_reason": null, "disabled_at": null, "rev": 3, "trigger": {"type": "cron", "schedule": "0 9 * * MON-FRI",
        "timezone": "Europe/Berlin"}, "action": {"type": "lightweight", "prompt": "look"}, "guardrails": {}, "notify": {},
        "session": "isolated", "wake_mode": "next_heartbeat", "deliver": false, "post_to_main": false,
        "post_to_main_prefix": null, "persist_payload": false, "state": null, "last_run_at": "2026-11-23T08:00:00Z",
        "next_fire_at": "2026-11-24T08:00:00Z", "run_count": 12, "consecutive_failures": 0, "verified": true,
        "status": "active", "created_at": "2026-01-01T00:00:00Z", "updated_at": "2026-01-01T00:00:00Z"});
    routine.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
    serde_json::from_value(routine).unwrap()
}

fn view() -> View {
    let now = "2026-11-23T09:00:00Z".parse().unwrap();
    View { now, user: Some("ada".to_owned()), ..View::unlimited() }
}

fn words_of(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn a_list_shows_times_in_one_zone() {
    let routines = [
        routine("ada", &json!({})),
        routine(
            "ada",
            &json!({"name": "a\u{1b}[2J", "trigger": {"type": "webhook", "path": "in"}, "enabled": false,
            "next_fire_at": null, "last_run_at": null, "status": "disabled", "run_count": 0}),
        ),
    ];
    let text = list::coloured_table(&routines, &view(), Paint::Plain);
    let lines: Vec<String> = text.lines().map(words_of).collect();
    assert_eq!(
        lines,
        [
            "id name status trigger next last runs",
            "00000001 news active weekdays at 09:00 (Europe/Berlin) Tue 08:00 UTC (in 23h) 60m ago 12",
            "00000001 a␛[2J disabled webhook in - - 0",
        ]
    );
    let painted = list::coloured_table(&routines, &view(), Paint::Colour);
    assert_eq!(painted.lines().nth(2).map(|line| line.starts_with("\x1b[2m")), Some(true), "{painted:?}");
    let of_others = list::coloured_table(&[routine("eve", &json!({}))], &view(), Paint::Plain);
    assert!(words_of(&of_others).ends_with(" 12 eve"), "{of_others}");
}

/// What the server was sent, and what it answers.
type Script = Arc<Mutex<(std::vec::IntoIter<(StatusCode, Value)>, Vec<(String, Value)>)>>;

async fn answer(State(script): State<Script>, method: Method, uri: Uri, body: Bytes) -> Response {
    let mut script = script.lock().unwrap();
    script.1.push((format!("{method} {uri}"), serde_json::from_slice(&body).unwrap_or_default()));
    let (status, value) = script.0.next().expect("no further request");
    if status == StatusCode::NO_CONTENT { status.into_response() } else { (status, Json(value)).into_response() }
}

async fn server(answers: Vec<(StatusCode, Value)>) -> (Environment, Script, JoinSet<()>) {
    let script: Script = Arc::new(Mutex::new((answers.into_iter(), vec![])));
    let router = Router::new().fallback(answer).with_state(script.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { axum::serve(listener, router).await.unwrap() });
    // {"sub":"ada","role":"admin"}
    let token = "e30.eyJzdWIiOiJhZGEiLCJyb2xlIjoiYWRtaW4ifQ.c2ln";
    (Environment::from_pairs([("GANTRY_URL", url.as_str()), ("GANTRY_TOKEN", token)]), script, tasks)
}

#[derive(Parser)]
struct Line {
    #[command(subcommand)]
    command: RoutineCommand,
}

/// Runs a command; returns how it ended, what it printed and what it sent.
async fn ran(arguments: &[&str], answers: Vec<(StatusCode, Value)>) -> (Exit, String, Vec<(String, Value)>) {
    let (environment, script, _tasks) = server(answers).await;
    let client = Client::from_environment(&environment).unwrap();
    let line = Line::try_parse_from(["gantry"].iter().chain(arguments)).unwrap();
    let (mut output, printed) = Output::captured(Format::Text);
    let exit = run(line.command, &client, &environment, &mut output).await.unwrap_or_else(|error| error.exit());
    let printed = String::from_utf8(printed.lock().unwrap().clone()).unwrap();
    let mut script = script.lock().unwrap();
    assert_eq!(script.0.len(), 0, "not all answers were asked for: {:?}", script.1);
    (exit, printed, std::mem::take(&mut script.1))
}

fn page(routines: &[Routine]) -> (StatusCode, Value) {
    (StatusCode::OK, json!({"items": routines, "next_cursor": null}))
}

fn saved(routine: &Routine, code: Option<&str>) -> (StatusCode, Value) {
    let mut saved = serde_json::to_value(routine).unwrap();
    let warning = code.map(|code| json!({"code": code, "field": "action", "detail": "d"}));
    saved["warnings"] = json!(warning.into_iter().collect::<Vec<_>>());
    (StatusCode::CREATED, saved)
}

#[tokio::test]
async fn a_routine_is_named_by_its_owner() {
    let (exit, _, sent) = ran(&["disable", "my news"], vec![page(&[])]).await;
    assert_eq!((exit, sent[0].0.as_str()), (Exit::NotFound, "GET /api/routines?name=my+news&limit=1&user=ada"));
    let disabled = serde_json::to_value(routine("ada", &json!({}))).unwrap();
    let (exit, printed, sent) = ran(&["disable", ID], vec![(StatusCode::OK, disabled)]).await;
    assert_eq!((exit, printed.as_str()), (Exit::Success, "news disabled\n"));
    assert_eq!(sent[0].0, format!("POST /api/routines/{ID}/disable"));
}

#[tokio::test]
async fn secrets_are_shown_when_they_are_made() {
    let made = routine(
        "ada",
        &json!({"trigger": {"type": "webhook", "path": "in", "secret": "whsec_x", "has_secret": true},
        "next_fire_at": null}),
    );
    let arguments = ["create", "news", "--webhook", "in", "--prompt", "look"];
    let (exit, printed, sent) = ran(&arguments, vec![saved(&made, None)]).await;
    assert_eq!(exit, Exit::Success);
    assert_eq!(
        sent[0].1,
        json!({"trigger": {"type": "webhook", "path": "in"}, "action": {"type": "lightweight",
        "prompt": "look"}, "name": "news"})
    );
    assert!(printed.contains("webhook secret whsec_x"), "{printed}");
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

#[tokio::test]
async fn a_file_is_applied_to_the_callers_routines_only() {
    let file = file(
        "- name: news\n  trigger: {type: cron, schedule: 0 9 * * MON-FRI, timezone: Europe/Berlin}\n  action: {type: lightweight, prompt: look}\n\
         - name: new\n  trigger: {type: manual}\n  action: {type: lightweight, prompt: p}\n",
    );
    let path = file.path().to_str().unwrap();
    let stored = || {
        page(&[
            routine("ada", &json!({"enabled": false})),
            routine("ada", &json!({"name": "old", "id": "01890000-0000-7000-8000-000000000002"})),
            routine("eve", &json!({"name": "hers", "id": "01890000-0000-7000-8000-000000000003"})),
        ])
    };
    let preview = (StatusCode::OK, json!({"warnings": [], "upcoming": [], "count": 0}));
    let (exit, printed, sent) = ran(&["apply", "-f", path, "--dry-run", "--prune"], vec![stored(), preview]).await;
    assert_eq!(exit, Exit::Success);
    assert_eq!(printed, "news unchanged\nnew created (dry run)\nold deleted (dry run)\n");
    let lines: Vec<&str> = sent.iter().map(|(line, _)| line.as_str()).collect();
    assert_eq!(lines, ["GET /api/routines?user=ada&limit=200", "POST /api/routines?dry_run=true"]);
    let answers =
        vec![stored(), saved(&routine("ada", &json!({"name": "new"})), None), (StatusCode::NO_CONTENT, json!(null))];
    let (_, printed, sent) = ran(&["apply", "-f", path, "--prune"], answers).await;
    assert_eq!(printed, "news unchanged\nnew created\nold deleted\n");
    let lines: Vec<&str> = sent.iter().map(|(line, _)| line.as_str()).collect();
    assert_eq!(lines[1..], ["POST /api/routines", "DELETE /api/routines/01890000-0000-7000-8000-000000000002"]);
}

#[tokio::test]
async fn a_failure_does_not_stop_the_other_routines() {
    let file = file(
        "- name: news\n  trigger: {type: manual}\n  action: {type: lightweight, prompt: look}\n\
         - name: old\n  trigger: {type: manual}\n  action: {type: lightweight, prompt: look}\n",
    );
    let stored = [routine("ada", &json!({})), routine("ada", &json!({"name": "old"}))];
    let problem =
        json!({"type": "t", "title": "Conflict", "status": 412, "detail": "changed", "code": "c", "request_id": "r"});
    let changed = saved(&routine("ada", &json!({"name": "old", "rev": 4})), None);
    let answers = vec![page(&stored), (StatusCode::PRECONDITION_FAILED, problem), changed];
    let (exit, printed, sent) = ran(&["apply", "-f", file.path().to_str().unwrap()], answers).await;
    assert_eq!(exit, Exit::Conflict);
    assert_eq!(printed, "news failed: Conflict: changed\nold updated: trigger\n");
    assert_eq!(sent[2].1, json!({"trigger": {"type": "manual"}}));
}

#[tokio::test]
async fn a_file_with_an_error_changes_nothing() {
    for (text, expected) in [
        ("- name: a\n  triger: {type: manual}\n", "item 1 (a)"),
        ("- name: a\n  trigger: {type: manual}\n  action: {type: lightweight, prompt: p, egress: [x]}\n", "item 1 (a)"),
        ("name: a\n", ""),
        ("", ""),
    ] {
        let file = file(text);
        let (environment, script, _tasks) = server(vec![]).await;
        let client = Client::from_environment(&environment).unwrap();
        let line = Line::parse_from(["gantry", "apply", "-f", file.path().to_str().unwrap()]);
        let (mut output, _) = Output::captured(Format::Text);
        let error = run(line.command, &client, &environment, &mut output).await.unwrap_err();
        assert_eq!(error.exit(), Exit::Usage, "{text}");
        assert!(error.to_string().contains(expected), "{error}");
        assert!(script.lock().unwrap().1.is_empty());
    }
}

#[tokio::test]
async fn a_routine_is_edited_with_flags_or_in_an_editor() {
    let stored = serde_json::to_value(routine("ada", &json!({}))).unwrap();
    let answers = || {
        vec![(StatusCode::OK, stored.clone()), saved(&routine("ada", &json!({"rev": 4, "next_fire_at": null})), None)]
    };
    let (exit, printed, sent) = ran(&["edit", ID, "--timezone", "UTC", "--max-runs", "3"], answers()).await;
    assert_eq!((exit, printed), (Exit::Success, format!("news updated ({ID})\n")));
    let expected = json!({"trigger": {"type": "cron", "schedule": "0 9 * * MON-FRI", "timezone": "UTC"},
        "guardrails": {"max_runs": 3}});
    assert_eq!(sent[1].1, expected);

    let (mut environment, script, _tasks) = server(answers()).await;
    let (url, token) = (environment.get("GANTRY_URL").unwrap(), environment.get("GANTRY_TOKEN").unwrap());
    let editor = "sed -i 's/prompt: look/prompt: read/'";
    environment = Environment::from_pairs([("GANTRY_URL", url), ("GANTRY_TOKEN", token), ("EDITOR", editor)]);
    let client = Client::from_environment(&environment).unwrap();
    let (mut output, _) = Output::captured(Format::Text);
    run(Line::parse_from(["gantry", "edit", ID]).command, &client, &environment, &mut output).await.unwrap();
    let sent = script.lock().unwrap().1[1].1.clone();
    let patch: Map<String, Value> = serde_json::from_value(sent).unwrap();
    assert_eq!(patch.keys().collect::<Vec<_>>(), ["action"]);
    assert_eq!(patch["action"]["prompt"], "read");
}

#[tokio::test]
async fn the_exit_code_tells_how_a_run_ended() {
    let run_with = |status: &str, reason: Option<&str>| {
        json!({"id": ID, "routine_id": ID, "routine_name": "news", "user_id": "ada", "trigger_type": "manual",
            "trigger_detail": {}, "due_at": null, "started_at": "2026-01-01T00:00:00Z",
            "completed_at": "2026-01-01T00:00:02Z", "status": status, "reason": reason, "message": null,
            "result_summary": "done", "tokens_used": 3, "cost_usd": 0.5, "job_id": null, "attempt": 1,
            "not_before": null, "created_at": "2026-01-01T00:00:00Z"})
    };
    for (status, reason, expected) in [
        ("ok", None, Exit::Success),
        ("failed", Some("llm_error"), Exit::Failed),
        ("failed", Some("timeout"), Exit::TimedOut),
        ("skipped", Some("overlap"), Exit::Conflict),
    ] {
        let answers = vec![(StatusCode::OK, run_with(status, reason))];
        let arguments = ["run", ID, "--wait", "--payload", r#"{"n": 1}"#];
        let (exit, printed, sent) = ran(&arguments, answers).await;
        assert_eq!(exit, expected, "{status}");
        assert!(printed.contains("took            2000 ms") && printed.ends_with("done\n"), "{printed}");
        assert_eq!(sent[0].1, json!({"payload": {"n": 1}, "wait_seconds": 30}));
    }
}
