//! What a session goes through, told from the orchestrator's side.

use std::time::{Duration, Instant};

use protocol::{AgentEvent, ErrorCode, JobReason, Message, MessageRole, PromptMode, ReportedOutcome};
use rstest::rstest;
use rustix::process::Signal;
use serde_json::json;

use crate::orchestrator::{Step, World, appears, calls, is_gone, prompt, says, tool_results};

#[tokio::test]
async fn a_job_goes_from_its_prompt_to_its_result_with_real_tools() {
    let world = World::new([
        calls(&[("write_file", json!({"path": "hello.sh", "content": "echo hello from $1\n"}))]),
        calls(&[
            ("shell", json!({"command": "bash hello.sh bash; exit 4"})),
            ("echo", json!({"message": "over there"})),
            ("nowhere", json!({})),
        ]),
        says("all done"),
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
    let offered: Vec<_> = record.requests[0].tools.iter().map(|tool| tool.name.as_str()).collect();
    assert!(offered.contains(&"shell") && offered.contains(&"echo") && !offered.contains(&"unknown"), "{offered:?}");
}

#[tokio::test]
async fn an_orchestrator_that_vanishes_and_comes_back_finds_nothing_done_twice() {
    let mut world = World::new([calls(&[("shell", json!({"command": "echo once >> log"}))]), Step::Hang, says("done")]);
    let worker = world.worker(&[]);
    world.until("the second model call", |record| record.requests.len() == 2).await;
    world.vanish();
    world.appear();
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
async fn a_prompt_that_arrives_with_the_report_is_taken_up_before_the_end() {
    let world = World::new([says("first"), says("second")]);
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
        World::new([calls(&[("shell", json!({"command": "until [ -e go ]; do sleep 0.05; done"}))]), says("done")]);
    let worker = world.worker(&[]);
    world.until("the first model call", |record| record.requests.len() == 1).await;
    for text in ["one", "two"] {
        world.prompt(text, PromptMode::Steer);
    }
    world.until("both prompts taken", |record| record.acknowledged == 2).await;
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
async fn events_that_are_refused_for_a_while_arrive_all_the_same() {
    let echoes: Vec<_> = (0..8).map(|number| ("echo", json!({"message": number.to_string()}))).collect();
    let world = World::new([calls(&echoes), says("done")]);
    world.record().event_refusals.extend([ErrorCode::RateLimited, ErrorCode::Internal, ErrorCode::Unavailable]);
    world.record().events_at_most = Some(1);
    let (status, text) = world.worker(&[]).end().await;
    assert_eq!(status.code(), Some(0), "{text}");
    let events = world.events();
    let results = events.iter().filter(|event| matches!(event, AgentEvent::ToolResult { .. })).count();
    assert_eq!((results, world.only_report().outcome), (8, ReportedOutcome::Completed));
    assert!(!events.iter().any(|event| matches!(event, AgentEvent::Status { .. })));
}

#[tokio::test]
async fn a_tool_call_that_comes_too_soon_is_made_again_and_the_model_hears_nothing_of_it() {
    let world = World::new([calls(&[("echo", json!({"message": "hi"}))]), says("done")]);
    world.record().tool_refusals.extend([ErrorCode::RateLimited]);
    let (status, text) = world.worker(&[]).end().await;
    assert_eq!(status.code(), Some(0), "{text}");
    assert_eq!(world.record().remote_calls.len(), 1);
    let events = world.events();
    let worked = events.iter().any(|event| matches!(event, AgentEvent::ToolResult { success: true, .. }));
    assert!(worked, "{events:?}");
}

#[tokio::test]
async fn a_model_call_that_meets_a_stumbling_orchestrator_is_made_again() {
    let world = World::new([Step::Refuse(ErrorCode::Internal), Step::Refuse(ErrorCode::Unavailable), says("done")]);
    let (status, text) = world.worker(&[]).end().await;
    assert_eq!(status.code(), Some(0), "{text}");
    let record = world.record();
    assert_eq!(record.requests.len(), 3);
    assert!(record.requests.iter().all(|request| request.call_id == record.requests[0].call_id));
}

/// Ignores every polite signal, in its own session, without a parent and without an environment.
const STUBBORN: &str =
    "trap '' TERM INT; (env -i setsid bash -c 'trap \"\" TERM; touch begun; sleep $0' SECONDS &) ; sleep SECONDS";

#[tokio::test]
async fn sigterm_ends_every_process_and_reports_within_three_seconds() {
    let seconds = "7511";
    let world = World::new([calls(&[("shell", json!({"command": STUBBORN.replace("SECONDS", seconds)}))])]);
    let worker = world.worker(&[]);
    appears(&world.workspace().join("begun")).await;
    let told = Instant::now();
    worker.signal(Signal::TERM);
    let (status, text) = worker.end().await;
    assert_eq!(status.code(), Some(0), "{text}");
    assert!(told.elapsed() < Duration::from_secs(3), "{:?}", told.elapsed());
    assert_eq!(world.only_report().outcome, ReportedOutcome::Stopped);
    assert!(is_gone(seconds));
    world.events();
}

#[tokio::test]
async fn sigterm_with_nobody_to_tell_still_ends_in_time() {
    let mut world = World::new([Step::Hang]);
    let worker = world.worker(&[]);
    world.until("the model call", |record| record.requests.len() == 1).await;
    world.vanish();
    let told = Instant::now();
    worker.signal(Signal::TERM);
    let (status, text) = worker.end().await;
    assert_eq!(status.code(), Some(0), "{text}");
    assert!(told.elapsed() < Duration::from_secs(3), "{:?}", told.elapsed());
}

#[tokio::test]
async fn a_heartbeat_that_is_told_to_cancel_stops_the_work() {
    let world = World::with_lease([Step::Hang], 1);
    let worker = world.worker(&[]);
    world.until("two heartbeats", |record| record.heartbeats == 2).await;
    world.record().cancel = true;
    let (status, text) = worker.end().await;
    assert_eq!(status.code(), Some(0), "{text}");
    assert_eq!(world.only_report().outcome, ReportedOutcome::Stopped);
}

#[tokio::test]
async fn an_attempt_that_is_over_does_and_says_nothing_more() {
    let world = World::with_lease([calls(&[("shell", json!({"command": "touch begun; sleep 7521"}))])], 1);
    let worker = world.worker(&[]);
    appears(&world.workspace().join("begun")).await;
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
async fn what_was_left_in_the_background_ends_with_the_job_and_every_dead_child_is_collected() {
    let world = World::new([
        calls(&[("shell", json!({"command": "(setsid bash -c 'exit 7' &) ; (env -i setsid sleep 7531 &)"}))]),
        calls(&[("shell", json!({"command": "for i in 1 2 3 4 5 6 7 8; do (setsid true &); done; sleep 0.5"}))]),
        calls(&[(
            "shell",
            json!({"command": "ps -o stat= --ppid $PPID,$(ps -o ppid= -p $PPID | tr -d ' ') | grep -c Z"}),
        )]),
        says("done"),
    ]);
    let (status, text) = world.worker(&[]).end().await;
    assert_eq!(status.code(), Some(0), "{text}");
    assert!(is_gone("7531"));
    assert_eq!(tool_results(&world.record().requests[3].messages), ["0\n[exit 1]"]);
}

#[tokio::test]
async fn a_probe_says_whether_the_socket_answers() {
    let mut world = World::new([]);
    assert_eq!(world.worker(&["probe"]).end().await.0.code(), Some(0));
    world.vanish();
    assert_eq!(world.worker(&["probe"]).end().await.0.code(), Some(1));
    let (status, text) = world.worker(&["--version"]).end().await;
    assert_eq!(status.code(), Some(0));
    assert!(text.starts_with("gantry-worker "), "{text}");
}
