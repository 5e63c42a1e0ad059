//! What fits: a model with a small context window, tool results that are larger than it, prompts and reports of the
//! largest size, and an attempt that resumes with nothing left.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use orchestrator::clock::ManualClock;
use protocol::{EventData, Job, JobReason, JobState, MessageRole};
use rstest::rstest;
use serde_json::{Value, json};
use tests::{Workers, World, script_of};

use crate::models::upstream::{Answer, Upstream};

/// Bytes in a token, as servers count on average.
const BYTES_PER_TOKEN: usize = 4;
/// Default of `llm.context_tokens` for servers that are compatible with OpenAI's.
const USUAL_CONTEXT_TOKENS: usize = 128_000;

/// A model that needs some tool calls for its task, behind a server that refuses what its context window does not hold.
struct SmallWindow {
    context_tokens: usize,
    /// Replies with calls before the last one.
    rounds: usize,
    calls: fn(usize) -> Vec<(&'static str, Value)>,
    /// Reported prompt tokens, by the true ones.
    reported: fn(usize) -> u64,
}

/// The counts of the server.
#[derive(Default)]
struct Counted {
    rounds: AtomicUsize,
    summaries: AtomicUsize,
    refused: AtomicUsize,
}

impl SmallWindow {
    async fn start(self) -> (Upstream, Arc<Counted>) {
        let counted = Arc::new(Counted::default());
        let server = Arc::clone(&counted);
        (Upstream::start(move |request| self.answer(request, &server)).await, counted)
    }

