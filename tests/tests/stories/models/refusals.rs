//! What jobs, runs and chats do after a refusal of a provider: which ones are asked again, in what form and when, and which ones
//! are about one request only.

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use axum::{
    http::{
        StatusCode,
        header::{CONTENT_TYPE, RETRY_AFTER},
    },
    response::IntoResponse as _,
};
use protocol::{ApprovalRequirement, ChatContent, CreateJob, Job, JobState, RoutineRun, RunReason, RunStatus};
use rstest::rstest;
use serde_json::{Value, json};
use tests::{User, World, routines::triggered};

use super::upstream::{Answer, Upstream};
use crate::{
    chat::{answers, turn},
    mcp::{
        server::{McpTestServer, tool},
        settings,
    },
    routines::create,
};

type Requests = Arc<Mutex<Vec<Value>>>;

/// A provider that answers by the request and by how many there were before.
async fn provider(answer: impl Fn(&Value, usize) -> Answer + Send + Sync + 'static) -> (Upstream, Requests) {
    let requests = Requests::default();
    let kept = Arc::clone(&requests);
    let upstream = Upstream::start(move |request| {
        let mut kept = kept.lock().unwrap();
        kept.push(request.clone());
        (answer(request, kept.len() - 1), json!({"prompt_tokens": 3, "completion_tokens": 2}))
    })
    .await;
    (upstream, requests)
}

fn refusal(status: StatusCode, error: &Value) -> Answer {
    Answer::Response((status, axum::Json(json!({"error": error}))).into_response())
}

/// A model that thinks until the output limit is reached.
fn only_thoughts() -> Answer {
    let chunk = |delta: Value, finish: Value| {
        let choice = json!({"index": 0, "delta": delta, "finish_reason": finish});
        format!("data: {}\n\n", json!({"object": "chat.completion.chunk", "choices": [choice]}))
    };
    let thought = chunk(json!({"role": "assistant", "reasoning_content": "Let me think."}), Value::Null);
    let end = chunk(json!({}), json!("length"));
    let body = format!("{thought}{end}data: [DONE]\n\n");
    Answer::Response(([(CONTENT_TYPE, "text/event-stream")], body).into_response())
}

/// The end of a job that this process runs itself.
async fn job(world: &World, prompt: &str, tools: &[&str]) -> Job {
    let tools = Some(tools.iter().map(|&name| name.to_owned()).collect());
    let request = CreateJob { prompt: prompt.to_owned(), tools, ..CreateJob::default() };
    let id = world.submit("ada", request).await.unwrap();
    world.user("ada").wait_for_end(id).await
}

fn result(job: Job) -> Option<String> {
    job.result.and_then(|result| result.text)
}

async fn routine(user: &User) -> String {
    create(user, "watch", json!({"type": "lightweight", "prompt": "Check."})).await
}

/// What providers say of a call that a model wrote badly. Another try may bring another one.
#[tokio::test]
async fn a_call_that_the_provider_cannot_read_is_asked_for_again() {
    let (upstream, requests) = provider(|_, before| match before {
        0 => refusal(
            StatusCode::BAD_REQUEST,
            &json!({"message": "Failed to call a function.", "type": "invalid_request_error", "code": "tool_use_failed",
                    "failed_generation": "<function=echo{\"message\": \"hi}</function>"}),
        ),
        _ => Answer::Text("Fine.".to_owned()),
    })
    .await;
    let world = upstream.world().set("GANTRY_SANDBOX", "disabled").build().await;
    let job = job(&world, "work", &["echo"]).await;
    assert_eq!((job.state, requests.lock().unwrap().len()), (JobState::Completed, 2), "{job:#?}");
    assert_eq!(result(job).as_deref(), Some("Fine."));
    world.finish().await;
}

