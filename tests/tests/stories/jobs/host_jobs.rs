//! Jobs that the orchestrator runs itself, where the operator disabled the sandbox: jobs like any other, without a
//! container.

use std::time::Instant;

use orchestrator::{
    dispatch::SubmitError,
    domain::{
        job::{AttemptStart, JobRecord},
        request::Rejected,
    },
    store::{CallKey, NewToolCall},
};
use protocol::{
    CreateJob, ErrorCode, EventData, Execution, InputFile, Job, JobId, JobReason, JobState, LimitsRequest, MessageRole,
    Placement,
};
use reqwest::Method;
use serde_json::{Value, json};
use tests::{Reply, User, World, WorldBuilder, script_of, until};

fn disabled(rules: &[Value]) -> WorldBuilder {
    World::builder().set("GANTRY_SANDBOX", "disabled").script(script_of(rules))
}

fn request(prompt: &str) -> CreateJob {
    CreateJob { prompt: prompt.to_owned(), ..CreateJob::default() }
}

fn limits(change: impl FnOnce(&mut LimitsRequest)) -> LimitsRequest {
    let mut limits = LimitsRequest::default();
    change(&mut limits);
    limits
}

/// A model that never answers.
fn hanging() -> Vec<Value> {
    vec![json!({"hang": true})]
}

fn calls(tools: &[(&str, Value)]) -> Value {
    let calls: Vec<Value> =
        tools.iter().map(|(name, arguments)| json!({"name": name, "arguments": arguments})).collect();
    json!(calls)
}

async fn submit(world: &World, request: CreateJob) -> JobId {
    world.submit("ada", request).await.unwrap()
}

/// Waits until the job's first model call is open.
async fn asked(user: &User, id: JobId) {
    until("the model to be asked", async || {
        let calls = user.get(&format!("/api/jobs/{id}/llm-calls")).await.expect(200).body;
        !calls["items"].as_array().unwrap().is_empty()
    })
    .await;
}

/// The tool results of a job, each with the name of its tool.
async fn results(user: &User, id: JobId) -> Vec<(String, bool, String)> {
    let events = user.events(id).await.into_iter();
    let result = |data| match data {
        EventData::ToolResult { tool, success, output, .. } => Some((tool, success, output)),
        _ => None,
    };
    events.filter_map(|event| result(event.data)).collect()
}

fn text_of(job: &Job) -> Option<&str> {
    job.result.as_ref().and_then(|result| result.text.as_deref())
}

#[tokio::test]
async fn a_job_runs_to_its_end_with_the_orchestrators_tools() {
    let memory = json!({"path": "notes/today.md", "content": "it rained"});
    let world = disabled(&[
        json!({"when": {"turn": 1}, "reply": {"text": "Three at once.", "tool_calls":
            calls(&[("echo", json!({"message": "hello"})), ("time", json!({})), ("memory_write", memory)])}}),
        json!({"when": {"turn": 2}, "reply": {"tool_calls": calls(&[("memory_read", json!({"path": "notes/today.md"}))])}}),
        json!({"reply": {"text": "{{tool_result}}"}}),
    ])
    .build()
    .await;
    let ada = world.user("ada");
    ada.post("/api/jobs", &json!({"prompt": "work"})).await.problem(ErrorCode::SandboxUnavailable);
    let id = submit(&world, request("look around")).await;
    let job = ada.wait_for(id, JobState::Completed).await;
    assert_eq!((job.placement, job.attempt, job.container.is_none()), (Placement::Host, 1, true));
    assert!(text_of(&job).is_some_and(|text| text.contains("it rained")), "{job:?}");
    let usage = job.usage;
    assert_eq!((usage.llm_calls, usage.iterations, usage.tool_calls), (3, 3, 4));
    let results = results(&ada, id).await;
    let tools: Vec<&str> = results.iter().map(|(tool, ..)| tool.as_str()).collect();
    assert_eq!(tools, ["echo", "time", "memory_write", "memory_read"]);
    assert!(results.iter().all(|(_, success, _)| *success), "{results:?}");
    let actions = ada.get(&format!("/api/jobs/{id}/actions")).await.expect(200).body;
    assert_eq!(actions["items"].as_array().unwrap().len(), 4, "{actions:#}");
    let document = ada.get("/api/memory?path=notes/today.md").await.expect(200).body;
    assert_eq!(document["content"], "it rained");
    for path in ["files", "files/a.txt", "archive"] {
        ada.get(&format!("/api/jobs/{id}/{path}")).await.problem(ErrorCode::NoWorkspace);
    }
    ada.put(&format!("/api/jobs/{id}/files/a.txt"), "application/octet-stream", "x")
        .await
        .problem(ErrorCode::NoWorkspace);
    assert!(!world.workspace(id).exists());
    world.finish().await;
}

