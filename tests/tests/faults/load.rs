//! Load and races: two hundred jobs, cancels between states, prompts as a job ends, a reader that never reads, and a
//! stop while jobs run.

use std::{
    fs,
    io::Write as _,
    net::TcpStream,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use futures_util::future::join_all;
use orchestrator::store::Store;
use protocol::{Event, EventData, JobId, JobState, MessageRole};
use serde_json::json;
use tests::{
    User,
    install::{
        jobs::{is_tool_use, release},
        stack::Stack,
    },
};

use crate::{
    invariants::check_invariants,
    setup::{Rng, install},
};

#[tokio::test]
async fn two_hundred_concurrent_jobs_succeed() {
    let stack =
        install().set("GANTRY_MAX_PARALLEL_JOBS", "8").set("GANTRY_MAX_PARALLEL_JOBS_PER_USER", "8").start().await;
    let ada = stack.user("ada").await;
    let ids = join_all((0..200).map(|_| ada.create_job("work 1"))).await;
    // Polling is enough; two hundred streams would be another test.
    let all_over = async || ada.jobs().await.iter().all(|job| job.state.is_finished());
    tests::install::engine::wait_until("200 jobs to end", Duration::from_secs(220), all_over).await;
    for id in ids {
        let job = ada.job(id).await;
        assert_eq!((job.state, job.attempt, job.usage.tool_calls), (JobState::Completed, 1, 1), "{job:#?}");
    }
    check_invariants(&stack).await;
    stack.finish().await;
}

#[tokio::test]
async fn a_cancel_at_any_time_ends_the_job_once() {
    let stack = install().start().await;
    let ada = stack.user("ada").await;
    let cancelled = AtomicU64::new(0);
    join_all((0..4).map(async |lane| {
        let mut rng = Rng(lane);
        for _ in 0..6 {
            let id = ada.create_job("work 2").await;
            rng.sleep_up_to(Duration::from_millis(1500)).await;
            let reply = ada.cancel(id).await;
            let job = ada.wait_for_end(id).await;
            match reply.status.as_u16() {
                202 => assert_eq!(job.state, JobState::Cancelled, "{job:#?}"),
                409 => assert_eq!(job.state, JobState::Completed, "{job:#?}"),
                _ => panic!("{reply:?}"),
            }
            cancelled.fetch_add(u64::from(job.state == JobState::Cancelled), Ordering::Relaxed);
        }
    }))
    .await;
    assert!(cancelled.into_inner() > 0, "no cancel came in time");
    check_invariants(&stack).await;
    stack.finish().await;
}

/// Each prompt is sent a little earlier or later than the previous one, so that they cluster around the end of the job.
#[tokio::test]
async fn a_prompt_at_the_end_of_a_job_is_delivered_or_refused() {
    let stack = install().start().await;
    let ada = stack.user("ada").await;
    join_all((0..3).map(async |lane| {
        let mut delay = Duration::from_millis(20);
        for round in 0..12 {
            let id = ada.create_job("work 1").await;
            ada.wait_for_event(id, "the last tool's result", |event| {
                matches!(event.data, EventData::ToolResult { .. })
            })
            .await;
            // The moment relative to the end of the job is the subject.
            tokio::time::sleep(delay).await;
            let content = format!("say: {lane}.{round}");
            let mode = if round % 2 == 0 { "steer" } else { "queue" };
            let reply = ada.prompt(id, json!({"content": content, "mode": mode})).await;
            let job = ada.wait_for_end(id).await;
            assert_eq!(job.state, JobState::Completed, "{job:#?}");
            let seen = was_answered(&ada.events(id).await, &content);
            match reply.status.as_u16() {
                202 => assert!(seen, "{content} was accepted and lost: {job:#?}"),
                409 => assert!(!seen, "{content} was refused and answered: {job:#?}"),
                _ => panic!("{reply:?}"),
            }
            delay = if seen { delay.mul_f32(1.3) } else { delay.mul_f32(0.6) };
        }
    }))
    .await;
    check_invariants(&stack).await;
    stack.finish().await;
}

#[tokio::test]
async fn a_client_that_never_reads_is_disconnected_and_delays_no_one() {
    let flood = r"
model: faults-1
rules:
  - times: 30
    reply: { tool_calls: [
      { name: shell, arguments: { command: 'head -c 60000 /dev/zero | tr \\0 a; : {{turn}}' } },
      { name: shell, arguments: { command: 'head -c 60000 /dev/zero | tr \\0 b; : {{turn}}' } },
      { name: shell, arguments: { command: 'head -c 60000 /dev/zero | tr \\0 c; : {{turn}}' } },
      { name: shell, arguments: { command: 'head -c 60000 /dev/zero | tr \\0 d; : {{turn}}' } },
      { name: shell, arguments: { command: 'head -c 60000 /dev/zero | tr \\0 e; : {{turn}}' } },
      { name: shell, arguments: { command: 'head -c 60000 /dev/zero | tr \\0 f; : {{turn}}' } }] }
  - reply: { text: enough }
";
    let stack = install().script(flood).start().await;
    let token = stack.token("ada", "user").await;
    let ada = User::at(stack.base(), Some(token.clone()));
    let id = ada.create_job("flood").await;
    let before = resident_kb(&stack);
    let silent_readers: Vec<TcpStream> = (0..8).map(|_| reader(&stack, &token, id)).collect();
    let (events, _, _) = ada.stream(id, None).await.rest().await;
    let job = ada.job(id).await;
    assert_eq!((job.state, job.reason), (JobState::Completed, None), "{:?}", job.message);
    let bytes: usize = events.iter().map(|event| serde_json::to_string(event).map_or(0, |text| text.len())).sum();
    assert!(bytes > 4_000_000, "not enough to fill the kernel's buffers: {bytes} bytes");
    let more = resident_kb(&stack).saturating_sub(before);
    // Eight readers are over 30 MB behind together, which must not be buffered.
    assert!(more < 64 * 1024, "{more} KB more memory for silent readers");
    let wait_for_removal = async || open_connections(&stack) == 0;
    tests::install::engine::wait_until(
        "the silent readers to be disconnected",
        Duration::from_secs(45),
        wait_for_removal,
    )
    .await;
    drop(silent_readers);
    check_invariants(&stack).await;
    stack.finish().await;
}

#[tokio::test]
async fn a_stop_starts_no_jobs_and_the_next_process_continues() {
    let mut stack =
        install().set("GANTRY_MAX_PARALLEL_JOBS", "2").set("GANTRY_MAX_PARALLEL_JOBS_PER_USER", "2").start().await;
    let ada = stack.user("ada").await;
    let [first, second] = [ada.create_job("gate").await, ada.create_job("gate").await];
    for id in [first, second] {
        ada.wait_for_event(id, "a tool call", is_tool_use).await;
    }
    let waiting = ada.create_job("work 1").await;
    stack.stop().await;
    // Both workers finish while no orchestrator runs: two slots would be free.
    release(&stack, first);
    release(&stack, second);
    let store = Store::open(&stack.database_url()).await.unwrap();
    let asleep = store.job(waiting).await.unwrap().unwrap();
    store.close().await;
    assert_eq!((asleep.state(), asleep.attempt), (JobState::Pending, 0));
    stack.restart().await;
    for id in [first, second, waiting] {
        let job = ada.wait_for_end(id).await;
        assert_eq!((job.state, job.attempt), (JobState::Completed, 1), "{job:#?}");
    }
    check_invariants(&stack).await;
    stack.finish().await;
}

/// Whether the model answered after this prompt, according to the worker's events.
pub(crate) fn was_answered(events: &[Event], content: &str) -> bool {
    let position = events.iter().position(
        |event| matches!(&event.data, EventData::Message { role: MessageRole::User, content: text } if text == content),
    );
    let is_answer = |event: &Event| matches!(event.data, EventData::Message { role: MessageRole::Assistant, .. });
    position.is_some_and(|at| events[at..].iter().any(is_answer))
}

/// Opens a job's stream and never reads from it.
fn reader(stack: &Stack, token: &str, id: JobId) -> TcpStream {
    let address = stack.base().trim_start_matches("http://");
    let mut connection = TcpStream::connect(address).unwrap();
    write!(
        connection,
        "GET /api/jobs/{id}/events HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\nAccept: text/event-stream\r\n\r\n"
    )
    .unwrap();
    connection
}

fn resident_kb(stack: &Stack) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", stack.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// The connections that the server holds on its public port.
fn open_connections(stack: &Stack) -> usize {
    let port: u16 = stack.base().rsplit(':').next().unwrap().parse().unwrap();
    let local = format!(":{port:04X}");
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let established = |line: &&str| {
        let mut fields = line.split_whitespace().skip(1);
        fields.next().is_some_and(|place| place.ends_with(&local)) && fields.nth(1) == Some("01")
    };
    table.lines().filter(established).count()
}
