//! SIGKILL of the orchestrator at each critical instruction: the next process finds every job in a valid state.

use protocol::{
    ChatContent, ChatHistory, Gate, JobReason, JobState, Notification, NotificationKind, Page, ThreadState,
};
use rstest::rstest;
use serde_json::{Value, json};
use sqlx::{Connection as _, SqliteConnection};
use tests::{
    User,
    install::{
        engine::docker,
        jobs::is_tool_use,
        program::run,
        stack::{Stack, image},
    },
};
use tokio::net::TcpListener;

use crate::{
    invariants::check_invariants,
    setup::{install, post, restart_without_failpoint, wait_for_failpoint},
};

/// The attempt that does the work: the second if the first never had a container.
#[rstest]
#[case("create.before_row", 1)]
#[case("create.after_row", 1)]
#[case("start.after_row", 2)]
#[case("start.after_directory", 2)]
#[case("start.after_create", 1)]
#[case("start.after_start", 1)]
#[case("events.before_commit", 1)]
#[case("events.before_commit:3", 1)]
#[case("events.after_commit", 1)]
#[case("events.after_commit:3", 1)]
#[case("llm.after_open", 1)]
#[case("llm.after_open:2", 1)]
#[case("llm.after_answer", 1)]
#[case("llm.after_answer:2", 1)]
#[case("complete.before_commit", 1)]
#[case("complete.after_commit", 1)]
#[case("remove.before", 1)]
#[tokio::test]
async fn a_job_survives_a_kill_at(#[case] point: &str, #[case] attempt: u32) {
    let mut stack = install().set("GANTRY_FAILPOINT", point).start().await;
    let ada = stack.user("ada").await;
    let body = json!({"prompt": "work 2", "files": [{"path": "given.txt", "content": "given"}]});
    let first = post(&ada, "k1", &body).await;
    wait_for_failpoint(&mut stack).await;
    restart_without_failpoint(&mut stack).await;
    // A client without a response retries with the same key.
    let again = post(&ada, "k1", &body).await.expect("nothing kills it now");
    assert_eq!(first.map_or(again.id, |first| first.id), again.id, "one request, one job");
    let job = ada.wait_for_end(again.id).await;
    assert_eq!((job.state, job.reason, job.attempt), (JobState::Completed, None, attempt), "{job:#?}");
    assert_eq!((job.usage.llm_calls, job.usage.tool_calls), (3, 2), "nothing may be done or charged twice");
    let read = |name: &str| std::fs::read_to_string(stack.workspace(job.id).join(name)).unwrap();
    assert_eq!((read("effects"), read("given.txt")), ("1\n2\n".to_owned(), "given".to_owned()));
    assert_eq!(ada.jobs().await.len(), 1);
    check_invariants(&stack).await;
    stack.finish().await;
}

#[tokio::test]
async fn a_cancel_survives_a_kill_after_the_container_was_stopped() {
    let mut stack = install().set("GANTRY_FAILPOINT", "cancel.after_stop").start().await;
    let ada = stack.user("ada").await;
    let id = ada.create_job("gate").await;
    ada.wait_for_event(id, "a tool call", is_tool_use).await;
    ada.cancel(id).await.expect(202);
    wait_for_failpoint(&mut stack).await;
    restart_without_failpoint(&mut stack).await;
    let job = ada.wait_for_end(id).await;
    assert_eq!((job.state, job.reason), (JobState::Cancelled, Some(JobReason::CancelledByUser)), "{job:#?}");
    check_invariants(&stack).await;
    stack.finish().await;
}