#[tokio::test]
async fn fields_that_need_a_container_are_refused() {
    let world = disabled(&hanging()).build().await;
    let file = InputFile { path: "a.txt".to_owned(), content: Some("x".to_owned()), content_base64: None, mode: None };
    let asked = CreateJob { files: vec![file], image: Some(world.config().sandbox.image.clone()), ..request("work") };
    let refused = world.submit("ada", asked).await;
    let Err(SubmitError::Rejected(Rejected::Invalid(errors))) = refused else { panic!("{refused:?}") };
    let fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
    assert_eq!(fields, ["files", "image"]);
    assert!(world.user("ada").jobs().await.is_empty());
    world.finish().await;
}

#[tokio::test]
async fn a_job_is_cancelled_while_its_model_is_asked() {
    let world = disabled(&hanging()).build().await;
    let ada = world.user("ada");
    let id = submit(&world, request("work")).await;
    asked(&ada, id).await;
    ada.cancel(id).await.expect(202);
    let job = ada.wait_for(id, JobState::Cancelled).await;
    assert_eq!(job.reason, Some(JobReason::CancelledByUser));
    assert!(job.result.and_then(|result| result.partial).is_some());
    world.finish().await;
}

#[tokio::test]
async fn a_job_that_takes_too_long_fails() {
    let world = disabled(&hanging()).build().await;
    let ada = world.user("ada");
    let id = submit(
        &world,
        CreateJob { limits: Some(limits(|limits| limits.timeout_seconds = Some(1))), ..request("work") },
    )
    .await;
    let job = ada.wait_for(id, JobState::Failed).await;
    assert_eq!(job.reason, Some(JobReason::WallClock));
    world.finish().await;
}

#[tokio::test]
async fn prompts_reach_the_loop_in_their_order() {
    let world = disabled(&[
        json!({"when": {"turn": 1}, "reply": {"delay_ms": 3000, "tool_calls": calls(&[("time", json!({}))])}}),
        json!({"when": {"last_message": "turn left"}, "reply": {"text": "turned left"}}),
        json!({"when": {"last_message": "and then"}, "reply": {"text": "did that too"}}),
        json!({"reply": {"text": "done"}}),
    ])
    .build()
    .await;
    let ada = world.user("ada");
    let id = submit(&world, request("go")).await;
    asked(&ada, id).await;
    ada.prompt(id, json!({"content": "and then rest", "mode": "queue"})).await.expect(202);
    ada.prompt(id, json!({"content": "turn left"})).await.expect(202);
    // Both are received while the first call is answered, so that the second one has the newer prompt.
    world.prompts_taken(id).await;
    let job = ada.wait_for(id, JobState::Completed).await;
    assert_eq!((text_of(&job), job.usage.llm_calls), (Some("did that too"), 3));
    let messages = ada.events(id).await.into_iter().filter_map(|event| match event.data {
        EventData::Message { role: MessageRole::User, content } => Some(content),
        _ => None,
    });
    assert_eq!(messages.collect::<Vec<_>>(), ["go", "turn left", "and then rest"]);
    world.finish().await;
}

#[tokio::test]
async fn a_job_fails_with_the_process_that_stops() {
    let mut world = disabled(&hanging()).build().await;
    let ada = world.user("ada");
    let id = submit(&world, request("work")).await;
    asked(&ada, id).await;
    let since = Instant::now();
    world.stop().await;
    assert!(since.elapsed().as_secs() < 3, "{:?}", since.elapsed());
    let store = world.store().await;
    let stopped = store.job(id).await.unwrap().unwrap();
    assert_eq!((stopped.state(), stopped.reason()), (JobState::Failed, Some(JobReason::OrchestratorRestart)));
    store.close().await;
    world.start().await;
    world.finish().await;
}

