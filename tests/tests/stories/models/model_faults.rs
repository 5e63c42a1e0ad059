//! Failing models, with the real worker: the job ends with the right reason.

use protocol::{EventData, Job, JobReason, JobState};
use serde_json::{Value, json};
use tests::{World, script_of};

use crate::{
    access::leaks,
    chat,
    models::upstream::{Answer, Upstream},
};

async fn run_to_end(script: String, body: Value, state: JobState) -> Job {
    run_to_end_with_patience(script, body, state, 300).await
}

async fn run_to_end_with_patience(script: String, body: Value, state: JobState, patience_seconds: u64) -> Job {
    let world = World::builder()
        .processes()
        .script(script)
        .set("GANTRY_LLM_TIMEOUT_SECONDS", 1)
        .set("GANTRY_LLM_OUTAGE_PATIENCE_SECONDS", patience_seconds)
        .build()
        .await;
    let ada = world.user("ada");
    let id = ada.create(body).await;
    let job = ada.wait_for_end(id).await;
    assert_eq!(job.state, state, "{job:#?}");
    world.finish().await;
    job
}

/// Runs each case in its own world, all in parallel: nearly all of the time is waiting.
#[tokio::test]
async fn an_unresponsive_model_fails_the_job() {
    let cases = [
        (json!({"error": {"status": 503, "message": "maintenance"}}), "maintenance"),
        (json!({"garbage": true}), "invalid_response"),
        (json!({"reply": {"text": "half of an answer", "cut_after_chars": 5}}), "stream_interrupted"),
        (json!({"hang": true}), "timeout"),
        (json!({"error": {"status": 401, "message": "bad key"}}), "bad key"),
    ];
    let reported = cases.map(|(rule, named)| async move {
        let job = run_to_end_with_patience(script_of(&[rule]), json!({"prompt": "p"}), JobState::Failed, 1).await;
        assert_eq!((job.reason, job.attempt), (Some(JobReason::LlmError), 1), "{named}");
        let message = job.message.unwrap_or_default();
        assert!(message.contains(named), "{message}");
    });
    futures_util::future::join_all(reported).await;
}

#[tokio::test]
async fn transient_model_errors_are_retried() {
    let cases = [
        json!({"times": 1, "error": {"status": 500, "message": "hiccup"}}),
        // More failures than the gateway retries.
        json!({"times": 4, "error": {"status": 500, "message": "hiccup"}}),
        json!({"times": 1, "garbage": true}),
        json!({"times": 1, "reply": {"text": "half", "cut_after_chars": 2}}),
        json!({"times": 1, "rate_limit": {"retry_after_seconds": 1}}),
        json!({"times": 1, "rate_limit": {}}),
    ];
    let reported = cases.map(|rule| async move {
        let script = script_of(&[rule.clone(), json!({"reply": {"text": "fine"}})]);
        let job = run_to_end(script, json!({"prompt": "p"}), JobState::Completed).await;
        assert_eq!(job.result.and_then(|result| result.text).as_deref(), Some("fine"), "{rule}");
    });
    futures_util::future::join_all(reported).await;
}

#[tokio::test]
async fn an_endlessly_repeated_failing_call_ends_as_duplicate_calls() {
    let call = json!({"reply": {"tool_calls": [{"name": "read_file", "arguments": {"path": "missing"}}]}});
    let job = run_to_end(script_of(&[call]), json!({"prompt": "p"}), JobState::Failed).await;
    assert_eq!(job.reason, Some(JobReason::DuplicateCalls));
    assert_eq!((job.usage.llm_calls, job.usage.tool_calls), (6, 5));
    let partial = job.result.and_then(|result| result.partial).unwrap();
    assert!(partial.last_actions.iter().all(|action| action.starts_with("read_file")), "{partial:?}");
}

#[tokio::test]
async fn at_the_iteration_limit_the_job_fails_with_its_partial_text() {
    let rules = [
        json!({"when": {"has_tools": true}, "reply": {"tool_calls": [{"name": "echo", "arguments": {"message": "{{turn}}"}}]}}),
        json!({"reply": {"text": "as far as I got"}}),
    ];
    let body = json!({"prompt": "p", "limits": {"max_iterations": 3}});
    let job = run_to_end(script_of(&rules), body, JobState::Failed).await;
    assert_eq!((job.reason, job.usage.llm_calls, job.usage.iterations), (Some(JobReason::IterationLimit), 3, 3));
    let result = job.result.unwrap();
    assert_eq!((result.text, result.partial.map(|partial| partial.text)), (None, Some("as far as I got".to_owned())));
}