/// Jobs that the orchestrator runs itself end with it: they are not continued, since their tools may have had effects.
#[rstest]
#[case("start.after_row", JobState::Failed)]
#[case("llm.after_open", JobState::Failed)]
#[case("llm.after_answer", JobState::Failed)]
#[case("tool.after_open", JobState::Failed)]
#[case("tool.after_run", JobState::Failed)]
#[case("events.after_commit:3", JobState::Failed)]
#[case("complete.before_commit", JobState::Failed)]
#[case("complete.after_commit", JobState::Completed)]
#[tokio::test]
async fn a_job_without_a_container_ends_at_a_kill_at(#[case] point: &str, #[case] state: JobState) {
    let script = json!({"rules": [
        {"when": {"turn": 1}, "reply": {"text": "I say it.", "tool_calls": [{"name": "echo", "arguments": {"message": "hi"}}]}},
        {"reply": {"text": "done"}}
    ]});
    let builder = install().script(&script.to_string()).set("GANTRY_SANDBOX", "disabled");
    // No engine and no image are needed.
    let mut stack = builder.set("GANTRY_FAILPOINT", point).start_unchecked().await;
    let ada = stack.user("ada").await;
    // The process may die before it answers.
    let _ = ada.request(reqwest::Method::POST, "/api/chat/send").json(&json!({"content": "/job work"})).send().await;
    wait_for_failpoint(&mut stack).await;
    restart_without_failpoint(&mut stack).await;
    let id = tests::poll("the job", async || ada.jobs().await.first().map(|job| job.id)).await;
    let job = ada.wait_for_end(id).await;
    let reason = (state == JobState::Failed).then_some(JobReason::OrchestratorRestart);
    assert_eq!((job.state, job.reason, job.attempt), (state, reason, 1), "{job:#?}");
    let actions = ada.get(&format!("/api/jobs/{id}/actions")).await.expect(200).body;
    let open = actions["items"].as_array().unwrap().iter().filter(|action| action["success"].is_null()).count();
    assert_eq!(open, 0, "{actions:#}");
    check_invariants(&stack).await;
    stack.finish().await;
}

/// The call's row, the child, the end of the child.
#[rstest]
#[case("tool.after_open")]
#[case("create.before_row:2")]
#[case("create.after_row:2")]
#[case("tool.after_run")]
#[tokio::test]
async fn a_call_that_creates_a_child_finds_it_after_a_kill_at(#[case] point: &str) {
    let mut stack = install().set("GANTRY_FAILPOINT", point).start().await;
    let ada = stack.user("ada").await;
    let id = ada.create(json!({"prompt": "parent", "limits": {"max_children": 2}})).await;
    wait_for_failpoint(&mut stack).await;
    restart_without_failpoint(&mut stack).await;
    let job = ada.wait_for_end(id).await;
    let text = job.result.as_ref().and_then(|result| result.text.as_deref()).unwrap_or_default();
    assert!(job.state == JobState::Completed && text.contains("done at turn 2"), "{job:#?}");
    let jobs = ada.jobs().await;
    let children: Vec<_> = jobs.iter().filter(|job| job.parent_id == Some(id)).collect();
    assert_eq!((jobs.len(), children.len()), (2, 1), "{jobs:#?}");
    assert_eq!(std::fs::read_to_string(stack.workspace(children[0].id).join("effects")).unwrap(), "1\n");
    check_invariants(&stack).await;
    stack.finish().await;
}

/// An install without a sandbox whose model makes this call when it is told to, and repeats what came of it.
async fn chat_install(tool: &str, arguments: &Value, settings: &[(&str, &str)]) -> Stack {
    let script = json!({"rules": [
        {"when": {"last_message": "go"}, "reply": {"text": "I will.", "tool_calls": [{"name": tool, "arguments": arguments}]}},
        {"when": {"tool_name": tool}, "reply": {"text": "result: {{tool_result}}"}},
    ]});
    let builder = install().script(&script.to_string()).set("GANTRY_SANDBOX", "disabled");
    settings.iter().fold(builder, |builder, (name, value)| builder.set(name, value)).start_unchecked().await
}

async fn send_to_chat(user: &User, content: &str) {
    user.post("/api/chat/send", &json!({"content": content})).await.expect(202);
}

/// Tells the model to make its call, and approves it. The process may die before it answers.
async fn approve_a_call(user: &User) -> Gate {
    send_to_chat(user, "go").await;
    let gate = tests::poll("a gate", async || {
        user.get("/api/gates").await.expect(200).json::<Page<Gate>>().items.into_iter().next()
    })
    .await;
    let resolve = user.request(reqwest::Method::POST, &format!("/api/gates/{}/resolve", gate.id));
    let _ = resolve.json(&json!({"decision": "approve"})).send().await;
    gate
}

