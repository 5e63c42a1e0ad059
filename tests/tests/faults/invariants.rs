//! Invariants after a fault, checked over the API, the database, the engine and the file system.
//!
//! Defines "no job lost, none run twice, nothing left over". Does not know what the fault was.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    time::{Duration, Instant},
};

use orchestrator::store::Store;
use protocol::{Event, EventData, JobState, JobSummary, LlmCallRecord};
use tests::{
    User, check_events,
    install::{engine::must, jobs::processes_of_jobs, stack::Stack},
};

/// Upper bound of recovery and cleanup.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(20);
/// Each check lists containers with `docker`, so it is polled less often than by `tests::poll`.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Waits until the system has settled, and checks the invariants. Every job has then ended or is really running.
pub(crate) async fn check_invariants(stack: &Stack) {
    let admin = User::at(stack.base(), Some(stack.token("the-checker", "admin").await));
    let since = Instant::now();
    loop {
        let wrong = unsettled(stack, &admin).await;
        if wrong.is_empty() {
            break;
        }
        assert!(
            since.elapsed() < SETTLE_TIMEOUT,
            "not settled after {SETTLE_TIMEOUT:?}: {wrong:#?}\n{:#?}",
            stack.lines()
        );
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    let jobs = admin.jobs().await;
    for job in &jobs {
        check_job(stack, &admin, job).await;
    }
    if jobs.iter().all(|job| ended(job.state)) {
        let store = Store::open(&stack.database_url()).await.expect("the database opens");
        assert_eq!(store.reserved().await.expect("the database responds"), (0, 0), "budget is still reserved");
        store.close().await;
    }
    let panics: Vec<String> = stack.lines().into_iter().filter(|line| line.contains("panicked")).collect();
    assert_eq!(panics, Vec::<String>::new());
}

/// With review, the work ends in state `submitted`.
pub(crate) fn ended(state: JobState) -> bool {
    state.is_finished() || state == JobState::Submitted
}

/// The conditions that do not hold yet.
async fn unsettled(stack: &Stack, admin: &User) -> Vec<String> {
    // Containers are listed before jobs, so that a container created in between is not taken for one without a job.
    let containers = containers(stack).await;
    let directories: BTreeSet<String> = stack.run_directories().into_iter().collect();
    let jobs = admin.jobs().await;
    let live: BTreeMap<String, &JobSummary> = jobs
        .iter()
        .filter(|job| matches!(job.state, JobState::InProgress | JobState::Stuck))
        .map(|job| (format!("gantry-job-{}-{}", job.id, job.attempt), job))
        .collect();
    let mut wrong = vec![];
    for (name, job) in &live {
        if containers.get(name).map(String::as_str) != Some("running") {
            wrong.push(format!("{name} is {} without a running container: {containers:?}", job.state));
        }
        if !directories.contains(name) {
            wrong.push(format!("{name} is {} without a run directory", job.state));
        }
    }
    let waits = jobs.iter().filter(|job| job.state == JobState::Pending && live.is_empty());
    wrong.extend(waits.map(|job| format!("{} is pending although nothing runs: {:?}", job.id, job.message)));
    let strays = containers.keys().chain(&directories).filter(|name| !live.contains_key(*name));
    wrong.extend(strays.map(|name| format!("{name} is left over")));
    let known: BTreeSet<String> = jobs.iter().map(|job| job.id.to_string()).collect();
    let workspaces = fs::read_dir(stack.data("workspaces")).into_iter().flatten().flatten();
    let workspaces = workspaces.map(|entry| entry.file_name().to_string_lossy().into_owned());
    // A job may have its baseline beside its workspace, or a part of it if the process died while it was written.
    let job_of = |name: &str| name.trim_end_matches(".baseline").trim_end_matches(".partial").to_owned();
    wrong.extend(
        workspaces.filter(|name| !known.contains(&job_of(name))).map(|name| format!("workspace {name} has no job")),
    );
    let volumes =
        must(&["volume", "ls", "-q", "--filter", &format!("label=gantry.instance-id={}", stack.instance)]).await;
    wrong.extend(volumes.lines().map(|name| format!("volume {name} is left over")));
    let over: Vec<JobSummary> = jobs.iter().filter(|job| ended(job.state)).cloned().collect();
    wrong.extend(
        processes_of_jobs(&over).into_iter().map(|process| format!("process {process} of an ended job is running")),
    );
    wrong
}

/// All containers of the instance with their states.
async fn containers(stack: &Stack) -> BTreeMap<String, String> {
    let lines = stack.docker(&["ps", "-a", "--filter", &stack.label(), "--format", "{{.Names}} {{.State}}"]).await;
    lines
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(name, state)| (name.to_owned(), state.to_owned()))
        .collect()
}