#[tokio::test]
async fn a_job_of_a_process_that_died_fails_and_its_open_calls_are_closed() {
    let mut world = disabled(&hanging()).build().await;
    let id = submit(&world, CreateJob { hold: true, ..request("work") }).await;
    world.stop().await;
    // As a process leaves it that is killed while a tool runs.
    let (store, now) = (world.store().await, world.clock().now());
    let start = AttemptStart { attempt: 1, worker: None };
    store.transition(id, now, None, JobRecord::release).await.unwrap();
    store.transition(id, now, None, move |job| job.start(now, start)).await.unwrap();
    let call = NewToolCall {
        key: CallKey { execution: Execution::new(id, 1), call_id: "c1".into() },
        request_digest: "digest".to_owned(),
        at: now,
        tool: "echo".to_owned(),
        input: json!({"message": "hi"}),
        reasoning: None,
        estimated_cost_micro_usd: 0,
        is_repeatable: false,
        max_calls: Some(10),
    };
    store.open_tool_call(&call).await.unwrap();
    store.close().await;
    world.start().await;
    let ada = world.user("ada");
    let job = ada.wait_for(id, JobState::Failed).await;
    assert_eq!((job.reason, job.attempt), (Some(JobReason::OrchestratorRestart), 1));
    let actions = ada.get(&format!("/api/jobs/{id}/actions")).await.expect(200).body;
    assert_eq!(actions["items"][0]["success"], false, "{actions:#}");
    world.finish().await;
}

#[tokio::test]
async fn calls_pass_the_approval_table_of_jobs() {
    let heartbeat = json!({"path": "HEARTBEAT.md", "content": "x"});
    let world = disabled(&[
        json!({"when": {"turn": 1}, "reply": {"tool_calls": calls(&[
            ("echo", json!({"message": "hi"})),
            ("message", json!({"content": "hi"})),
            ("memory_write", heartbeat),
            ("secret_list", json!({})),
            ("Secret_List", json!({})),
            ("shell", json!({"command": "true"})),
        ])}}),
        json!({"reply": {"text": "done"}}),
    ])
    .build()
    .await;
    let ada = world.user("ada");
    let approve = |tools: &[&str]| tools.iter().map(|tool| (*tool).to_owned()).collect::<Vec<_>>();
    let (denied, disabled) = ("error (autonomous_unavailable)", "error (not_authorized)");
    // No permission but `disabled` changes anything: no person is there to ask.
    let table = [
        ("default", ["", "", denied], ["", "", ""]),
        ("always_allow", ["", "", denied], ["", "", ""]),
        ("ask_each_time", ["", "", denied], ["", "", ""]),
        ("disabled", [disabled; 3], [disabled; 3]),
    ];
    for (permission, without, with) in table {
        for tool in ["echo", "message", "memory_write"] {
            let request = ada.request(Method::PUT, &format!("/api/tools/{tool}/permission"));
            Reply::of(request.json(&json!({"permission": permission}))).await.expect(200);
        }
        for (approve, expected) in [(vec![], without), (approve(&["memory_write", "secret_list"]), with)] {
            let id = submit(&world, CreateJob { approve, ..request("work") }).await;
            ada.wait_for(id, JobState::Completed).await;
            let results = results(&ada, id).await;
            let kinds: Vec<&str> = results
                .iter()
                .map(|(_, success, output)| if *success { "" } else { output.split(':').next().unwrap() })
                .collect();
            let expected = [&expected[..], &[denied, denied, "error (not_found)"]].concat();
            assert_eq!(kinds, expected, "{permission}: {results:?}");
            let actions = ada.get(&format!("/api/jobs/{id}/actions")).await.expect(200).body;
            assert_eq!(actions["items"].as_array().unwrap().len(), 6, "refused calls have their rows: {actions:#}");
        }
    }
    // A list of tools narrows.
    let id = submit(&world, CreateJob { tools: Some(vec!["time".to_owned()]), ..request("work") }).await;
    ada.wait_for(id, JobState::Completed).await;
    assert!(results(&ada, id).await.iter().all(|(_, success, _)| !success));
    world.finish().await;
}

#[tokio::test]
async fn a_tool_that_is_disabled_meanwhile_is_refused() {
    let echo = calls(&[("echo", json!({"message": "hi"}))]);
    let world = disabled(&[
        json!({"when": {"turn": 1}, "reply": {"delay_ms": 1500, "tool_calls": echo}}),
        json!({"reply": {"text": "done"}}),
    ])
    .build()
    .await;
    let ada = world.user("ada");
    let id = submit(&world, request("work")).await;
    asked(&ada, id).await;
    let permission = ada.request(reqwest::Method::PUT, "/api/tools/echo/permission");
    tests::Reply::of(permission.json(&json!({"permission": "disabled"}))).await.expect(200);
    ada.wait_for(id, JobState::Completed).await;
    let results = results(&ada, id).await;
    assert!(results.len() == 1 && results[0].2.starts_with("error (not_authorized)"), "{results:?}");
    world.finish().await;
}

