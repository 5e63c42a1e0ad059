//! The log: one line per request and one per job.
//!
//! In a separate program: `tracing` caches per process whether an event is enabled, so tests without a subscriber would
//! silence one with a subscriber.

use std::{
    io::Write,
    sync::{Arc, Mutex},
};

use orchestrator::telemetry::{LogFormatter, subscriber};
use serde_json::{Value, json};
use tests::World;

/// The lines logged on this thread.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Lines {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    /// The lines with this message.
    fn of(&self, message: &str) -> Vec<Value> {
        let lines = self.text();
        let parsed = lines.lines().map(|line| serde_json::from_str::<Value>(line).expect("each line is an object"));
        parsed.filter(|line| line["message"] == message).collect()
    }
}

#[tokio::test]
async fn each_request_and_each_job_logs_one_line() {
    let lines = Lines::default();
    let writer = lines.clone();
    // The test's thread runs the whole orchestrator.
    let _logging =
        tracing::subscriber::set_default(subscriber("info", LogFormatter::Json, move || writer.clone(), None).unwrap());
    let world = World::new().await;
    let ada = world.user("ada");
    let created = ada.post("/api/jobs", &json!({"prompt": "a secret plan"})).await.expect(201);
    let id = created.json::<protocol::Job>().id;
    let worker = world.manual_worker(id).await;
    worker.job().await;
    worker.complete_llm("c1", "a secret question").await;
    worker.record_message(1, "a secret answer").await.expect(200);
    worker.finish("a secret result").await;
    let job = ada.wait_for_end(id).await;
    world.finish().await;
    let ended = lines.of("job ended");
    assert_eq!(ended.len(), 1, "{ended:#?}");
    let reported = |name: &str| ended[0][name].clone();
    assert_eq!(reported("job.id"), id.to_string());
    let words = [reported("user"), reported("state"), reported("reason")];
    assert_eq!(words, ["ada", "completed", "-"]);
    let numbers = [
        reported("attempts"),
        reported("repairs"),
        reported("iterations"),
        reported("llm_calls"),
        reported("tool_calls"),
    ];
    assert_eq!(numbers, [1, 0, 1, 1, 0]);
    assert_eq!(reported("tokens.input"), job.usage.input_tokens);
    assert!(reported("wait_ms").is_u64() && reported("run_ms").is_u64() && reported("cost_usd").is_f64(), "{ended:#?}");
    let requests = lines.of("request");
    let of_the_worker = requests.iter().filter(|line| line["side"] == "worker").count();
    assert_eq!(of_the_worker, 0, "a container must not fill the log: {requests:#?}");
    let create: Vec<&Value> =
        requests.iter().filter(|line| line["request_id"] == *created.header("x-request-id").unwrap()).collect();
    assert_eq!(create.len(), 1, "{create:#?}");
    let line = create[0];
    assert_eq!([&line["method"], &line["route"], &line["user"], &line["side"]], ["POST", "/api/jobs", "ada", "public"]);
    assert_eq!(line["status"], 201);
    assert_eq!(line["bytes"], created.header("content-length").unwrap().parse::<u64>().unwrap());
    assert!(line["duration_ms"].is_u64());
    assert_eq!(line["from"], "127.0.0.1");
    assert!(!lines.text().contains("secret"), "prompts and answers must not be logged");
}

#[tokio::test]
async fn no_line_of_any_level_contains_a_stored_value() {
    let lines = Lines::default();
    let writer = lines.clone();
    let _logging = tracing::subscriber::set_default(
        subscriber("trace", LogFormatter::Json, move || writer.clone(), None).unwrap(),
    );
    let mut world = World::new().await;
    let value = "correct-horse-battery-staple";
    let ada = world.user("ada");
    ada.post("/api/secrets", &json!({"name": "TOKEN", "value": value})).await.expect(201);
    for body in [
        json!({"name": "TOKEN", "value": [value]}),
        json!({"name": value, "value": "short"}),
        json!({"name": "TOKEN", value: value}),
        json!(value),
    ] {
        ada.post("/api/secrets", &body).await.problem(protocol::ErrorCode::Invalid);
    }
    ada.post_raw("/api/secrets", &format!("{{\"name\": \"TOKEN\", \"value\": \"{value}\" x")).await.expect(400);
    world.restart().await;
    world.user("ada").get("/api/secrets").await.expect(200);
    world.finish().await;
    assert!(lines.of("request").len() >= 7, "the log has every request");
    assert_eq!(lines.of("request refused").len(), 5, "finer levels are on");
    assert!(!lines.text().contains(value), "{:#?}", lines.text().lines().find(|line| line.contains(value)));
}