#[tokio::test]
async fn at_the_limit_of_tool_calls_the_job_fails() {
    let call = json!({"reply": {"tool_calls": [{"name": "echo", "arguments": {"message": "{{turn}}"}}]}});
    let body = json!({"prompt": "p", "limits": {"max_tool_calls": 2}});
    let job = run_to_end(script_of(&[call]), body, JobState::Failed).await;
    // The call beyond the limit is recorded as refused; it is neither executed nor counted.
    assert_eq!((job.reason, job.usage.tool_calls), (Some(JobReason::ToolCallLimit), 2));
    let partial = job.result.and_then(|result| result.partial).unwrap();
    assert_eq!((partial.tool_calls, partial.last_actions), (2, vec!["echo: ok".to_owned(); 2]));
}

#[tokio::test]
async fn a_model_with_empty_replies_fails_the_job() {
    let nothing = json!({"reply": {"text": "", "finish_reason": "stop"}});
    let job = run_to_end(script_of(&[nothing]), json!({"prompt": "p"}), JobState::Failed).await;
    assert_eq!(job.reason, Some(JobReason::EmptyReply));
    assert_eq!(job.result.and_then(|result| result.text), None);
}

/// The model cannot call tools as its provider is set up, which a person has to change.
#[tokio::test]
async fn a_model_that_writes_its_calls_as_text_fails_the_job_with_the_setting() {
    let call = json!({"reply": {"text": "I look.\n<tool_call>{\"name\": \"echo\", \"arguments\": {}}</tool_call>"}});
    let job = run_to_end(script_of(&[call]), json!({"prompt": "p"}), JobState::Failed).await;
    assert_eq!((job.reason, job.usage.llm_calls, job.usage.tool_calls), (Some(JobReason::EmptyReply), 2, 0));
    let message = job.message.unwrap_or_default();
    assert!(message.contains("tool echo") && message.contains("llm.text_tool_calls"), "{message}");
    assert_eq!(job.result.and_then(|result| result.text), None);
}

#[tokio::test]
async fn a_failed_call_is_recorded_and_shown_in_the_events() {
    let script = script_of(&[
        json!({"times": 3, "error": {"status": 500, "message": "hiccup"}}),
        json!({"reply": {"text": "never asked"}}),
    ]);
    let world = World::builder().processes().script(script).set("GANTRY_LLM_OUTAGE_PATIENCE_SECONDS", 0).build().await;
    let ada = world.user("ada");
    let id = ada.create_job("p").await;
    let job = ada.wait_for(id, JobState::Failed).await;
    assert_eq!(job.reason, Some(JobReason::LlmError));
    let calls = ada.get(&format!("/api/jobs/{id}/llm-calls")).await.expect(200).body;
    assert!(calls["items"][0]["error"].as_str().is_some_and(|error| error.contains("hiccup")), "{calls:#}");
    let reported = ada
        .events(id)
        .await
        .into_iter()
        .any(|event| matches!(event.data, EventData::LlmCall { finish_reason, .. } if finish_reason == "error"));
    assert!(reported);
    world.finish().await;
}

/// A provider may repeat what it knows. Its message is redacted before it is cut, which happens within the secret here,
/// and before it is logged.
#[tokio::test]
async fn the_error_of_a_provider_has_no_secret_of_the_user() {
    const SECRET: &str = "correct-horse-battery-staple";
    let message = format!("{} {SECRET}", "x".repeat(345));
    let upstream = Upstream::start(move |_| (Answer::Refusal(400, message.clone()), Value::Null)).await;
    let log = leaks::start_log();
    let world = upstream.world().build().await;
    let ada = world.user("ada");
    ada.post("/api/secrets", &json!({"name": "TOKEN", "value": SECRET})).await.expect(201);
    let history = chat::turn(&ada, "hello").await;
    let id = ada.create_job("work").await;
    let worker = world.manual_worker(id).await;
    let refused = worker.ask("c1", "hello").await;
    let calls = ada.get(&format!("/api/jobs/{id}/llm-calls")).await.expect(200).body;
    let error = calls["items"][0]["error"].as_str().unwrap_or_default();
    assert!(error.ends_with("x [redacted]"), "{calls:#}");
    worker.finish("done").await;
    ada.wait_for_end(id).await;
    world.finish().await;
    let log = std::fs::read_to_string(log.path()).unwrap();
    assert!(log.contains("model call failed") && log.contains("x [redacted]"), "{log}");
    for text in [format!("{history:?}"), refused.body.to_string(), calls.to_string(), log] {
        assert!(text.contains("xxx") && !text.contains("correct-horse"), "{text}");
    }
}