/// The words of Qwen's provider.
#[tokio::test]
async fn a_prompt_that_is_too_long_in_whatever_words_is_compacted_once() {
    let (upstream, requests) = provider(|request, _| {
        let results =
            request["messages"].as_array().unwrap().iter().filter(|message| message["role"] == "tool").count();
        // Only a request for a summary offers no tools.
        if request["tools"].is_null() {
            return Answer::Text("Three messages were repeated.".to_owned());
        }
        if request["messages"].to_string().contains("Three messages were repeated.") {
            return Answer::Text("Done.".to_owned());
        }
        if results == 3 {
            let message = "<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 6144]";
            return refusal(StatusCode::BAD_REQUEST, &json!({"message": message, "code": "invalid_parameter_error"}));
        }
        Answer::Calls(vec![("echo", json!({"message": format!("{results} {}", "ships ".repeat(1_000))}))])
    })
    .await;
    let world = upstream.world().set("GANTRY_SANDBOX", "disabled").build().await;
    let job = job(&world, "work", &["echo"]).await;
    assert_eq!(job.state, JobState::Completed, "{job:#?}");
    assert_eq!(result(job).as_deref(), Some("Done."));
    // Three calls, the refusal, the summary, the answer.
    assert_eq!(requests.lock().unwrap().len(), 6);
    world.finish().await;
}

#[rstest]
#[case::moderation(|| refusal(
    StatusCode::FORBIDDEN,
    &json!({"code": 403, "message": "Your input was flagged", "metadata": {"flagged_input": "FLAGGED", "reasons": ["x"]}}),
))]
#[case::firewall(|| Answer::Response(
    (StatusCode::FORBIDDEN, "<html>\r\n<head><title>403 Forbidden</title></head>\r\n</html>").into_response(),
))]
#[tokio::test]
async fn a_text_that_is_refused_fails_a_run_and_disables_no_routine(#[case] refused: fn() -> Answer) {
    let (upstream, _) = provider(move |request, _| {
        let is_flagged = request["messages"].to_string().contains("FLAGGED");
        if is_flagged { refused() } else { Answer::Text("ROUTINE_OK".to_owned()) }
    })
    .await;
    let world = upstream.world().build().await;
    let ada = world.user("ada");
    let routine = routine(&ada).await;
    let path = format!("/api/routines/{routine}/trigger");
    for (text, expected) in [("FLAGGED", RunStatus::Failed), ("harmless", RunStatus::Ok)] {
        let body = json!({"wait_seconds": 60, "payload": {"text": text}});
        let run: RoutineRun = ada.post(&path, &body).await.expect(200).json();
        assert_eq!(run.status, expected, "{run:?}");
        assert_ne!(run.reason, Some(RunReason::ProviderAccount), "{run:?}");
        let shown = ada.get(&format!("/api/routines/{routine}")).await.expect(200).body;
        assert_eq!((&shown["enabled"], &shown["disabled_reason"]), (&json!(true), &Value::Null), "{shown:#}");
    }
    world.finish().await;
}

#[tokio::test]
async fn a_forbidden_key_disables_the_routine() {
    let error = json!({"message": "Incorrect API key provided", "code": "invalid_api_key"});
    let (upstream, _) = provider(move |_, _| refusal(StatusCode::FORBIDDEN, &error)).await;
    let world = upstream.world().build().await;
    let ada = world.user("ada");
    let routine = routine(&ada).await;
    let run = triggered(&ada, &routine).await;
    assert_eq!((run.status, run.reason), (RunStatus::Failed, Some(RunReason::ProviderAccount)), "{run:?}");
    let shown = ada.get(&format!("/api/routines/{routine}")).await.expect(200).body;
    assert_eq!((&shown["enabled"], &shown["disabled_reason"]), (&json!(false), &json!("provider_account")));
    world.finish().await;
}

/// Servers that do not know how long say zero.
#[tokio::test]
async fn a_wait_of_zero_seconds_is_the_usual_backoff() {
    let times = Arc::new(Mutex::new(vec![]));
    let asked = Arc::clone(&times);
    let (upstream, _) = provider(move |_, before| {
        asked.lock().unwrap().push(Instant::now());
        match before {
            0 => Answer::Response((StatusCode::TOO_MANY_REQUESTS, [(RETRY_AFTER, "0")], "slow down").into_response()),
            _ => Answer::Text("Fine.".to_owned()),
        }
    })
    .await;
    let world = upstream.world().set("GANTRY_SANDBOX", "disabled").build().await;
    let job = job(&world, "work", &["echo"]).await;
    assert_eq!(job.state, JobState::Completed, "{job:#?}");
    let times = times.lock().unwrap().clone();
    let [first, second] = times[..] else { panic!("{times:?}") };
    // The first wait is a second, of which up to a half is jitter.
    assert!(second - first >= Duration::from_millis(500), "{:?}", second - first);
    world.finish().await;
}

