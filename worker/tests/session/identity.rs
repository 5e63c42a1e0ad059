//! How a worker authenticates, and what it does when another process impersonates it.

use protocol::{AgentEvent, JobReason, ReportedOutcome, WorkerEvent};
use rustix::process::Signal;
use serde_json::json;

use crate::orchestrator::{Step, TOKEN, World, calls, is_gone, reply, wait_for_file};

/// The connections that a worker opens before its first command.
const SESSION_CONNECTIONS: usize = 4;

#[tokio::test]
async fn every_request_carries_one_secret_that_commands_cannot_read() {
    // The command's parent is its supervisor, whose parent is the worker.
    let inspect = "echo looked; env; for pid in $PPID $(ps -o ppid= -p $PPID | tr -d ' '); do \
                tr '\\0' '\\n' < /proc/$pid/environ; tr '\\0' '\\n' < /proc/$pid/cmdline; done; ls -R . ..; cat ../*";
    let mut world = World::new([calls(&[("shell", json!({"command": inspect}))]), Step::Hang, reply("done")]);
    let worker = world.worker(&[]);
    world.until("the second model call", |record| record.requests.len() == 2).await;
    let secret = world.record().sessions[0].clone().expect("the first request has no secret");
    assert_eq!(secret.len(), 64);
    assert!(secret.bytes().all(|digit| digit.is_ascii_hexdigit()));
    let seen = serde_json::to_string(&world.record().requests[1]).unwrap();
    assert!(!seen.contains(&secret), "a command printed the secret");
    assert!(seen.contains("looked"), "the command ran: {seen}");

    // The orchestrator removes the token file once the session is open. The worker survives a restart without it.
    std::fs::remove_file(world.token_file()).unwrap();
    world.kill();
    world.start();
    let (status, text) = worker.end().await;
    assert_eq!(status.code(), Some(0), "{text}");
    assert!(!text.contains(&secret), "{text}");
    let record = world.record();
    assert!(record.sessions.iter().all(|session| session.as_deref() == Some(&secret)));
    assert!(record.sessions.len() > SESSION_CONNECTIONS);
}

#[tokio::test]
async fn a_second_process_with_the_token_is_refused_as_another_session() {
    let world =
        World::new([calls(&[("shell", json!({"command": "until [ -e go ]; do sleep 0.05; done"}))]), reply("done")]);
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
async fn the_worker_waits_for_its_token() {
    let world = World::new([reply("done")]);
    std::fs::remove_file(world.token_file()).unwrap();
    let mut worker = world.worker(&[]);
    let early = tokio::time::timeout(std::time::Duration::from_millis(300), worker.0.wait()).await;
    assert!(early.is_err(), "the worker did not wait");
    let draft = world.directory.path().join("token.part");
    std::fs::write(&draft, TOKEN).unwrap();
    std::fs::rename(draft, world.token_file()).unwrap();
    let (status, text) = worker.end().await;
    assert_eq!(status.code(), Some(0), "{text}");
    assert_eq!(world.only_report().outcome, ReportedOutcome::Completed);
}

#[tokio::test]
async fn a_worker_waiting_for_its_token_can_be_stopped() {
    let world = World::new([]);
    std::fs::remove_file(world.token_file()).unwrap();
    let mut worker = world.worker(&[]);
    let early = tokio::time::timeout(std::time::Duration::from_millis(300), worker.0.wait()).await;
    assert!(early.is_err(), "the worker did not wait");
    worker.signal(Signal::TERM);
    assert_eq!(worker.end().await.0.code(), Some(0));
}

#[tokio::test]
async fn connections_are_opened_before_the_first_command_and_kept() {
    let turns = (0..20).map(|turn| calls(&[("shell", json!({"command": format!("echo {turn}")}))]));
    let world = World::new(turns.chain([reply("done")]));
    let (status, text) = world.worker(&[]).end().await;
    assert_eq!(status.code(), Some(0), "{text}");
    let record = world.record();
    assert_eq!(record.connections_at_first_model_call, Some(SESSION_CONNECTIONS));
    assert_eq!(record.connections, SESSION_CONNECTIONS, "a new connection was opened");
}

#[tokio::test]
async fn forged_events_fail_the_job() {
    let wait = "touch begun; until [ -e go ]; do sleep 0.05; done; sleep 7541 & echo";
    let world = World::new([calls(&[("shell", json!({"command": wait}))]), reply("done")]);
    let worker = world.worker(&[]);
    wait_for_file(&world.workspace().join("begun")).await;
    world.until("the tool_use event", |record| record.events.iter().any(|event| is_tool_use(&event.data))).await;
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
