//! The trace of a job: from the request that created it through the dispatcher into its worker and back.

use std::{
    io,
    sync::{Arc, Mutex},
};

use axum::{Router, body::Bytes, extract::State, routing::post};
use opentelemetry_proto::tonic::{
    collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse},
    trace::v1::Span,
};
use orchestrator::telemetry::{LogFormatter, subscriber, traces::Traces};
use prost::Message as _;
use reqwest::Method;
use serde_json::json;
use tests::{Reply, World, script_of};
use tokio::{net::TcpListener, task::JoinSet};

/// The client's identifiers, as in W3C Trace Context.
const TRACE: u128 = 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736;
const CLIENT_SPAN: u64 = 0x00f0_67aa_0ba9_02b7;

/// The spans that a collector received.
#[derive(Clone, Default)]
struct Collected(Arc<Mutex<Vec<ExportTraceServiceRequest>>>);

async fn take(State(collected): State<Collected>, body: Bytes) -> Vec<u8> {
    collected.0.lock().unwrap().push(ExportTraceServiceRequest::decode(body).expect("OTLP"));
    ExportTraceServiceResponse::default().encode_to_vec()
}

/// A collector and its address. It stops when the set is dropped.
async fn collector() -> (Collected, String, JoinSet<io::Result<()>>) {
    let collected = Collected::default();
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let router = Router::new().route("/v1/traces", post(take)).with_state(collected.clone());
    let mut server = JoinSet::new();
    server.spawn(async move { axum::serve(listener, router).await });
    (collected, address, server)
}

impl Collected {
    /// The spans of the client's trace.
    fn spans(&self) -> Vec<Span> {
        let requests = self.0.lock().unwrap();
        let scopes = requests.iter().flat_map(|request| &request.resource_spans).flat_map(|spans| &spans.scope_spans);
        scopes.flat_map(|scope| &scope.spans).filter(|span| span.trace_id == TRACE.to_be_bytes()).cloned().collect()
    }
}

#[tokio::test]
async fn a_job_and_the_request_that_created_it_share_one_trace() {
    let (collected, address, _server) = collector().await;
    let traces = Traces::new(&address).unwrap();
    let lines = subscriber("off", LogFormatter::Json, io::sink, Some(&traces)).unwrap();
    // The test's thread runs the whole orchestrator; the worker is a separate process.
    let tracing = tracing::subscriber::set_default(lines);
    let script = script_of(&[
        json!({"when": {"turn": 1}, "reply": {"tool_calls": [{"name": "echo", "arguments": {"message": "a secret"}}]}}),
        json!({"reply": {"text": "a secret, too"}}),
    ]);
    let world = World::builder().processes().script(script).build().await;
    let ada = world.user("ada");
    let create = ada.request(Method::POST, "/api/jobs").json(&json!({"prompt": "a secret plan"}));
    let create = create.header("traceparent", format!("00-{TRACE:032x}-{CLIENT_SPAN:016x}-01"));
    let id = Reply::of(create).await.expect(201).json::<protocol::Job>().id;
    ada.wait_for_end(id).await;
    world.finish().await;
    drop(tracing);
    tokio::task::spawn_blocking(move || traces.shutdown()).await.unwrap();

    let spans = collected.spans();
    let names: Vec<&str> = spans.iter().map(|span| span.name.as_str()).collect();
    let one =
        |name: &str| spans.iter().find(|span| span.name == name).unwrap_or_else(|| panic!("no {name} in {names:#?}"));
    let created = one("POST /api/jobs");
    assert_eq!(created.parent_span_id, CLIENT_SPAN.to_be_bytes());
    assert_eq!(one("job.start").parent_span_id, created.span_id, "the dispatcher's work is the request's");
    let asked = one("POST /worker/{job_id}/llm/complete_with_tools");
    assert_eq!(asked.parent_span_id, created.span_id, "the worker must continue the trace");
    assert_eq!(one("llm.call").parent_span_id, asked.span_id);
    assert_eq!(one("tool.call").parent_span_id, one("POST /worker/{job_id}/tools/{name}").span_id);
    assert!(!format!("{spans:?}").contains("secret"), "prompts and answers must not be in spans");
}
