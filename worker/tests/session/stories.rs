//! The course of a session, observed by the orchestrator.

use std::time::{Duration, Instant};

use protocol::{AgentEvent, ErrorCode, JobReason, Message, MessageRole, PromptMode, ReportedOutcome};
use rstest::rstest;
use rustix::process::Signal;
use serde_json::json;

use crate::orchestrator::{Record, Step, World, calls, is_gone, prompt, reply, tool_results, wait_for_file};

#[tokio::test]
async fn a_job_runs_to_its_result_with_real_tools() {
    let world = World::new([
        calls(&[("write_file", json!({"path": "hello.sh", "content": "echo hello from $1\n"}))]),
        calls(&[
            ("shell", json!({"command": "bash hello.sh bash; exit 4"})),
            ("echo", json!({"message": "over there"})),
            ("nowhere", json!({})),
        ]),
        reply("all done"),
    ]);
    let (status, text) = world.worker(&[]).end().await;
    assert_eq!(status.code(), Some(0), "{text}");
    let report = world.only_report();
    assert_eq!((report.outcome, report.text.as_str(), report.iterations), (ReportedOutcome::Completed, "all done", 3));
    assert_eq!(std::fs::read_to_string(world.workspace().join("hello.sh")).unwrap(), "echo hello from $1\n");

    let events = world.events();
    assert_eq!(events[0], AgentEvent::Message { role: MessageRole::User, content: "do it".to_owned() });
    let results: Vec<(String, bool)> = events
        .iter()
        .filter_map(|event| match event {
            AgentEvent::ToolResult { tool, success, .. } => Some((tool.clone(), *success)),
            _ => None,
        })
        .collect();
    for expected in [("write_file", true), ("shell", false), ("echo", true), ("nowhere", false)] {
        assert!(results.contains(&(expected.0.to_owned(), expected.1)), "{results:?}");
    }
    let record = world.record();
    let results = tool_results(&record.requests[2].messages);
    assert_eq!(results[..2], ["hello from bash\n[exit 4]", "over there"]);
    assert!(results[2].starts_with("error (not_found)"), "{}", results[2]);
    assert_eq!(record.remote_calls.len(), 1);
    assert!(record.requests.iter().all(|request| request.temperature == Some(0.25)), "the owner's");
    let offered: Vec<_> = record.requests[0].tools.iter().map(|tool| tool.name.as_str()).collect();
    assert!(offered.contains(&"shell") && offered.contains(&"echo"), "{offered:?}");
    assert!(!offered.contains(&"unknown") && !offered.contains(&"bad_schema"), "{offered:?}");
}

#[tokio::test]
async fn nothing_is_done_twice_when_the_orchestrator_restarts() {
    let mut world =
        World::new([calls(&[("shell", json!({"command": "echo once >> log"}))]), Step::Hang, reply("done")]);
    let worker = world.worker(&[]);
    world.until("the second model call", |record| record.requests.len() == 2).await;
    world.kill();
    world.start();
    let (status, text) = worker.end().await;
    assert_eq!(status.code(), Some(0), "{text}");
    assert_eq!(world.only_report().outcome, ReportedOutcome::Completed);
    let record = world.record();
    assert_eq!(record.requests[1].call_id, record.requests[2].call_id);
    assert_eq!(std::fs::read_to_string(world.workspace().join("log")).unwrap(), "once\n");
    drop(record);
    world.events();
}

#[tokio::test]
async fn a_prompt_that_arrives_with_the_report_is_processed_before_the_end() {
    let world = World::new([reply("first"), reply("second")]);
    world.record().late_prompt = Some(prompt("and now this", PromptMode::Queue));
    let (status, text) = world.worker(&[]).end().await;
    assert_eq!(status.code(), Some(0), "{text}");
    assert_eq!(world.only_report().text, "second");
    let record = world.record();
    assert_eq!((record.requests.len(), record.refused_reports, record.acknowledged), (2, 1, 1));
    let asked = Message::User { content: "and now this".to_owned() };
    assert_eq!(record.requests[1].messages.last(), Some(&asked));
}

