//! Tests of the job commands with a scripted server.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};

use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::{Path, State},
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use clap::Parser;
use futures_util::stream;
use rstest::rstest;
use secrecy::SecretString;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::*;
use base::Zone;

const ID: &str = "01890000-0000-7000-8000-000000000001";

/// The response of one connection to the event stream.
enum Connection {
    /// 204: the job has finished and there are no more events.
    NoContent,
    /// `resync`, these events and `end`.
    Resync(Vec<i64>),
    /// These events, then a disconnect in the middle of a line.
    Cut(Vec<i64>),
    /// These events, then `end`.
    Whole(Vec<i64>),
    /// An error response.
    Refused(StatusCode),
}

struct Script {
    connections: Mutex<std::vec::IntoIter<Connection>>,
    resumed_from: Mutex<Vec<String>>,
    created: Mutex<Vec<Value>>,
    last_state: (&'static str, Option<&'static str>),
}

fn event(seq: i64) -> Value {
    json!({"v": 1, "seq": seq, "cursor": seq, "job_id": ID, "attempt": 1, "at": "2026-01-01T00:00:00Z",
        "kind": "message", "data": {"role": "assistant", "content": format!("word {seq}")}})
}

pub(super) fn job(state: &str, reason: Option<&str>) -> Value {
    json!({"id": ID, "user_id": "ada", "title": "t", "prompt": "p", "prompt_preview": "p", "mode": "worker", "placement": "container",
        "state": state, "reason": reason, "message": null, "priority": 0, "labels": {}, "metadata": {},
        "limits": protocol::Limits::default(), "egress": null, "model": "m", "source": "api", "routine_id": null,
        "run_id": null, "parent_id": null, "restarted_from": null, "attempt": 1, "repair_attempts": 0,
        "created_at": "2026-01-01T00:00:00Z", "started_at": "2026-01-01T00:00:00Z", "last_activity_at": null,
        "cancel_requested_at": null, "finished_at": "2026-01-01T00:00:03Z", "result": null,
        "usage": protocol::Usage::default(), "container": null})
}

async fn events(State(script): State<Arc<Script>>, headers: HeaderMap) -> Response {
    let from = headers["last-event-id"].to_str().unwrap().to_owned();
    script.resumed_from.lock().unwrap().push(from);
    let connection = script.connections.lock().unwrap().next().expect("the test has no more connections");
    let stream = |events: &[i64]| -> String {
        let one = |seq: &i64| format!("id: {seq}\nevent: message\ndata: {}\n\n", event(*seq));
        events.iter().map(one).collect::<String>() + ": still here\n\n"
    };
    let text = match connection {
        Connection::Refused(status) => return status.into_response(),
        Connection::NoContent => return StatusCode::NO_CONTENT.into_response(),
        Connection::Resync(seqs) => {
            format!("event: resync\ndata: {}\n\n", json!({"seq": seqs[0]}))
                + &stream(&seqs)
                + "event: end\ndata: {}\n\n"
        }
        Connection::Cut(events) => stream(&events) + "id: 99\nevent: message\ndata: {\"v\": 1, \"se",
        Connection::Whole(events) => {
            stream(&events) + &format!("event: end\ndata: {}\n\n", json!({"state": script.last_state.0, "seq": 9}))
        }
    };
    let chunks = stream::iter(
        text.into_bytes().chunks(7).map(|c| Ok::<_, Infallible>(Bytes::copy_from_slice(c))).collect::<Vec<_>>(),
    );
    ([(header::CONTENT_TYPE, "text/event-stream")], Body::from_stream(chunks)).into_response()
}

struct Server {
    url: String,
    script: Arc<Script>,
    _tasks: JoinSet<()>,
}

