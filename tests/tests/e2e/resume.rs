//! Interrupted streams and restarted orchestrators: every event is delivered once, and jobs continue. A data directory
//! has one orchestrator.

use protocol::{Event, JobId, JobState};
use rstest::rstest;
use serde_json::json;
use tests::{EventStream, User, within};

use crate::{
    jobs::{command_job, is_tool_use, release},
    program,
    stack::Stack,
};

/// Prints a line, waits for the test, and prints another.
const TWO_HALVES: &str = "echo before; until [ -e go ]; do sleep 0.05; done; echo after";

/// How the orchestrator ends.
#[derive(Debug, Clone, Copy)]
enum Going {
    Sigterm,
    Sigkill,
}

#[tokio::test]
async fn an_interrupted_stream_resumes_where_it_was() {
    let stack = Stack::start().await;
    let ada = stack.user("ada").await;
    let id = ada.create(command_job(TWO_HALVES)).await;
    let mut seen = vec![];
    // Each reader takes one event and disconnects.
    loop {
        let last = seen.last().map(|event: &Event| event.seq);
        let event = ada.stream(id, last).await.event().await;
        assert_eq!(event.seq, last.unwrap_or(0) + 1, "the first event must be the next one");
        let reached = is_tool_use(&event);
        seen.push(event);
        if reached {
            break;
        }
    }
    release(&stack, id);
    let last = seen.last().map(|event| event.seq);
    let (rest, state, _) = ada.stream(id, last).await.rest().await;
    seen.extend(rest);
    assert_eq!(state, JobState::Completed);
    assert_eq!(seen, ada.events(id).await, "every event must be delivered once and in order");
    stack.finish().await;
}

#[rstest]
#[case(Going::Sigterm)]
#[case(Going::Sigkill)]
#[tokio::test]
async fn a_job_survives_its_orchestrator(#[case] going: Going) {
    let mut stack = Stack::start().await;
    let token = stack.token("ada", "user").await;
    let ada = User::at(stack.base(), Some(token.clone()));
    let id = ada.create(command_job(TWO_HALVES)).await;
    let mut stream = ada.stream(id, None).await;
    let mut seen = until_tool_use(&mut stream).await;

    match going {
        Going::Sigterm => stack.stop().await,
        Going::Sigkill => stack.kill(),
    }
    assert_eq!(stream.next().await, None, "a stopped orchestrator must not send events");
    // The second half of the work is done while no orchestrator runs.
    release(&stack, id);
    stack.restart().await;

    let ada = User::at(stack.base(), Some(token));
    let (rest, state, _) = ada.stream(id, seen.last().map(|event| event.seq)).await.rest().await;
    seen.extend(rest);
    assert_eq!(state, JobState::Completed);
    assert_eq!(seen, ada.events(id).await, "every event must be delivered once and in order");
    let job = ada.job(id).await;
    assert_eq!((job.attempt, job.reason), (1, None), "the same worker must continue");
    let text = job.result.and_then(|result| result.text);
    assert_eq!(text.as_deref(), Some("before\nafter\n[exit 0]"));
    assert_eq!(job.usage.llm_calls, 2, "no model call may be repeated");
    stack.finish().await;
}

#[rstest]
#[case::another_runtime("GANTRY_SANDBOX_RUNTIME", "no-such-runtime")]
#[case::another_image("GANTRY_SANDBOX_IMAGE", "gantry-ring-none:none")]
#[case::another_profile("GANTRY_SANDBOX_INET_DATAGRAMS", "true")]
#[case::no_sandbox("GANTRY_SANDBOX", "disabled")]
#[tokio::test]
async fn a_job_survives_changed_settings(#[case] name: &str, #[case] value: &str) {
    let mut stack = Stack::start().await;
    let token = stack.token("ada", "user").await;
    let ada = User::at(stack.base(), Some(token.clone()));
    let (finishes, is_cancelled) =
        (ada.create(command_job(TWO_HALVES)).await, ada.create(command_job(TWO_HALVES)).await);
    for id in [finishes, is_cancelled] {
        until_tool_use(&mut ada.stream(id, None).await).await;
    }
    stack.kill();
    stack.set(name, Some(value));
    stack.restart().await;

    let ada = User::at(stack.base(), Some(token));
    release(&stack, finishes);
    let job = ada.wait_for_end(finishes).await;
    assert_eq!((job.state, job.attempt), (JobState::Completed, 1), "{job:#?}");
    ada.cancel(is_cancelled).await;
    assert_eq!(ada.wait_for_end(is_cancelled).await.state, JobState::Cancelled);
    stack.finish().await;
}

