//! Many at once, and at the wrong moment: two hundred jobs, cancels in between states, prompts as a job ends, a reader that
//! never reads, a stop with work under way.

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
    install::stack::{Stack, go, is_tool_use},
};

use crate::{
    after::world_after,
    ground::{Chance, install},
};

#[tokio::test]
async fn two_hundred_jobs_at_once_all_succeed() {
    let stack =
        install().set("GANTRY_MAX_PARALLEL_JOBS", "8").set("GANTRY_MAX_PARALLEL_JOBS_PER_USER", "8").start().await;
    let ada = stack.user("ada").await;
    let ids = join_all((0..200).map(|_| ada.create_job("work 1"))).await;
    // A stream for each would be another test: one look now and then is enough.
    let all_over = async || ada.jobs().await.iter().all(|job| job.state.is_finished());
    tests::install::engine::comes_true("200 jobs have ended", Duration::from_secs(220), all_over).await;
    for id in ids {
        let job = ada.job(id).await;
        assert_eq!((job.state, job.attempt, job.usage.tool_calls), (JobState::Completed, 1, 1), "{job:#?}");
    }
    world_after(&stack).await;
    stack.finish().await;
}

#[tokio::test]
async fn a_cancel_in_any_state_and_in_between_ends_the_job_once() {
    let stack = install().start().await;
    let ada = stack.user("ada").await;
    let cancelled = AtomicU64::new(0);
    join_all((0..4).map(async |lane| {
        let mut chance = Chance(lane);
        for _ in 0..6 {
            let id = ada.create_job("work 2").await;
            chance.moment(Duration::from_millis(1500)).await;
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
    world_after(&stack).await;
    stack.finish().await;
}

/// Each prompt is sent a little earlier or later than the last one, so that they gather around the moment of the end.
#[tokio::test]
async fn a_prompt_at_the_moment_of_the_end_is_seen_or_refused() {
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
            tokio::time::sleep(delay).await;
            let content = format!("say: {lane}.{round}");
            let mode = if round % 2 == 0 { "steer" } else { "queue" };
            let reply = ada.prompt(id, json!({"content": content, "mode": mode})).await;
            let job = ada.wait_for_end(id).await;
            assert_eq!(job.state, JobState::Completed, "{job:#?}");
            let seen = was_seen(&ada.events(id).await, &content);
            match reply.status.as_u16() {
                202 => assert!(seen, "{content} was accepted and lost: {job:#?}"),
                409 => assert!(!seen, "{content} was refused and seen: {job:#?}"),
                _ => panic!("{reply:?}"),
            }
            delay = if seen { delay.mul_f32(1.3) } else { delay.mul_f32(0.6) };
        }
    }))
    .await;
    world_after(&stack).await;
    stack.finish().await;
}

#[tokio::test]
async fn a_reader_that_never_reads_is_dropped_and_holds_nobody_up() {
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
    let deaf: Vec<TcpStream> = (0..8).map(|_| reader(&stack, &token, id)).collect();
    let (events, _, _) = ada.stream(id, None).await.rest().await;
    let job = ada.job(id).await;
    assert_eq!((job.state, job.reason), (JobState::Completed, None), "{:?}", job.message);
    let bytes: usize = events.iter().map(|event| serde_json::to_string(event).map_or(0, |text| text.len())).sum();
    assert!(bytes > 4_000_000, "enough to fill what the kernel keeps for a reader: {bytes}");
    let more = resident_kb(&stack).saturating_sub(before);
    // Eight readers are behind by over 30 MB together; nobody keeps that for them.
    assert!(more < 64 * 1024, "{more} KB more for readers that do not read");
    let gone = async || open_connections(&stack) == 0;
    tests::install::engine::comes_true("the deaf are dropped", Duration::from_secs(45), gone).await;
    drop(deaf);
    world_after(&stack).await;
    stack.finish().await;
}

#[tokio::test]
async fn a_stop_with_jobs_at_work_starts_nothing_new_and_leaves_the_rest_to_the_next() {
    let mut stack =
        install().set("GANTRY_MAX_PARALLEL_JOBS", "2").set("GANTRY_MAX_PARALLEL_JOBS_PER_USER", "2").start().await;
    let ada = stack.user("ada").await;
    let [first, second] = [ada.create_job("gate").await, ada.create_job("gate").await];
    for id in [first, second] {
        ada.wait_for_event(id, "a tool call", is_tool_use).await;
    }
    let waiting = ada.create_job("work 1").await;
    stack.stop().await;
    // Both workers finish their work while nobody listens: two slots would be free.
    go(&stack, first);
    go(&stack, second);
    let store = Store::open(&stack.database_url()).await.unwrap();
    let asleep = store.job(waiting).await.unwrap().unwrap();
    store.close().await;
    assert_eq!((asleep.state(), asleep.attempt), (JobState::Pending, 0));
    stack.restart().await;
    for id in [first, second, waiting] {
        let job = ada.wait_for_end(id).await;
        assert_eq!((job.state, job.attempt), (JobState::Completed, 1), "{job:#?}");
    }
    world_after(&stack).await;
    stack.finish().await;
}

/// Whether the model spoke after it had been told this: by the worker's own account, since calls are told by another.
pub(crate) fn was_seen(events: &[Event], content: &str) -> bool {
    let told = events.iter().position(
        |event| matches!(&event.data, EventData::Message { role: MessageRole::User, content: said } if said == content),
    );
    let spoke = |event: &Event| matches!(event.data, EventData::Message { role: MessageRole::Assistant, .. });
    told.is_some_and(|at| events[at..].iter().any(spoke))
}

/// Asks for a job's stream, and never reads a byte of it.
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

/// Connections that the server holds at its public port.
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