/// Asserts that the approved call is over with its process, and that its thread goes on: with an error for the user,
/// and for the model a result that says what is known.
async fn is_interrupted(stack: &Stack, user: &User, gate: &Gate) {
    let idle = async |what: &str, roles: usize| {
        tests::poll(what, async || {
            let history: ChatHistory = user.get("/api/chat/threads/main").await.expect(200).json();
            (history.thread.state == ThreadState::Idle && history.messages.len() == roles).then_some(history)
        })
        .await
    };
    let history = idle("the end of the turn", 4).await;
    let [_, _, ChatContent::ToolUse { tool, .. }, ChatContent::Error { reason: JobReason::OrchestratorRestart, .. }] =
        &history.messages.iter().map(|message| message.content.clone()).collect::<Vec<_>>()[..]
    else {
        panic!("{history:#?}")
    };
    assert_eq!(*tool, gate.tool);
    let mut database = SqliteConnection::connect(&stack.database_url()).await.unwrap();
    let rows: Vec<(Option<bool>, Option<String>)> =
        sqlx::query_as("SELECT success, output FROM tool_calls").fetch_all(&mut database).await.unwrap();
    database.close().await.unwrap();
    let [(Some(false), Some(output))] = &rows[..] else { panic!("one row, closed: {rows:?}") };
    assert!(output.starts_with("interrupted: "), "{output}");
    let again = user.post(&format!("/api/gates/{}/resolve", gate.id), &json!({"decision": "approve"})).await;
    again.problem(protocol::ErrorCode::GateResolved);
    send_to_chat(user, "what came of it?").await;
    let history = idle("an answer", 6).await;
    let Some(ChatContent::Assistant { content }) = history.messages.last().map(|message| &message.content) else {
        panic!("{history:#?}")
    };
    assert!(content.starts_with("result: ") && content.contains("before this call's result was known"), "{content}");
}

/// It may have had its effect, so it is not made again.
#[rstest]
#[case("tool.after_open", 0)]
#[case("tool.after_run", 1)]
#[tokio::test]
async fn an_approved_call_of_a_chat_is_made_at_most_once_around_a_kill_at(#[case] point: &str, #[case] sent: usize) {
    let mut stack = chat_install("message", &json!({"content": "hello"}), &[("GANTRY_FAILPOINT", point)]).await;
    let ada = stack.user("ada").await;
    let gate = approve_a_call(&ada).await;
    wait_for_failpoint(&mut stack).await;
    restart_without_failpoint(&mut stack).await;
    is_interrupted(&stack, &ada, &gate).await;
    let page: Page<Notification> = ada.get("/api/notifications").await.expect(200).json();
    assert_eq!(page.items.iter().filter(|one| one.kind == NotificationKind::Message).count(), sent, "{page:#?}");
    check_invariants(&stack).await;
    stack.finish().await;
}

#[tokio::test]
async fn an_approved_call_of_a_chat_that_is_running_at_a_kill_is_not_made_again() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap().to_string();
    let call = json!({"method": "POST", "url": format!("http://{address}/"), "body": "pay"});
    let mut stack = chat_install("http", &call, &[("GANTRY_EGRESS_CEILING", &address)]).await;
    let ada = stack.user("ada").await;
    let gate = approve_a_call(&ada).await;
    // It is not answered: the call runs until the process dies.
    let _request = tests::within("the request", server.accept()).await.unwrap();
    stack.kill();
    stack.restart().await;
    is_interrupted(&stack, &ada, &gate).await;
    let repeated = tokio::time::timeout(std::time::Duration::ZERO, server.accept()).await;
    assert!(repeated.is_err(), "the request was sent again");
    check_invariants(&stack).await;
    stack.finish().await;
}

/// The release image ignores failpoints and warns about the variable.
#[tokio::test]
async fn the_image_has_no_failpoints() {
    let settings =
        [("GANTRY_FAILPOINT", "serve.start"), ("GANTRY_SANDBOX", "disabled"), ("GANTRY_DATA_DIR", "/tmp/none")];
    let here = run(&["serve"], &settings.map(|(name, value)| (name.to_owned(), value.to_owned()))).await;
    assert_eq!(here.code, None, "the binary under test must have failpoints: {here:?}");
    let variables = settings.map(|(name, value)| format!("--env={name}={value}"));
    let mut arguments = vec!["run", "--rm", "--network", "none", "--entrypoint", "timeout"];
    arguments.extend(variables.iter().map(String::as_str));
    // Both images were built with the same tag.
    let orchestrator_image = image().replace("gantry-worker", "gantry");
    arguments.extend([orchestrator_image.as_str(), "3", "gantry", "serve"]);
    let (_, output) = docker(&arguments).await;
    assert!(output.contains("\"listening\""), "{output}");
    assert!(output.contains("GANTRY_FAILPOINT is set, but there is no such setting"), "{output}");
}
