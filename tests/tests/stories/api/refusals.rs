//! Refused requests: errors name the field, and nothing is stored or run.

use std::time::Duration;

use orchestrator::{
    clock::{Clock, ManualClock},
    engine::ReadinessReason,
};
use protocol::{ErrorCode, JobState};
use rstest::rstest;
use serde_json::{Value, json};
use tests::World;

fn with(field: &str, value: Value) -> Value {
    let mut body = json!({"prompt": "p"});
    body[field] = value;
    body
}

#[tokio::test]
async fn an_invalid_field_is_named() {
    let world = World::new().await;
    let ada = world.user("ada");
    let file = |path: &str| with("files", json!([{"path": path, "content": ""}]));
    let cases = [
        ("prompt", json!({})),
        ("prompt", json!({"prompt": "  "})),
        ("prompt", json!({"prompt": 7})),
        ("prompt", json!({"prompt": "a\u{0}b"})),
        ("prompt", json!({"prompt": "x".repeat(300_000)})),
        ("colour", with("colour", json!("red"))),
        ("limits.colour", with("limits", json!({"colour": 1}))),
        ("title", with("title", json!("two\nlines"))),
        ("mode", with("mode", json!("turbo"))),
        ("image", with("image", json!("evil:latest"))),
        ("model", with("model", json!("other"))),
        ("priority", with("priority", json!(101))),
        ("labels.a b", with("labels", json!({"a b": "c"}))),
        ("labels.a", with("labels", json!({"a": "x".repeat(256)}))),
        ("tools[1]", with("tools", json!(["shell", "no spaces"]))),
        ("limits.timeout_seconds", with("limits", json!({"timeout_seconds": 0}))),
        ("limits.timeout_seconds", with("limits", json!({"timeout_seconds": 10_000_000}))),
        ("limits.max_iterations", with("limits", json!({"max_iterations": -1}))),
        ("limits.cpus", with("limits", json!({"cpus": 99}))),
        ("limits.memory_mb", with("limits", json!({"memory_mb": 1}))),
        ("limits.pids", with("limits", json!({"pids": 100_000}))),
        ("files[0].path", file("/etc/passwd")),
        ("files[0].path", file("../up")),
        ("files[0].path", file("a/../../up")),
        ("files[0].path", file("")),
        ("files[0].path", file("a\u{0}b")),
    ];
    for (field, body) in cases {
        let reply = ada.post("/api/jobs", &body).await.problem(ErrorCode::Invalid);
        assert_eq!(reply.fields(), [field], "{body:.200}");
    }
    let body = json!({"prompt": "", "priority": 1000, "labels": {"a b": ""}, "limits": {"cpus": 99}});
    let reply = ada.post("/api/jobs", &body).await.problem(ErrorCode::Invalid);
    assert_eq!(reply.fields(), ["prompt", "priority", "labels.a b", "limits.cpus"], "all at once");
    assert_eq!(ada.jobs().await, []);
    assert!(world.engine().requested_starts().is_empty());
    world.finish().await;
}

#[tokio::test]
async fn a_file_has_exactly_one_content() {
    let world = World::new().await;
    let ada = world.user("ada");
    for file in [
        json!({"path": "a"}),
        json!({"path": "a", "content": "", "content_base64": ""}),
        json!({"path": "a", "content_base64": "%%%"}),
    ] {
        let reply = ada.post("/api/jobs", &with("files", json!([file]))).await.problem(ErrorCode::Invalid);
        assert!(reply.fields()[0].starts_with("files[0]"), "{:?}", reply.fields());
    }
    let twice = json!([{"path": "a", "content": ""}, {"path": "a", "content": ""}]);
    ada.post("/api/jobs", &with("files", twice)).await.problem(ErrorCode::Invalid);
    world.finish().await;
}

#[tokio::test]
async fn unsupported_fields_are_refused() {
    let world = World::new().await;
    let ada = world.user("ada");
    for (field, body) in [
        ("mode", with("mode", json!("command"))),
        ("command", with("command", json!(["codex"]))),
        ("egress.allow", with("egress", json!({"allow": ["example.org:443"]}))),
    ] {
        let reply = ada.post("/api/jobs", &body).await.problem(ErrorCode::NotAvailable);
        assert_eq!(reply.fields(), [field]);
    }
    assert_eq!(ada.jobs().await, []);
    world.finish().await;
}