#[tokio::test]
async fn limits_of_the_model_end_a_job() {
    let usage = json!({"input_tokens": 300, "output_tokens": 100});
    let world =
        disabled(&[json!({"reply": {"text": "so far", "usage": usage, "tool_calls": calls(&[("time", json!({}))])}})])
            .build()
            .await;
    let ada = world.user("ada");
    for (limits, reason) in [
        (limits(|limits| limits.max_iterations = Some(2)), JobReason::IterationLimit),
        (limits(|limits| limits.max_tool_calls = Some(1)), JobReason::ToolCallLimit),
        (limits(|limits| limits.max_tokens = Some(2_500)), JobReason::TokenBudget),
    ] {
        let asked = CreateJob { limits: Some(limits), tools: Some(vec!["time".to_owned()]), ..request("work") };
        let id = submit(&world, asked).await;
        let job = ada.wait_for(id, JobState::Failed).await;
        assert_eq!(job.reason, Some(reason), "{job:?}");
        let partial = job.result.and_then(|result| result.partial);
        assert_eq!(partial.map(|partial| partial.text).as_deref(), Some("so far"));
    }
    world.finish().await;
}

#[tokio::test]
async fn they_wait_for_their_own_slots() {
    let world = disabled(&hanging()).set("GANTRY_MAX_PARALLEL_HOST_JOBS", 1).build().await;
    let ada = world.user("ada");
    let (first, second) = (submit(&world, request("first")).await, submit(&world, request("second")).await);
    asked(&ada, first).await;
    assert_eq!(ada.job(second).await.state, JobState::Pending);
    ada.cancel(first).await.expect(202);
    ada.wait_for(first, JobState::Cancelled).await;
    asked(&ada, second).await;
    ada.cancel(second).await.expect(202);
    ada.wait_for(second, JobState::Cancelled).await;
    world.finish().await;
}

#[tokio::test]
async fn a_child_runs_in_the_slot_of_its_waiting_parent() {
    let world = disabled(&[
        json!({"when": {"prompt": "a part"}, "reply": {"text": "the part is done"}}),
        json!({"when": {"turn": 1}, "reply": {"tool_calls": calls(&[("create_job", json!({"prompt": "a part", "wait": true}))])}}),
        json!({"reply": {"text": "{{tool_result}}"}}),
    ])
    .set("GANTRY_MAX_PARALLEL_HOST_JOBS", 1)
    .build()
    .await;
    let ada = world.user("ada");
    let parent = CreateJob { limits: Some(limits(|limits| limits.max_children = Some(1))), ..request("the whole") };
    let id = submit(&world, parent).await;
    let job = ada.wait_for(id, JobState::Completed).await;
    assert!(text_of(&job).is_some_and(|text| text.contains("the part is done")), "{job:?}");
    let child = ada.jobs().await.into_iter().find(|job| job.id != id).expect("a child");
    let child = ada.job(child.id).await;
    assert_eq!((child.parent_id, child.placement, child.state), (Some(id), Placement::Host, JobState::Completed));
    world.finish().await;
}

#[tokio::test]
async fn a_stored_secret_is_in_nothing_that_is_kept() {
    let world = disabled(&[
        json!({"when": {"turn": 1}, "reply": {"text": "it is hunter2-secret", "tool_calls":
            calls(&[("echo", json!({"message": "hunter2-secret"}))])}}),
        json!({"reply": {"text": "so it is hunter2-secret"}}),
    ])
    .build()
    .await;
    let ada = world.user("ada");
    ada.post("/api/secrets", &json!({"name": "password", "value": "hunter2-secret"})).await.expect(201);
    let id = submit(&world, request("look")).await;
    let job = ada.wait_for(id, JobState::Completed).await;
    assert_eq!(text_of(&job), Some("so it is [redacted]"));
    for path in ["", "/events", "/actions"] {
        let shown = ada.get(&format!("/api/jobs/{id}{path}")).await.expect(200).body.to_string();
        assert!(!shown.contains("hunter2-secret"), "{path}: {shown}");
    }
    world.finish().await;
}
