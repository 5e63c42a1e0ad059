//! The worker API of the fake orchestrator: a router whose handlers read the script and write the record.

use std::time::Duration;

use axum::{
    Json, Router,
    extract::{Query, Request, State},
    http::{StatusCode, header::AUTHORIZATION},
    middleware::{Next, from_fn_with_state},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use protocol::{
    CompleteReply, CompleteReport, CompletionRequest, ErrorCode, EventAck, EventBatch, JobAssignment, Problem,
    PromptId, ReportedOutcome, SESSION_HEADER, StatusReply, ToolCallReply, ToolCallRequest,
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Shared, Step, TOKEN};

fn problem(code: ErrorCode) -> Response {
    let problem = Problem {
        kind: format!("urn:gantry:problem:{}", code.as_str()),
        title: code.title().to_owned(),
        status: code.status(),
        detail: "scripted".to_owned(),
        code,
        reason: None,
        request_id: "r".to_owned(),
        errors: Vec::new(),
    };
    (StatusCode::from_u16(code.status()).unwrap(), Json(problem)).into_response()
}

pub(super) fn router(shared: Shared) -> Router {
    let worker = Router::new()
        .route("/job", get(async |State(shared): State<Shared>| Json(JobAssignment::clone(&shared.job))))
        .route("/llm/complete", post(complete_model))
        .route("/llm/complete_with_tools", post(complete_model))
        .route("/tools", get(async || Json(json!({"tools": []}))))
        .route("/tools/{name}", post(call_tool))
        .route("/events", post(store_events))
        .route("/prompt", get(poll_prompt))
        .route("/status", post(record_heartbeat))
        .route("/complete", post(record_report))
        .layer(from_fn_with_state(shared.clone(), authenticate));
    Router::new()
        .route("/health", get(async || "ok"))
        .nest(&format!("/worker/{}", shared.job.job_id), worker)
        .with_state(shared)
}

async fn authenticate(State(shared): State<Shared>, request: Request, next: Next) -> Response {
    let has_token = request.headers().get(AUTHORIZATION).is_some_and(|value| value == &format!("Bearer {TOKEN}"));
    let session = request.headers().get(SESSION_HEADER).map(|value| value.to_str().unwrap().to_owned());
    let rejected = {
        let mut record = shared.record();
        record.sessions.push(session.clone());
        record.sessions.first() != Some(&session) || record.attempt_over
    };
    if !has_token || rejected {
        return problem(ErrorCode::Unauthorized);
    }
    let response = next.run(request).await;
    shared.changed.send_replace(());
    response
}

async fn complete_model(State(shared): State<Shared>, Json(request): Json<CompletionRequest>) -> Response {
    let step = {
        let mut record = shared.record();
        record.requests.push(request.clone());
        let connections = record.connections;
        record.connections_at_first_model_call.get_or_insert(connections);
        if let Some(answer) = record.answered.get(&request.call_id) {
            return Json(answer.clone()).into_response();
        }
        record.script.pop_front().expect("the script has no more steps")
    };
    shared.changed.send_replace(());
    match step {
        Step::Say(answer) => {
            shared.record().answered.insert(request.call_id, (*answer).clone());
            Json(answer).into_response()
        }
        Step::Refuse(code) => problem(code),
        Step::Hang => std::future::pending().await,
    }
}

async fn call_tool(
    State(shared): State<Shared>,
    axum::extract::Path(name): axum::extract::Path<String>,
    Json(request): Json<ToolCallRequest>,
) -> Response {
    if let Some(code) = shared.record().tool_refusals.pop_front() {
        return problem(code);
    }
    let output = request.arguments["message"].clone();
    let truncated = name == "fetch";
    shared.record().remote_calls.push((name, request));
    let reply = ToolCallReply { success: true, output: Some(output), truncated, duration_ms: 1, error: None };
    Json(reply).into_response()
}

async fn store_events(State(shared): State<Shared>, Json(batch): Json<EventBatch>) -> Response {
    let mut record = shared.record();
    if record.max_batch_events.is_some_and(|max| batch.events.len() > max) {
        return problem(ErrorCode::TooLarge);
    }
    // After the size, so that a refusal can be that of a single event.
    if let Some(code) = record.event_refusals.pop_front() {
        return problem(code);
    }
    if record.acknowledges_nothing {
        return Json(EventAck { last_client_seq: 0 }).into_response();
    }
    for event in batch.events {
        if event.client_seq > record.events.len() as u64 {
            record.events.push(event);
        }
    }
    Json(EventAck { last_client_seq: record.events.len() as u64 }).into_response()
}

#[derive(Deserialize)]
struct Poll {
    wait_seconds: u64,
    after: PromptId,
}

async fn poll_prompt(State(shared): State<Shared>, Query(poll): Query<Poll>) -> Response {
    let mut changes = shared.changed.subscribe();
    let next = async {
        loop {
            {
                let mut record = shared.record();
                let acknowledged = record.prompts.iter().position(|prompt| prompt.prompt_id == poll.after);
                let acknowledged = acknowledged.map_or(0, |index| index + 1);
                if acknowledged > record.acknowledged {
                    record.acknowledged = acknowledged;
                    shared.changed.send_replace(());
                }
                if let Some(next) = record.prompts.get(acknowledged) {
                    return next.clone();
                }
            }
            changes.changed().await.unwrap();
        }
    };
    match tokio::time::timeout(Duration::from_secs(poll.wait_seconds), next).await {
        Ok(prompt) => Json(prompt).into_response(),
        Err(_) => StatusCode::NO_CONTENT.into_response(),
    }
}

async fn record_heartbeat(State(shared): State<Shared>) -> Json<Value> {
    let mut record = shared.record();
    record.heartbeats += 1;
    let reply: StatusReply =
        serde_json::from_value(json!({"cancel": record.cancel, "lease_expires_at": "2030-01-01T00:00:00Z"})).unwrap();
    Json(serde_json::to_value(reply).unwrap())
}

async fn record_report(State(shared): State<Shared>, Json(report): Json<CompleteReport>) -> Response {
    let mut record = shared.record();
    if let Some(late) = record.late_prompt.take() {
        record.prompts.push(late);
    }
    if report.outcome == ReportedOutcome::Completed && record.acknowledged < record.prompts.len() {
        record.refused_reports += 1;
        return problem(ErrorCode::PromptsWaiting);
    }
    record.reports.push(report);
    Json(CompleteReply { accepted: true }).into_response()
}