async fn server(connections: Vec<Connection>, last_state: (&'static str, Option<&'static str>)) -> Server {
    let script = Arc::new(Script {
        connections: Mutex::new(connections.into_iter()),
        resumed_from: Mutex::default(),
        created: Mutex::default(),
        last_state,
    });
    let create = async |State(script): State<Arc<Script>>, headers: HeaderMap, Json(body): Json<Value>| {
        assert_eq!(headers["authorization"], "Bearer good");
        let key = headers.get("idempotency-key").map(|key| key.to_str().unwrap().to_owned());
        script.created.lock().unwrap().push(json!({"body": body, "key": key}));
        (StatusCode::CREATED, Json(job("pending", None)))
    };
    let show = async |State(script): State<Arc<Script>>, Path(id): Path<String>| {
        assert_eq!(id, ID);
        Json(job(script.last_state.0, script.last_state.1))
    };
    let refuse = async || {
        let problem = json!({"type": "urn:gantry:problem:job_finished", "title": "Job has finished", "status": 409,
            "detail": "it ended", "code": "job_finished", "request_id": "r1"});
        (StatusCode::CONFLICT, [(header::CONTENT_TYPE, "application/problem+json")], problem.to_string())
    };
    let router = Router::new()
        .route("/api/jobs", post(create))
        .route("/api/jobs/{id}", get(show))
        .route("/api/jobs/{id}/events", get(events))
        .route("/api/jobs/{id}/prompt", post(refuse))
        .route("/api/jobs/{id}/archive", get(async || archive_with_a_long_name()))
        .route("/api/jobs/{id}/logs", get(async || "==> attempt 1\nhello \u{1b}[2J\n"))
        .with_state(script.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let mut tasks = JoinSet::new();
    tasks.spawn(async move { axum::serve(listener, router).await.unwrap() });
    Server { url, script, _tasks: tasks }
}

/// An archive that cannot be unpacked, since a name is longer than file systems allow.
fn archive_with_a_long_name() -> Vec<u8> {
    let name = format!("\u{1b}[2J{}", "n".repeat(300));
    let (source, mut archive) = (tempfile::tempdir().unwrap(), Vec::new());
    std::fs::write(source.path().join("file"), "").unwrap();
    archive::pack_directory(source.path(), name.as_ref(), &mut archive).unwrap();
    archive
}

#[derive(Parser)]
struct Line {
    #[command(subcommand)]
    command: JobCommand,
}

async fn gantry_job(server: &Server, format: Format, arguments: &[&str]) -> (Result<Exit, CliError>, String) {
    let line = Line::parse_from(["gantry-job"].iter().chain(arguments));
    let client = Client::new(&server.url, Some("good".into())).unwrap();
    let (mut output, printed) = Output::captured(format);
    let exit = run(line.command, &client, &mut output).await;
    let text = String::from_utf8(printed.lock().unwrap().clone()).unwrap();
    (exit, text)
}

#[tokio::test]
async fn an_interrupted_stream_resumes_and_every_event_is_printed_once() {
    let story = vec![
        Connection::Cut(vec![1, 2]),
        Connection::Refused(StatusCode::BAD_GATEWAY),
        // A server that starts one event too early must not duplicate events.
        Connection::Cut(vec![2, 3]),
        Connection::Whole(vec![4, 5]),
    ];
    let server = server(story, ("completed", None)).await;
    let (exit, text) = gantry_job(&server, Format::Json, &["run", "do it"]).await;
    assert_eq!(exit.unwrap(), Exit::Success);
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let seqs: Vec<i64> = lines.iter().filter_map(|line| line["seq"].as_i64()).collect();
    assert_eq!(seqs, [1, 2, 3, 4, 5]);
    let last = lines.last().unwrap();
    assert_eq!(
        (&last["kind"], &last["data"]["state"]),
        (&json!("job"), &json!("completed")),
        "the last line is the job"
    );
    assert_eq!(*server.script.resumed_from.lock().unwrap(), ["0", "2", "2", "3"]);
}

#[tokio::test]
async fn a_lost_connection_is_no_error_if_all_events_were_received() {
    let server = server(vec![Connection::Cut(vec![1, 2]), Connection::NoContent], ("completed", None)).await;
    let (exit, _) = gantry_job(&server, Format::Json, &["run", "do it"]).await;
    assert_eq!(exit.unwrap(), Exit::Success);
    assert_eq!(*server.script.resumed_from.lock().unwrap(), ["0", "2"]);
}

#[tokio::test]
async fn a_server_with_fewer_events_than_the_client_is_read_from_its_oldest_event() {
    let story = vec![Connection::Cut(vec![1, 2, 3, 4]), Connection::Resync(vec![1, 2])];
    let server = server(story, ("completed", None)).await;
    let (exit, text) = gantry_job(&server, Format::Json, &["run", "do it"]).await;
    assert_eq!(exit.unwrap(), Exit::Success);
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let seqs: Vec<i64> = lines.filter_map(|line| line["seq"].as_i64()).collect();
    assert_eq!(seqs, [1, 2, 3, 4, 1, 2]);
}

#[rstest]
#[case("completed", None, Exit::Success)]
#[case("submitted", None, Exit::Success)]
#[case("failed", Some("llm_error"), Exit::Failed)]
#[case("failed", Some("wall_clock"), Exit::TimedOut)]
#[case("cancelled", Some("cancelled_by_user"), Exit::Failed)]
#[tokio::test]
async fn the_exit_code_reflects_the_outcome_of_the_job(
    #[case] state: &'static str,
    #[case] reason: Option<&'static str>,
    #[case] wanted: Exit,
) {
    let server = server(vec![Connection::Whole(vec![1])], (state, reason)).await;
    let (exit, text) = gantry_job(&server, Format::Text, &["run", "do it"]).await;
    assert_eq!(exit.unwrap(), wanted);
    assert!(text.contains("agent  word 1\n"), "{text}");
    let reason = reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
    assert!(text.contains(&format!("\n● {state}{reason} in 3.0 s\n  0 model calls")), "{text}");
}

#[tokio::test]
async fn every_argument_reaches_the_request() {
    let directory = tempfile::tempdir().unwrap();
    let (text, binary) = (directory.path().join("a.txt"), directory.path().join("b.bin"));
    std::fs::write(&text, "hello").unwrap();
    std::fs::write(&binary, [0xff, 0x00]).unwrap();
    let binary_at = format!("{}:in/b.bin", binary.display());
    let server = server(Vec::new(), ("pending", None)).await;
    let arguments = [
        "create",
        "do it",
        "--title",
        "T",
        "--file",
        text.to_str().unwrap(),
        "--file",
        &binary_at,
        "--limit",
        "timeout_seconds=60",
        "--limit",
        "cpus=0.5",
        "--label",
        "team=a",
        "--plan",
        "--priority",
        "-5",
        "--image",
        "i",
        "--model",
        "m",
        "--tool",
        "shell",
        "--idempotency-key",
        "k1",
    ];
    let (exit, printed) = gantry_job(&server, Format::Text, &arguments).await;
    assert_eq!(exit.unwrap(), Exit::Success);
    assert_eq!(printed.trim(), ID);
    let created = server.script.created.lock().unwrap();
    assert_eq!(
        created[0],
        json!({"key": "k1", "body": {
            "prompt": "do it", "title": "T", "image": "i", "model": "m", "tools": ["shell"], "plan": true,
            "review": false, "hold": false, "priority": -5, "labels": {"team": "a"},
            "limits": {"timeout_seconds": 60, "cpus": 0.5},
            "files": [{"path": "a.txt", "content": "hello"}, {"path": "in/b.bin", "content_base64": "/wA="}],
        }})
    );
}

#[rstest]
#[case(&["create", "p", "--limit", "timeout=1"], "unknown field `timeout`")]
#[case(&["create", "p", "--limit", "cpus=many"], "must be NAME=NUMBER")]
#[case(&["create", "p", "--label", "team"], "must be KEY=VALUE")]
#[case(&["create", "p", "--file", "/not/there"], "cannot read /not/there")]
#[tokio::test]
async fn an_invalid_argument_is_a_usage_error(#[case] arguments: &[&str], #[case] wanted: &str) {
    let server = server(Vec::new(), ("pending", None)).await;
    let error = gantry_job(&server, Format::Text, arguments).await.0.unwrap_err();
    assert_eq!(error.exit(), Exit::Usage);
    assert!(error.to_string().contains(wanted), "{error}");
    assert!(server.script.created.lock().unwrap().is_empty());
}

#[tokio::test]
async fn error_responses_are_one_line_with_an_exit_code() {
    let server = server(vec![Connection::Refused(StatusCode::NOT_FOUND)], ("pending", None)).await;
    let error = gantry_job(&server, Format::Text, &["prompt", ID, "more"]).await.0.unwrap_err();
    assert_eq!((error.exit(), error.to_string()), (Exit::Conflict, "Job has finished: it ended".to_owned()));

    let error = gantry_job(&server, Format::Text, &["events", "--follow", ID]).await.0.unwrap_err();
    assert_eq!(error.exit(), Exit::Unreachable, "only problem documents come from a Gantry server");
}

#[tokio::test]
async fn container_output_is_escaped() {
    let server = server(Vec::new(), ("completed", None)).await;
    let (exit, text) = gantry_job(&server, Format::Text, &["logs", ID]).await;
    assert_eq!(exit.unwrap(), Exit::Success);
    assert!(text.starts_with("==> attempt 1\nhello ") && !text.contains('\u{1b}'), "{text:?}");
    let (_, text) = gantry_job(&server, Format::Json, &["logs", ID]).await;
    let value: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value, json!({"job_id": ID, "text": "==> attempt 1\nhello \u{1b}[2J\n"}));
}