/// Checks that the events, calls and workspace of a job agree.
async fn check_job(stack: &Stack, admin: &User, job: &JobSummary) {
    let events = admin.events(job.id).await;
    let seqs: Vec<i64> = events.iter().map(|event| event.seq).collect();
    assert_eq!(seqs, (1_i64..).take(events.len()).collect::<Vec<_>>(), "gaps in the event numbers of {}", job.id);
    let results = events.iter().filter(|event| matches!(event.data, EventData::Result { .. })).count();
    assert_eq!(results, usize::from(ended(job.state)), "the job must end once: {events:#?}");
    if !ended(job.state) {
        return;
    }
    if job.state.is_finished() {
        check_events(job, &events);
    }
    let used = events.iter().filter(|event| matches!(event.data, EventData::ToolUse { .. })).count();
    assert_eq!(job.usage.tool_calls, used as u64, "tool calls of {}: {events:#?}", job.id);
    let calls = calls(admin, job).await;
    let sum = |of: fn(&LlmCallRecord) -> u64| calls.iter().map(of).sum::<u64>();
    assert_eq!(
        (job.usage.llm_calls, job.usage.input_tokens, job.usage.output_tokens),
        (calls.len() as u64, sum(|call| call.usage.input_tokens), sum(|call| call.usage.output_tokens)),
        "the model calls of {} and its usage",
        job.id
    );
    effects(stack, job, &events);
}

async fn calls(admin: &User, job: &JobSummary) -> Vec<LlmCallRecord> {
    let (mut calls, mut cursor) = (vec![], String::new());
    loop {
        let page = admin.get(&format!("/api/jobs/{}/llm-calls?limit=200{cursor}", job.id)).await.expect(200);
        let items: Vec<LlmCallRecord> = serde_json::from_value(page.body["items"].clone()).expect("calls");
        calls.extend(items);
        match page.body["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return calls,
        }
    }
}

/// Checks that each recorded tool call was executed exactly once.
fn effects(stack: &Stack, job: &JobSummary, events: &[Event]) {
    let found = fs::read_to_string(stack.workspace(job.id).join("effects")).unwrap_or_default();
    let found: Vec<&str> = found.lines().collect();
    let once: BTreeSet<&str> = found.iter().copied().collect();
    assert_eq!(once.len(), found.len(), "a tool call of {} was executed twice: {found:?} {events:#?}", job.id);
    let mut asked: BTreeMap<(u32, &str), &str> = BTreeMap::new();
    for event in events {
        match &event.data {
            EventData::ToolUse { call_id, input, .. } => {
                let command = input["command"].as_str().and_then(|command| command.strip_prefix("echo "));
                let Some((tag, _)) = command.and_then(|command| command.split_once(" >> effects")) else { continue };
                let before = asked.insert((event.attempt, call_id.as_str()), tag);
                assert_eq!(before, None, "a tool call of {} is recorded twice: {events:#?}", job.id);
            }
            EventData::ToolResult { call_id, success: true, .. } => {
                let tag = asked.get(&(event.attempt, call_id.as_str()));
                let done = tag.is_none_or(|tag| once.contains(tag));
                assert!(done, "a successful tool call of {} had no effect: {found:?} {events:#?}", job.id);
            }
            _ => {}
        }
    }
    // A killed worker may lose its last events; a worker that reported has sent all events before.
    let reported = job.state != JobState::Failed && job.state != JobState::Cancelled;
    let asked: BTreeSet<&str> = asked.into_values().collect();
    assert!(!reported || once.is_subset(&asked), "{} executed unrecorded tool calls: {found:?} {events:#?}", job.id);
}