#[tokio::test]
async fn pending_jobs_are_started_after_a_kill() {
    let mut stack = Stack::builder().set("GANTRY_MAX_PARALLEL_JOBS", "1").start().await;
    let token = stack.token("ada", "user").await;
    let ada = User::at(stack.base(), Some(token.clone()));
    let first = ada.create(command_job(TWO_HALVES)).await;
    let second = ada.create_job("echo: my turn").await;
    let mut stream = ada.stream(first, None).await;
    until_tool_use(&mut stream).await;

    stack.kill();
    stack.restart().await;
    let ada = User::at(stack.base(), Some(token));
    release(&stack, first);
    assert_eq!(ada.wait_for_end(first).await.state, JobState::Completed);
    assert_eq!(ada.wait_for_end(second).await.state, JobState::Completed);
    stack.finish().await;
}

#[tokio::test]
async fn a_second_orchestrator_on_a_data_directory_fails_and_names_the_first() {
    let stack = Stack::start().await;
    let mut settings = stack.settings().to_vec();
    settings.retain(|(name, _)| name != "GANTRY_BIND");
    settings.push(("GANTRY_BIND".to_owned(), "127.0.0.1:0".to_owned()));
    let second = within("the second orchestrator to refuse", program::run(&["serve"], &settings)).await;
    assert_eq!(second.code, Some(1), "{second:?}");
    let holder = std::fs::read_to_string(stack.data("gantry.lock")).unwrap();
    assert_eq!(holder.trim(), stack.pid().to_string());
    assert!(second.stderr.contains(&format!("process {}", stack.pid())), "{second:?}");
    assert!(second.stderr.contains("GANTRY_DATA_DIR"), "the error must contain advice: {second:?}");
    // The first orchestrator is not affected.
    let ada = stack.user("ada").await;
    let id = ada.create_job("echo: still here").await;
    assert_eq!(ada.wait_for_end(id).await.state, JobState::Completed);
    stack.finish().await;
}

#[tokio::test]
async fn steer_and_queued_prompts_reach_the_model() {
    let script = r"
model: e2e-1
rules:
  - when: { turn: 1 }
    reply: { tool_calls: [{ name: shell, arguments: { command: 'until [ -e go ]; do sleep 0.05; done' } }] }
  - when: { last_message: { regex: '^(?:now|later): .*$' } }
    reply: { text: 'I was told {{match.0}}' }
  - reply: { text: There was no prompt. }
";
    let stack = Stack::builder().script(script).start().await;
    let ada = stack.user("ada").await;
    let id = ada.create_job("work").await;
    ada.wait_for_event(id, "a tool call", is_tool_use).await;
    ada.prompt(id, json!({"content": "later: B", "mode": "queue"})).await.expect(202);
    ada.prompt(id, json!({"content": "now: A"})).await.expect(202);
    // The worker has received both before it continues: it polls while its tool runs.
    release(&stack, id);
    let job = ada.wait_for_end(id).await;
    assert_eq!(job.state, JobState::Completed);
    let sent = messages(&ada, id).await;
    let place = |text: &str| sent.iter().position(|line| line == text);
    let (steered, queued) = (place("I was told now: A"), place("I was told later: B"));
    assert!(steered.is_some() && steered < queued, "steer before queue: {sent:?}");
    let late = ada.prompt(id, json!({"content": "now: C"})).await;
    late.problem(protocol::ErrorCode::JobFinished);
    stack.finish().await;
}

async fn until_tool_use(stream: &mut EventStream) -> Vec<Event> {
    let mut seen = vec![];
    loop {
        seen.push(stream.event().await);
        if is_tool_use(&seen[seen.len() - 1]) {
            return seen;
        }
    }
}

/// The model's messages, in order.
async fn messages(user: &User, job: JobId) -> Vec<String> {
    let events = user.events(job).await;
    events
        .into_iter()
        .filter_map(|event| match event.data {
            protocol::EventData::Message { role: protocol::MessageRole::Assistant, content } => Some(content),
            _ => None,
        })
        .collect()
}
