//! Metrics: what a scraper sees, and who may read them.

use std::time::Duration;

use orchestrator::{auth::Role, clock::ManualClock};
use protocol::{ErrorCode, JobState};
use reqwest::Method;
use tests::{World, WorldBuilder};

fn metrics_world() -> WorldBuilder {
    World::builder().set("GANTRY_METRICS_BIND", "127.0.0.1:0")
}

#[tokio::test]
async fn the_lifecycle_of_a_job_is_counted() {
    let world = metrics_world().build().await;
    let ada = world.user("ada");
    let id = ada.create_job("work").await;
    let worker = world.manual_worker(id).await;
    worker.job().await;
    let during = world.metrics().await;
    assert!((during.value("gantry_jobs{state=\"in_progress\"}") - 1.0).abs() < f64::EPSILON, "{}", during.text);
    let stream = ada.stream(id, None).await;
    world.until_metric("gantry_sse_readers", 1.0).await;
    worker.complete_llm("c1", "hello").await;
    worker.finish("done").await;
    ada.wait_for_end(id).await;
    stream.rest().await;
    world.until_metric("gantry_sse_readers", 0.0).await;
    let events = ada.events(id).await.len();
    let after = world.until_metric("gantry_container_removal_seconds_count", 1.0).await;
    let job = ada.job(id).await;
    #[expect(clippy::cast_precision_loss, reason = "a handful")]
    let expected = [
        ("gantry_jobs{state=\"in_progress\"}", 0.0),
        ("gantry_jobs{state=\"completed\"}", 1.0),
        ("gantry_queue_length", 0.0),
        ("gantry_jobs_ended_total{state=\"completed\",reason=\"none\"}", 1.0),
        ("gantry_queue_wait_seconds_count", 1.0),
        ("gantry_attempt_start_seconds_count", 1.0),
        ("gantry_model_call_seconds_count{provider=\"scripted\",outcome=\"answered\"}", 1.0),
        ("gantry_model_tokens_total{kind=\"input\"}", job.usage.input_tokens as f64),
        ("gantry_model_tokens_total{kind=\"output\"}", job.usage.output_tokens as f64),
        // Each of the three transitions is an event of the instance as well.
        ("gantry_events_appended_total", (events + 3) as f64),
        ("gantry_http_request_seconds_count{side=\"public\",method=\"POST\",route=\"/api/jobs\",status=\"2xx\"}", 1.0),
        (
            "gantry_http_request_seconds_count{side=\"worker\",method=\"GET\",route=\"/worker/{job_id}/job\",status=\"2xx\"}",
            1.0,
        ),
        ("gantry_workers_lost_total", 0.0),
        (concat!("gantry_build_info{version=\"", env!("CARGO_PKG_VERSION"), "\"}"), 1.0),
    ];
    for (name, value) in expected {
        assert!((after.value(name) - value).abs() < f64::EPSILON, "{name} is not {value} in\n{}", after.text);
    }
    assert!(job.usage.input_tokens > 0);
    assert!(after.names().iter().all(|name| name.starts_with("gantry_")), "{:?}", after.names());
    world.finish().await;
}

#[tokio::test]
async fn label_values_are_independent_of_request_content() {
    let world = metrics_world().build().await;
    let ada = world.user("ada");
    let id = ada.create_job("work").await;
    ada.get(&format!("/api/jobs/{id}")).await.expect(200);
    ada.get("/no/such/path-of-mine").await.problem(ErrorCode::NotFound);
    let odd = Method::from_bytes(b"ODDITY").unwrap();
    ada.request(odd, "/api/jobs").send().await.unwrap();
    world.manual_worker(id).await.finish("done").await;
    ada.wait_for_end(id).await;
    let text = world.metrics().await.text;
    for secret in [id.to_string().as_str(), "ada", "path-of-mine", "ODDITY"] {
        assert!(!text.contains(secret), "{secret} is a label in\n{text}");
    }
    assert!(text.contains("method=\"other\"") && text.contains("route=\"unmatched\""), "{text}");
    world.finish().await;
}

#[tokio::test]
async fn failures_are_counted() {
    let time = ManualClock::at("2026-11-22T12:00:00Z".parse().unwrap());
    let mut world = metrics_world().clock(&time).build().await;
    let ada = world.user("ada");
    let id = ada.create_job("work").await;
    let old = world.manual_worker(id).await;
    old.job().await;
    time.advance(Duration::from_secs(31));
    ada.wait_for(id, JobState::Stuck).await;
    let worker = loop {
        let worker = world.manual_worker(id).await;
        if worker.token != old.token {
            break worker;
        }
        // The previous container exists for another moment.
        tokio::task::yield_now().await;
    };
    worker.with_token(&old.token).get("job").await.problem(ErrorCode::Fenced);
    worker.job().await;
    // The container disappears without a report after a model call: the attempt is not repeated.
    worker.complete_llm("c1", "hello").await;
    worker.exit(0);
    ada.wait_for_end(id).await;
    for (name, value) in [
        ("gantry_jobs_stuck_total", 1.0),
        ("gantry_repairs_total{by=\"attempt\"}", 1.0),
        ("gantry_fenced_requests_total", 1.0),
        ("gantry_workers_lost_total", 1.0),
        ("gantry_jobs_ended_total{state=\"failed\",reason=\"worker_lost\"}", 1.0),
        ("gantry_jobs_stuck_total", 1.0),
    ] {
        world.until_metric(name, value).await;
    }
    world.stop().await;
    std::fs::create_dir_all(world.config().run_dir.join("gantry-job-without-row")).unwrap();
    world.start().await;
    world.until_metric("gantry_orphans_removed_total{kind=\"directory\"}", 1.0).await;
    world.finish().await;
}

#[tokio::test]
async fn on_the_public_address_only_admins_can_read_metrics() {
    let world = World::new().await;
    world.anonymous().get("/metrics").await.problem(ErrorCode::Unauthorized);
    world.user("ada").get("/metrics").await.problem(ErrorCode::Forbidden);
    let root = world.someone("root", Role::Admin);
    let answer = root.request(Method::GET, "/metrics").send().await.unwrap();
    assert_eq!(answer.headers()["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    assert!(answer.text().await.unwrap().contains("# TYPE gantry_jobs gauge"));
    world.finish().await;
    let world = metrics_world().build().await;
    world.someone("root", Role::Admin).get("/metrics").await.problem(ErrorCode::NotFound);
    world.metrics().await;
    world.finish().await;
}
