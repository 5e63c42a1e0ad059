//! A whole job as rendered on a terminal.

use chrono::DateTime;
use protocol::{JobId, JobReason, LogStream, ReportedOutcome};
use serde_json::json;

use serde_json::Value;

use super::*;

fn event(data: EventData) -> Event {
    let at = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
    Event { v: 1, seq: 1, cursor: 1, job_id: JobId::nil(), attempt: 1, at, cut: false, data }
}

fn all_events() -> Vec<EventData> {
    let call = |id: &str, tool: &str, input: Value| EventData::ToolUse {
        call_id: id.into(),
        tool: tool.into(),
        input,
        reasoning: None,
    };
    let answer = |id: &str, tool: &str, success: bool, output: String| EventData::ToolResult {
        call_id: id.into(),
        tool: tool.into(),
        success,
        output,
        truncated: false,
        duration_ms: 12,
    };
    vec![
        EventData::State { from: None, to: JobState::Pending, reason: None, message: None },
        EventData::State { from: Some(JobState::Pending), to: JobState::InProgress, reason: None, message: None },
        EventData::Status { message: "starting".into(), iteration: 0 },
        EventData::Status { message: "waiting".into(), iteration: 2 },
        EventData::Plan {
            goal: "Count the files".into(),
            steps: vec![PlanStep { tool: "shell".into(), reasoning: "list them".into() }],
            confidence: 0.9,
        },
        EventData::Message { role: MessageRole::Assistant, content: "I will look.\nThen count.".into() },
        call("c1", "shell", json!({"command": "ls -la\nwc -l"})),
        answer("c1", "shell", true, (1..=10).map(|n| format!("file {n}")).collect::<Vec<_>>().join("\n")),
        call("c2", "write_file", json!({"path": "a.txt", "content": "x".repeat(300)})),
        answer("c2", "write_file", false, "\x1b[31mno space\x1b[0m\x07".into()),
        EventData::Message { role: MessageRole::User, content: "Hurry up.".into() },
        EventData::Log { stream: LogStream::Stdout, text: "one\ntwo\n".into(), call_id: None },
        EventData::Limit { limit: protocol::LimitName::MaxIterations, value: json!(50) },
        EventData::Message { role: MessageRole::Assistant, content: "Ten files.".into() },
        EventData::Result { outcome: ReportedOutcome::Completed, text: "Ten files.".into(), partial: None },
        EventData::State {
            from: Some(JobState::InProgress),
            to: JobState::Failed,
            reason: Some(JobReason::IterationLimit),
            message: Some("50 model\x1b]0;x\x07 calls".into()),
        },
    ]
}

#[test]
fn a_job_reads_like_a_conversation() {
    let mut renderer = Renderer::new(Paint::Plain, Detail::Usual);
    let lines: Vec<String> = all_events().into_iter().filter_map(|data| renderer.event(&event(data))).collect();
    insta::assert_snapshot!(lines.join("\n"), @r#"
    ● pending
    ● in_progress
    status starting
    status waiting (model call 2)
    plan   Count the files
           1. shell: list them
    agent  I will look.
           Then count.
    → shell ls -la wc -l
    ← shell ok, 12 ms
        file 1
        file 2
        file 3
        file 4
        file 5
        file 6
        file 7
        file 8
        … 2 more lines (-v shows them)
    → write_file a.txt (300 bytes)
    ← write_file failed, 12 ms
        ␛[31mno space␛[0m␇
    you    Hurry up.
        │ one
        │ two
    ! limit max_iterations reached: 50
    agent  Ten files.
    ● failed (iteration_limit): 50 model␛]0;x␇ calls
    "#);
}

#[test]
fn a_result_that_differs_from_the_last_message_is_shown() {
    let mut renderer = Renderer::new(Paint::Plain, Detail::Usual);
    let result = EventData::Result { outcome: ReportedOutcome::Failed, text: "Half of it.".into(), partial: None };
    assert_eq!(renderer.event(&event(result)).unwrap(), "result Half of it.");
}

#[test]
fn colors_come_only_from_the_renderer() {
    let mut renderer = Renderer::new(Paint::Colour, Detail::Verbose);
    let text: String = all_events().into_iter().filter_map(|data| renderer.event(&event(data))).collect();
    let ours = ["\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[36m"];
    let left = ours.iter().fold(text, |text, code| text.replace(code, ""));
    assert!(!left.contains('\x1b') && !left.contains('\x07'), "{left:?}");
}
