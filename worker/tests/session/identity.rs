//! How a worker proves who it is, and what it does when another process speaks in its name.

use protocol::{AgentEvent, JobReason, ReportedOutcome, WorkerEvent};
use rustix::process::Signal;
use serde_json::json;

use crate::orchestrator::{Step, TOKEN, World, appears, calls, is_gone, says};

/// Kept from before the first command on.
const SESSION_CONNECTIONS: usize = 4;

#[tokio::test]
async fn every_call_carries_one_secret_that_no_command_can_find() {
    // The parent is the command's supervisor, and the supervisor's is the worker.
    let look = "echo looked; env; for pid in $PPID $(ps -o ppid= -p $PPID | tr -d ' '); do \
                tr '\\0' '\\n' < /proc/$pid/environ; tr '\\0' '\\n' < /proc/$pid/cmdline; done; ls -R . ..; cat ../*";
    let mut world = World::new([calls(&[("shell", json!({"command": look}))]), Step::Hang, says("done")]);
    let worker = world.worker(&[]);
    world.until("the second model call", |record| record.requests.len() == 2).await;
    let secret = world.record().sessions[0].clone().expect("the first call has a secret");
    assert_eq!(secret.len(), 64);
    assert!(secret.bytes().all(|digit| digit.is_ascii_hexdigit()));
    let seen = serde_json::to_string(&world.record().requests[1]).unwrap();
    assert!(!seen.contains(&secret), "a command printed the secret");
    assert!(seen.contains("looked"), "the command ran: {seen}");

    // The orchestrator removes the token once the session is open; a restart of it changes nothing.
    std::fs::remove_file(world.token_file()).unwrap();
    world.vanish();
    world.appear();
    let (status, text) = worker.end().await;
    assert_eq!(status.code(), Some(0), "{text}");
    assert!(!text.contains(&secret), "{text}");
    let record = world.record();
    assert!(record.sessions.iter().all(|session| session.as_deref() == Some(&secret)));
    assert!(record.sessions.len() > SESSION_CONNECTIONS);
}

#[tokio::test]
async fn a_second_process_with_the_token_is_another_session_and_does_nothing() {
    let world =
        World::new([calls(&[("shell", json!({"command": "until [ -e go ]; do sleep 0.05; done"}))]), says("done")]);
    let worker = world.worker(&[]);
    world.until("the first model call", |record| record.requests.len() == 1).await;
    let (status, text) = world.worker(&[]).end().await;
    assert_eq!(status.code(), Some(3), "{text}");
    std::fs::write(world.workspace().join("go"), "").unwrap();
    let (status, text) = worker.end().await;
    assert_eq!(status.code(), Some(0), "{text}");
    assert_eq!(world.only_report().outcome, ReportedOutcome::Completed);
}

#[tokio::test]
async fn a_token_that_comes_late_is_waited_for() {
    let world = World::new([says("done")]);
    std::fs::remove_file(world.token_file()).unwrap();
    let mut worker = world.worker(&[]);
    let early = tokio::time::timeout(std::time::Duration::from_millis(300), worker.0.wait()).await;
    assert!(early.is_err(), "it waits");
    let draft = world.folder.path().join("token.part");
    std::fs::write(&draft, TOKEN).unwrap();
    std::fs::rename(draft, world.token_file()).unwrap();
    let (status, text) = worker.end().await;
    assert_eq!(status.code(), Some(0), "{text}");
    assert_eq!(world.only_report().outcome, ReportedOutcome::Completed);
}

#[tokio::test]
async fn a_worker_that_waits_for_its_token_can_be_stopped() {
    let world = World::new([]);
    std::fs::remove_file(world.token_file()).unwrap();
    let mut worker = world.worker(&[]);
    let early = tokio::time::timeout(std::time::Duration::from_millis(300), worker.0.wait()).await;
    assert!(early.is_err(), "it waits");
    worker.signal(Signal::TERM);
    assert_eq!(worker.end().await.0.code(), Some(0));
}

#[tokio::test]
async fn its_connections_are_open_before_the_first_command_and_stay_open() {
    let turns = (0..20).map(|turn| calls(&[("shell", json!({"command": format!("echo {turn}")}))]));
    let world = World::new(turns.chain([says("done")]));
    let (status, text) = world.worker(&[]).end().await;
    assert_eq!(status.code(), Some(0), "{text}");
    let record = world.record();
    assert_eq!(record.connections_at_first_model_call, Some(SESSION_CONNECTIONS));
    assert_eq!(record.connections, SESSION_CONNECTIONS, "none was opened anew");
}

#[tokio::test]
async fn events_that_it_never_sent_end_the_job_as_failed() {
    let wait = "touch begun; until [ -e go ]; do sleep 0.05; done; sleep 7541 & echo";
    let world = World::new([calls(&[("shell", json!({"command": wait}))]), says("done")]);
    let worker = world.worker(&[]);
    appears(&world.workspace().join("begun")).await;
    world.until("the tool call's event", |record| record.events.iter().any(|event| is_tool_use(&event.data))).await;
    let forged = |client_seq| WorkerEvent {
        client_seq,
        data: AgentEvent::Status { message: "forged".to_owned(), iteration: 1 },
    };
    {
        let mut record = world.record();
        let next = record.events.len() as u64 + 1;
        record.events.extend((next..next + 10).map(forged));
    }
    std::fs::write(world.workspace().join("go"), "").unwrap();
    let (status, text) = worker.end().await;
    assert_eq!(status.code(), Some(0), "{text}");
    let report = world.only_report();
    assert_eq!((report.outcome, report.reason), (ReportedOutcome::Failed, Some(JobReason::Internal)));
    assert!(report.message.unwrap().contains("in the worker's name"));
    assert!(is_gone("7541"));
}

fn is_tool_use(event: &AgentEvent) -> bool {
    matches!(event, AgentEvent::ToolUse { .. })
}