    fn answer(&self, request: &Value, counted: &Counted) -> (Answer, Value) {
        let prompt_bytes = request["messages"].to_string().len() + request["tools"].to_string().len();
        let prompt_tokens = prompt_bytes.div_ceil(BYTES_PER_TOKEN);
        let output_tokens = usize::try_from(request["max_tokens"].as_u64().unwrap()).unwrap();
        let usage = json!({"prompt_tokens": (self.reported)(prompt_tokens), "completion_tokens": 20});
        // As vLLM does: the room for the answer counts.
        if prompt_tokens + output_tokens > self.context_tokens {
            counted.refused.fetch_add(1, Ordering::SeqCst);
            return (Answer::Refusal(400, "context_length_exceeded".to_owned()), usage);
        }
        if request["tools"].is_null() {
            counted.summaries.fetch_add(1, Ordering::SeqCst);
            return (Answer::Text("It read parts of the file.".to_owned()), usage);
        }
        let round = counted.rounds.fetch_add(1, Ordering::SeqCst);
        let answer =
            if round < self.rounds { Answer::Calls((self.calls)(round)) } else { Answer::Text("Done.".to_owned()) };
        (answer, usage)
    }
}

/// A file of 96 KiB: as much as one call reads.
fn large_file() -> Value {
    let lines: Vec<String> =
        (0..1_536).map(|n| format!("line {n:05} of a file that is read again and again, 64 bytes")).collect();
    json!({"path": "large.txt", "content": lines.join("\n")})
}

async fn run(upstream: &Upstream, context_tokens: usize) -> (Job, Vec<EventData>) {
    let world = upstream.world().processes().set("GANTRY_LLM_CONTEXT_TOKENS", context_tokens).build().await;
    let ada = world.user("ada");
    let body = json!({"prompt": "Read the file.", "files": [large_file()], "limits": {"max_iterations": 200}});
    let id = ada.create(body).await;
    let job = ada.wait_for_end(id).await;
    let events = ada.events(id).await.into_iter().map(|event| event.data).collect();
    world.finish().await;
    (job, events)
}

fn part_of_the_file(round: usize) -> Vec<(&'static str, Value)> {
    vec![("read_file", json!({"path": "large.txt", "offset": round + 1, "limit": 32}))]
}

fn the_file_eight_times(_: usize) -> Vec<(&'static str, Value)> {
    vec![("read_file", json!({"path": "large.txt"})); 8]
}

#[rstest]
#[case::as_it_is(|tokens| tokens as u64)]
#[case::nothing(|_| 0)]
#[case::too_little(|_| 1)]
#[case::far_too_much(|_| 1_000_000_000)]
#[tokio::test]
async fn a_model_with_8k_of_context_finishes_a_job_of_60_tool_calls(#[case] reported: fn(usize) -> u64) {
    let model = SmallWindow { context_tokens: 8_192, rounds: 60, calls: part_of_the_file, reported };
    let (upstream, counted) = model.start().await;
    let (job, _) = run(&upstream, 8_192).await;
    assert_eq!(
        (job.state, job.result.and_then(|result| result.text).as_deref()),
        (JobState::Completed, Some("Done.")),
        "{:?}",
        job.message
    );
    assert_eq!((job.usage.tool_calls, counted.refused.load(Ordering::SeqCst)), (60, 0));
    assert!(counted.summaries.load(Ordering::SeqCst) > 1, "the window holds far less than 60 results");
}

#[rstest]
#[case::usual(USUAL_CONTEXT_TOKENS)]
#[case::small(8_192)]
#[tokio::test]
async fn eight_large_reads_in_one_reply_fit(#[case] context_tokens: usize) {
    let model =
        SmallWindow { context_tokens, rounds: 3, calls: the_file_eight_times, reported: |tokens| tokens as u64 };
    let (upstream, counted) = model.start().await;
    let (job, events) = run(&upstream, context_tokens).await;
    assert_eq!((job.state, job.usage.tool_calls), (JobState::Completed, 24), "{:?}", job.message);
    assert_eq!(counted.refused.load(Ordering::SeqCst), 0);
    let is_whole = |event: &&EventData| matches!(event, EventData::ToolResult { output, .. } if output.len() > 90_000);
    assert_eq!(events.iter().filter(is_whole).count(), 24, "what is shortened for the model is recorded whole");
}

/// Default of `lease_seconds`.
const LEASE: Duration = Duration::from_secs(30);

fn clock() -> ManualClock {
    ManualClock::at("2026-11-22T12:00:00Z".parse().unwrap())
}

/// The largest prompt, of bytes that JSON escapes.
fn largest_prompt() -> String {
    "say \"\n\t\\".repeat(protocol::limits::MAX_PROMPT_BYTES / 8)
}

#[tokio::test]
async fn the_largest_prompt_comes_back_whole_after_a_repair() {
    let prompts: Arc<Mutex<Vec<Value>>> = Arc::default();
    let seen = Arc::clone(&prompts);
    let upstream = Upstream::start(move |request| {
        let mut seen = seen.lock().unwrap();
        seen.push(request["messages"][1].clone());
        let answer = match seen.len() {
            1 => Answer::Calls(vec![("shell", json!({"command": "sleep 600", "timeout_seconds": 900}))]),
            _ => Answer::Text("Done.".to_owned()),
        };
        (answer, Value::Null)
    })
    .await;
    let time = clock();
    let world = upstream.world().processes().clock(&time).build().await;
    let ada = world.user("ada");
    let prompt = largest_prompt();
    let id = ada.create(json!({"prompt": prompt})).await;
    ada.wait_for_event(id, "the tool call", |event| matches!(event.data, EventData::ToolUse { .. })).await;
    // Its lease runs out.
    time.advance(LEASE);
    let job = ada.wait_for(id, JobState::Completed).await;
    assert_eq!((job.attempt, job.prompt == prompt), (2, true));
    let expected = json!({"role": "user", "content": prompt});
    let prompts = std::mem::take(&mut *prompts.lock().unwrap());
    assert_eq!((prompts.len(), prompts.iter().all(|seen| *seen == expected)), (2, true), "cut or changed on the way");
    world.finish().await;
}

#[tokio::test]
async fn a_long_last_text_ends_the_job_as_what_it_is() {
    // Over a megabyte, and twice that in a report, which has the text and the partial result.
    let long = "-\n\"".repeat(400_000);
    let script = script_of(&[
        json!({"when": {"prompt": "complete"}, "reply": {"text": long}}),
        json!({"reply": {"text": long, "finish_reason": "stop"}}),
    ]);
    let world = World::builder().processes().script(script).build().await;
    let ada = world.user("ada");
    let (to_complete, to_limit) = (
        ada.create(json!({"prompt": "complete"})).await,
        ada.create(json!({"prompt": "reach the limit", "limits": {"max_iterations": 1}})).await,
    );
    let completed = ada.wait_for_end(to_complete).await;
    assert_eq!((completed.state, completed.attempt), (JobState::Completed, 1), "{:?}", completed.message);
    assert!(completed.result.and_then(|result| result.text).is_some_and(|text| text.len() > 100_000));
    let limited = ada.wait_for_end(to_limit).await;
    assert_eq!((limited.reason, limited.attempt), (Some(JobReason::IterationLimit), 1), "{:?}", limited.message);
    assert!(limited.result.and_then(|result| result.partial).is_some_and(|partial| partial.text.len() > 100_000));
    world.finish().await;
}

/// The attempt before made every call that the job may make, and died before its report.
#[tokio::test]
async fn an_attempt_that_resumes_at_its_iteration_cap_ends_as_iteration_limit() {
    let script = script_of(&[json!({"reply": {"text": "so far"}})]);
    let time = clock();
    let world = World::builder().clock(&time).script(script).build().await;
    let ada = world.user("ada");
    let id = ada.create(json!({"prompt": "work", "limits": {"max_iterations": 2}})).await;
    let worker = world.manual_worker(id).await;
    worker.job().await;
    worker.send(&[(1, "message", json!({"role": "user", "content": "work"}))]).await.expect(200);
    for (call, seq) in [("c1", 2), ("c2", 3)] {
        worker.complete_llm(call, "work").await;
        worker.record_message(seq, "so far").await.expect(200);
    }
    world.engine().use_workers(Workers::Process);
    time.advance(LEASE);
    let job = ada.wait_for(id, JobState::Failed).await;
    assert_eq!((job.reason, job.attempt, job.usage.llm_calls), (Some(JobReason::IterationLimit), 2, 2));
    let partial = job.result.and_then(|result| result.partial).unwrap();
    assert_eq!(partial.text, "so far");
    let messages = ada.events(id).await.into_iter().filter(|event| {
        matches!(&event.data, EventData::Message { role: MessageRole::Assistant, content } if content == "so far")
    });
    assert_eq!(messages.count(), 2, "nothing is said again");
    world.finish().await;
}