#[tokio::test]
async fn malformed_bodies_are_400_or_415_and_unknown_paths_are_404() {
    let world = World::new().await;
    let ada = world.user("ada");
    for body in ["", "{", "{\"prompt\": \"a\"} x", "\u{1}", "{\"prompt\": \"\\ud800\"}"] {
        ada.post_raw("/api/jobs", body).await.problem(ErrorCode::BadRequest);
    }
    for body in ["[]", "\"a\"", "null", "7"] {
        ada.post_raw("/api/jobs", body).await.problem(ErrorCode::Invalid);
    }
    let form = ada.request(reqwest::Method::POST, "/api/jobs").body("prompt=a");
    tests::Reply::of(form).await.problem(ErrorCode::UnsupportedMediaType);
    for id in ["x", "00000000-0000-0000-0000-000000000000", "{0193b1f0-5b6e-7c3a-9b1e-2f4d5a6b7c8d}", "..%2f..%2fetc"] {
        ada.get(&format!("/api/jobs/{id}")).await.problem(ErrorCode::NotFound);
        ada.post(&format!("/api/jobs/{id}/cancel"), &json!({})).await.problem(ErrorCode::NotFound);
        ada.get(&format!("/api/jobs/{id}/events")).await.problem(ErrorCode::NotFound);
    }
    ada.get("/api/nothing").await.problem(ErrorCode::NotFound);
    let wrong = ada.request(reqwest::Method::DELETE, "/api/jobs");
    tests::Reply::of(wrong).await.problem(ErrorCode::MethodNotAllowed);
    let host = ada.request(reqwest::Method::GET, "/api/jobs").header("Host", "rebound.example");
    tests::Reply::of(host).await.problem(ErrorCode::MisdirectedRequest);
    world.finish().await;
}

#[rstest]
#[case(ReadinessReason::EngineUnreachable)]
#[case(ReadinessReason::ImageMissing)]
#[case(ReadinessReason::RuntimeMissing)]
#[case(ReadinessReason::PostureUnsupported)]
#[tokio::test]
async fn without_a_sandbox_no_job_is_stored_or_run(#[case] reason: ReadinessReason) {
    let world = World::builder().not_ready(reason).build().await;
    let ada = world.user("ada");
    let body = json!({"prompt": "p", "files": [{"path": "a", "content": "b"}]});
    let reply = ada.post("/api/jobs", &body).await.problem(ErrorCode::SandboxUnavailable);
    assert_eq!(reply.body["reason"], reason.as_str());
    let ready = world.anonymous().get("/readyz").await.expect(503);
    assert_eq!(ready.body["sandbox"]["reason"], reason.as_str());
    world.anonymous().get("/healthz").await.expect(200);
    assert_eq!(ada.jobs().await, []);
    assert!(world.engine().requested_starts().is_empty());
    assert!(!world.config().workspace_dir.exists(), "no workspace was made");
    world.finish().await;
}

#[tokio::test]
async fn a_disabled_sandbox_is_healthy_and_refuses_jobs() {
    let world = World::builder().set("GANTRY_SANDBOX", "disabled").build().await;
    let ada = world.user("ada");
    let reply = ada.post("/api/jobs", &json!({"prompt": "p"})).await.problem(ErrorCode::SandboxUnavailable);
    assert_eq!(reply.body["reason"], "disabled_by_config");
    world.anonymous().get("/readyz").await.expect(200);
    assert_eq!(ada.jobs().await, []);
    world.finish().await;
}

#[tokio::test]
async fn an_accepted_job_waits_until_the_sandbox_is_ready_again() {
    // Readiness is cached for one second; advance the clock past it.
    let time = ManualClock::at(Clock::system().now());
    let world = World::builder().clock(&time).set("GANTRY_MAX_PARALLEL_JOBS", 1).build().await;
    let ada = world.user("ada");
    let first = ada.create_job("first").await;
    let worker = world.manual_worker(first).await;
    let waiting = ada.create_job("second").await;
    world.engine().not_ready(ReadinessReason::EngineUnreachable);
    time.advance(Duration::from_secs(2));
    worker.finish("done").await;
    world.engine().until_removed(first).await;
    world.engine().until_listed_again().await;
    let job = ada.job(waiting).await;
    assert_eq!((job.state, job.attempt), (JobState::Pending, 0), "the attempt number must not change");
    assert!(job.message.is_some_and(|message| message == "waiting: the container engine does not answer"));
    world.engine().ready();
    time.advance(Duration::from_secs(2));
    let worker = world.manual_worker(waiting).await;
    let job = ada.job(waiting).await;
    assert_eq!((job.attempt, job.message), (1, None));
    worker.finish("done").await;
    ada.wait_for(waiting, JobState::Completed).await;
    world.finish().await;
}