#[tokio::test]
async fn a_steer_prompt_reaches_the_next_model_call() {
    let world =
        World::new([calls(&[("shell", json!({"command": "until [ -e go ]; do sleep 0.05; done"}))]), reply("done")]);
    let worker = world.worker(&[]);
    world.until("the first model call", |record| record.requests.len() == 1).await;
    for text in ["one", "two"] {
        world.prompt(text, PromptMode::Steer);
    }
    world.until("both prompts to be acknowledged", |record| record.acknowledged == 2).await;
    std::fs::write(world.workspace().join("go"), "").unwrap();
    let (status, text) = worker.end().await;
    assert_eq!(status.code(), Some(0), "{text}");
    let record = world.record();
    let users: Vec<_> = record.requests[1]
        .messages
        .iter()
        .filter_map(|message| match message {
            Message::User { content } => Some(content.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(users, ["do it", "one", "two"]);
}

#[tokio::test]
async fn events_are_retried_until_they_are_stored() {
    let echoes: Vec<_> = (0..8).map(|number| ("echo", json!({"message": number.to_string()}))).collect();
    let world = World::new([calls(&echoes), reply("done")]);
    let transient = [ErrorCode::RateLimited, ErrorCode::Internal, ErrorCode::RequestTimeout, ErrorCode::Unavailable];
    world.record().event_refusals.extend(transient);
    world.record().max_batch_events = Some(1);
    let (status, text) = world.worker(&[]).end().await;
    assert_eq!(status.code(), Some(0), "{text}");
    let events = world.events();
    let results = events.iter().filter(|event| matches!(event, AgentEvent::ToolResult { .. })).count();
    assert_eq!((results, world.only_report().outcome), (8, ReportedOutcome::Completed));
    assert!(!events.iter().any(|event| matches!(event, AgentEvent::Status { .. })));
}

/// A gap in the numbers would make every later event one that is refused.
#[rstest]
#[case::refused(|record: &mut Record| record.max_batch_events = Some(0))]
#[case::not_acknowledged(|record: &mut Record| record.acknowledges_nothing = true)]
#[tokio::test]
async fn events_that_are_never_stored_end_the_session(#[case] fault: impl Fn(&mut Record)) {
    let world = World::new([calls(&[("echo", json!({"message": "hi"}))]), reply("done")]);
    fault(&mut world.record());
    let (status, text) = world.worker(&[]).end().await;
    assert_eq!(status.code(), Some(0), "{text}");
    let report = world.only_report();
    assert_eq!((report.outcome, report.reason), (ReportedOutcome::Failed, Some(JobReason::Internal)));
    assert!(report.message.is_some_and(|message| message.contains("cannot be recorded")));
}

#[tokio::test]
async fn a_credential_in_a_header_is_not_shown_and_a_cut_result_is_marked() {
    let arguments = json!({"message": "welcome", "headers": {"Authorization": "hunter2", "X-Note": "hello"}});
    let world = World::new([calls(&[("fetch", arguments.clone())]), reply("done")]);
    let (status, text) = world.worker(&[]).end().await;
    assert_eq!(status.code(), Some(0), "{text}");
    let events = world.events();
    let shown = format!("{events:?}");
    assert!(shown.contains("hello") && shown.contains("Authorization") && !shown.contains("hunter2"), "{shown}");
    let is_marked = |event: &AgentEvent| matches!(event, AgentEvent::ToolResult { truncated: true, .. });
    assert!(events.iter().any(is_marked), "{shown}");
    assert_eq!(world.record().remote_calls[0].1.arguments, arguments, "the tool itself gets it");
}

#[tokio::test]
async fn a_rate_limited_tool_call_is_retried_without_telling_the_model() {
    let world = World::new([calls(&[("echo", json!({"message": "hi"}))]), reply("done")]);
    world.record().tool_refusals.extend([ErrorCode::RateLimited]);
    let (status, text) = world.worker(&[]).end().await;
    assert_eq!(status.code(), Some(0), "{text}");
    assert_eq!(world.record().remote_calls.len(), 1);
    let events = world.events();
    let worked = events.iter().any(|event| matches!(event, AgentEvent::ToolResult { success: true, .. }));
    assert!(worked, "{events:?}");
}

#[tokio::test]
async fn a_model_call_is_retried_after_server_errors() {
    let world = World::new([Step::Refuse(ErrorCode::Internal), Step::Refuse(ErrorCode::Unavailable), reply("done")]);
    let (status, text) = world.worker(&[]).end().await;
    assert_eq!(status.code(), Some(0), "{text}");
    let record = world.record();
    assert_eq!(record.requests.len(), 3);
    assert!(record.requests.iter().all(|request| request.call_id == record.requests[0].call_id));
}

/// Ignores SIGTERM and SIGINT, and starts a process in a new session without a parent and without an environment.
const STUBBORN: &str =
    "trap '' TERM INT; (env -i setsid bash -c 'trap \"\" TERM; touch begun; sleep $0' SECONDS &) ; sleep SECONDS";

#[tokio::test]
async fn sigterm_kills_every_process_and_reports_within_three_seconds() {
    let seconds = "7511";
    let world = World::new([calls(&[("shell", json!({"command": STUBBORN.replace("SECONDS", seconds)}))])]);
    let worker = world.worker(&[]);
    wait_for_file(&world.workspace().join("begun")).await;
    let stopped_at = Instant::now();
    worker.signal(Signal::TERM);
    let (status, text) = worker.end().await;
    assert_eq!(status.code(), Some(0), "{text}");
    assert!(stopped_at.elapsed() < Duration::from_secs(3), "{:?}", stopped_at.elapsed());
    assert_eq!(world.only_report().outcome, ReportedOutcome::Stopped);
    assert!(is_gone(seconds));
    world.events();
}

#[tokio::test]
async fn sigterm_ends_the_worker_in_time_without_an_orchestrator() {
    let mut world = World::new([Step::Hang]);
    let worker = world.worker(&[]);
    world.until("the model call", |record| record.requests.len() == 1).await;
    world.kill();
    let stopped_at = Instant::now();
    worker.signal(Signal::TERM);
    let (status, text) = worker.end().await;
    assert_eq!(status.code(), Some(0), "{text}");
    assert!(stopped_at.elapsed() < Duration::from_secs(3), "{:?}", stopped_at.elapsed());
}

#[tokio::test]
async fn a_cancellation_in_a_heartbeat_reply_stops_the_job() {
    let world = World::with_lease([Step::Hang], 1);
    let worker = world.worker(&[]);
    world.until("two heartbeats", |record| record.heartbeats == 2).await;
    world.record().cancel = true;
    let (status, text) = worker.end().await;
    assert_eq!(status.code(), Some(0), "{text}");
    assert_eq!(world.only_report().outcome, ReportedOutcome::Stopped);
}

#[tokio::test]
async fn a_fenced_attempt_kills_its_processes_and_reports_nothing() {
    let world = World::with_lease([calls(&[("shell", json!({"command": "touch begun; sleep 7521"}))])], 1);
    let worker = world.worker(&[]);
    wait_for_file(&world.workspace().join("begun")).await;
    world.record().attempt_over = true;
    let (status, text) = worker.end().await;
    assert_eq!(status.code(), Some(3), "{text}");
    assert!(world.record().reports.is_empty());
    assert!(is_gone("7521"));
}

#[rstest]
#[case::tokens(ErrorCode::TokenBudget, ReportedOutcome::Limit, JobReason::TokenBudget)]
#[case::cost(ErrorCode::CostBudget, ReportedOutcome::Limit, JobReason::CostBudget)]
#[case::iterations(ErrorCode::IterationLimit, ReportedOutcome::Limit, JobReason::IterationLimit)]
#[case::model(ErrorCode::LlmError, ReportedOutcome::Failed, JobReason::LlmError)]
#[tokio::test]
async fn a_refused_model_call_ends_the_job_with_its_reason(
    #[case] code: ErrorCode,
    #[case] outcome: ReportedOutcome,
    #[case] reason: JobReason,
) {
    let world = World::new([calls(&[("list_dir", json!({}))]), Step::Refuse(code)]);
    let (status, text) = world.worker(&[]).end().await;
    assert_eq!(status.code(), Some(0), "{text}");
    let report = world.only_report();
    assert_eq!((report.outcome, report.reason), (outcome, Some(reason)));
    assert_eq!(report.partial.unwrap().tool_calls, 1);
}

#[tokio::test]
async fn background_processes_are_killed_with_the_job_and_zombies_are_reaped() {
    let world = World::new([
        calls(&[("shell", json!({"command": "(setsid bash -c 'exit 7' &) ; (env -i setsid sleep 7531 &)"}))]),
        calls(&[("shell", json!({"command": "for i in 1 2 3 4 5 6 7 8; do (setsid true &); done; sleep 0.5"}))]),
        calls(&[(
            "shell",
            json!({"command": "ps -o stat= --ppid $PPID,$(ps -o ppid= -p $PPID | tr -d ' ') | grep -c Z"}),
        )]),
        reply("done"),
    ]);
    let (status, text) = world.worker(&[]).end().await;
    assert_eq!(status.code(), Some(0), "{text}");
    assert!(is_gone("7531"));
    assert_eq!(tool_results(&world.record().requests[3].messages), ["0\n[exit 1]"]);
}

#[tokio::test]
async fn a_probe_checks_whether_the_socket_responds() {
    let mut world = World::new([]);
    assert_eq!(world.worker(&["probe"]).end().await.0.code(), Some(0));
    world.kill();
    assert_eq!(world.worker(&["probe"]).end().await.0.code(), Some(1));
    let (status, text) = world.worker(&["--version"]).end().await;
    assert_eq!(status.code(), Some(0));
    assert!(text.starts_with("gantry-worker "), "{text}");
}
