//! SIGKILL of the orchestrator at each critical instruction: the next process finds every job in a valid state.

use protocol::{JobReason, JobState};
use rstest::rstest;
use serde_json::json;
use tests::install::{engine::docker, jobs::is_tool_use, program::run, stack::image};

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