#[tokio::test]
async fn an_output_limit_that_thinking_used_up_is_named() {
    let (upstream, _) = provider(|_, _| only_thoughts()).await;
    let world = upstream.world().set("GANTRY_SANDBOX", "disabled").build().await;
    let ada = world.user("ada");
    let history = turn(&ada, "hello").await;
    let Some(ChatContent::Error { content, .. }) = history.messages.last().map(|message| &message.content) else {
        panic!("{history:?}")
    };
    let job = job(&world, "work", &["echo"]).await;
    assert_eq!(job.state, JobState::Failed, "{job:#?}");
    let run = triggered(&ada, &routine(&ada).await).await;
    assert_eq!(run.status, RunStatus::Failed, "{run:?}");
    let shown = ada.get(&format!("/api/runs/{}", run.id)).await.expect(200).body.to_string();
    for text in [content, &job.message.unwrap_or_default(), &shown] {
        assert!(text.contains("llm.max_output_tokens"), "{text}");
    }
    world.finish().await;
}

/// A server with a tool whose parameters are in no object that Anthropic takes, and the refusal of its models.
#[tokio::test]
async fn a_schema_that_the_provider_refuses_is_sent_folded_and_still_checked() {
    let mut either = tool("either", "needs one of two");
    either["inputSchema"] = json!({
        "type": "object",
        "properties": {"content": {"type": "string"}, "source_url": {"type": "string"}},
        "anyOf": [{"required": ["content"]}, {"required": ["source_url"]}],
    });
    let server = McpTestServer::start(&[tool("good", "repeats"), either]).await;
    let (upstream, requests) = provider(|request, _| {
        let union = |tool: &Value| tool["function"]["parameters"].get("anyOf").is_some();
        if let Some(at) = request["tools"].as_array().into_iter().flatten().position(union) {
            let message = "input_schema does not support oneOf, allOf, or anyOf at the top level";
            let message = format!("tools.{at}.custom.input_schema: {message}");
            return refusal(StatusCode::BAD_REQUEST, &json!({"type": "invalid_request_error", "message": message}));
        }
        let messages = request["messages"].as_array().unwrap();
        let newest = messages.last().unwrap();
        let asked = newest["content"].as_str().unwrap_or_default();
        match () {
            () if newest["role"] == "tool" => Answer::Text(format!("It answered: {asked}")),
            () if asked.starts_with("neither") => Answer::Calls(vec![("srv__either", json!({"other": "x"}))]),
            () if asked.starts_with("one") => Answer::Calls(vec![("srv__either", json!({"content": "x"}))]),
            () => Answer::Text("Hello.".to_owned()),
        }
    })
    .await;
    let mut world = upstream.world().set("GANTRY_SANDBOX", "disabled").build().await;
    let mut with_tools = settings("srv", &server);
    with_tools.requirement = ApprovalRequirement::Never;
    world.restart_with(|config| config.mcp = vec![with_tools]).await;
    let ada = world.user("ada");
    assert_eq!(answers(&turn(&ada, "hello").await), ["Hello."]);
    assert_eq!(requests.lock().unwrap().len(), 2, "the refused request is repeated in another form");
    let history = turn(&ada, "neither").await;
    assert_eq!(requests.lock().unwrap().len(), 4, "which is remembered");
    let answer = answers(&history).last().map(|text| (*text).to_owned()).unwrap();
    assert!(answer.contains("invalid_parameters"), "{answer}");
    let tools = ["srv__good", "srv__either"];
    let refused = result(job(&world, "neither", &tools).await).unwrap();
    assert!(refused.contains("invalid_parameters"), "{refused}");
    assert_eq!(server.requests("tools/call").len(), 0, "the server is not asked");
    let done = result(job(&world, "one", &tools).await).unwrap();
    assert!(done.contains(r#"{"content":"x"}"#), "{done}");
    world.finish().await;
}