#[tokio::test]
async fn an_unreachable_server_is_reported_at_once() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let client = Client::new(&url, Some(SecretString::from("t"))).unwrap();
    let (mut output, _) = Output::captured(Format::Text);
    let id = ID.parse().unwrap();
    let error = follow::to_the_end(&client, id, 0, Detail::Usual, &mut output).await.unwrap_err();
    assert_eq!(error.exit(), Exit::Unreachable);
    assert!(error.to_string().starts_with("cannot reach http://127.0.0.1"), "{error}");
}

#[test]
fn a_pending_cancel_is_shown_until_the_job_ends() {
    let mut stopping = job("in_progress", None);
    stopping["cancel_requested_at"] = json!("2026-01-01T00:00:02Z");
    let mut stopped = stopping.clone();
    stopped["state"] = json!("cancelled");
    stopping["finished_at"] = Value::Null;
    let text_of = |job: Value| {
        show::describe(
            super::super::output::Paint::Plain,
            &serde_json::from_value(job).unwrap(),
            &[],
            (Zone::UTC, None),
        )
    };
    assert!(text_of(stopping).contains("cancelling      since 2026-01-01 00:00:02 UTC"));
    assert!(!text_of(stopped).contains("cancelling"));
}

#[rstest]
#[case("team=core", Some(("team", "core")))]
#[case("team:core", Some(("team", "core")))]
#[case("url=http://x", Some(("url", "http://x")))]
#[case("team", None)]
fn labels_accept_an_equals_sign_or_a_colon(#[case] pair: &str, #[case] wanted: Option<(&str, &str)>) {
    let read = create::label(pair).ok();
    assert_eq!(read.as_ref().map(|(key, value)| (key.as_str(), value.as_str())), wanted);
}

#[tokio::test]
async fn a_name_of_an_archive_is_escaped_in_an_error() {
    let server = server(vec![], ("completed", None)).await;
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().join("out").display().to_string();
    let (ended, _) = gantry_job(&server, Format::Text, &["get", ID, "src/", "-o", &target]).await;
    let error = ended.unwrap_err().to_string();
    assert!(error.contains("\u{241b}[2Jnnn") && !error.contains('\u{1b}'), "{error}");
}
