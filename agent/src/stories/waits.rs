//! Rate limits and broken models.

use std::time::Duration;

use protocol::{FinishReason, PromptMode::Steer, RateLimitOrigin};
use serde_json::json;

use super::world::{Turn, World, call, completion, say, spoken, tool_call};
use crate::{FailureReason, LoopOutcome, ModelError};

fn refused(origin: RateLimitOrigin, seconds: Option<u64>) -> Turn {
    let retry_after = seconds.map(Duration::from_secs);
    Turn::Error(ModelError::RateLimited { origin, retry_after, message: "slow down".to_owned() })
}

fn limited(seconds: Option<u64>) -> Turn {
    refused(RateLimitOrigin::Provider, seconds)
}

fn completed(text: &str) -> LoopOutcome {
    LoopOutcome::Completed { text: text.to_owned(), cut: false }
}

#[tokio::test(start_paused = true)]
async fn retry_after_is_honoured_and_the_same_call_repeated() {
    let mut world = World::new([limited(Some(7)), limited(Some(20)), say("Done.")]);
    let started_at = tokio::time::Instant::now();
    assert_eq!(world.run().await, LoopOutcome::Completed { text: "Done.".to_owned(), cut: false });
    assert_eq!(started_at.elapsed().as_secs(), 27);
    let asked = world.asked();
    assert!(asked[0].call_id == asked[1].call_id && asked[1].call_id == asked[2].call_id);
    assert_eq!(world.run_state.iterations(), 1);
}

#[tokio::test(start_paused = true)]
async fn without_retry_after_the_waits_grow() {
    let mut world = World::new([limited(None), limited(None), limited(None), say("Done.")]);
    let started_at = tokio::time::Instant::now();
    world.run().await;
    // 1, 2 and 4 s, each between its half and itself.
    let waited = started_at.elapsed().as_secs_f64();
    assert!((3.5..=7.1).contains(&waited), "waited {waited} s");
}

#[tokio::test(start_paused = true)]
async fn ten_in_a_row_fail_and_nine_do_not() {
    let mut world = World::new((0..10).map(|_| limited(Some(1))).chain([say("Done.")]));
    assert!(matches!(world.run().await, LoopOutcome::Failed { reason: FailureReason::ProviderOutage, .. }));
    assert_eq!(world.asked().len(), 10);

    let mut world = World::new((0..9).map(|_| limited(Some(1))).chain([say("Done.")]));
    assert_eq!(world.run().await, LoopOutcome::Completed { text: "Done.".to_owned(), cut: false });
}

#[tokio::test(start_paused = true)]
async fn local_refusals_are_waited_out_without_a_limit() {
    let local = || refused(RateLimitOrigin::Local, Some(30));
    let mut world = World::new((0..50).map(|_| local()).chain([say("Done.")]));
    world.settings.outage_patience = Duration::from_mins(1);
    let started_at = tokio::time::Instant::now();
    assert_eq!(world.run().await, completed("Done."));
    assert_eq!(started_at.elapsed().as_secs(), 50 * 30);
    assert_eq!(world.run_state.iterations(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_model_without_an_answer_is_retried_until_the_outage_patience_ends() {
    let mut world = World::new((0..100).map(|_| limited(None)));
    world.settings.outage_patience = Duration::from_secs(20);
    let started_at = tokio::time::Instant::now();
    let LoopOutcome::Failed { reason: FailureReason::ProviderOutage, message } = world.run().await else {
        panic!("it cannot complete")
    };
    assert_eq!(
        (started_at.elapsed().as_secs(), message.as_str()),
        (20, "no answer from the model for 20 s: slow down")
    );
}

#[tokio::test(start_paused = true)]
async fn an_open_circuit_spends_the_outage_patience() {
    let circuit = || refused(RateLimitOrigin::Circuit, Some(30));
    let mut world = World::new([limited(None), limited(None), circuit(), circuit(), say("too late")]);
    world.settings.outage_patience = Duration::from_secs(20);
    let started_at = tokio::time::Instant::now();
    assert!(matches!(world.run().await, LoopOutcome::Failed { reason: FailureReason::ProviderOutage, .. }));
    assert_eq!(started_at.elapsed().as_secs(), 20);
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_thirty_seconds_ends_nothing() {
    // The provider fails, then the circuit is open, then the trial succeeds.
    let turns = [limited(None), limited(None), refused(RateLimitOrigin::Circuit, Some(28)), say("Done.")];
    let mut world = World::new(turns);
    assert_eq!(world.run().await, completed("Done."));
}

#[tokio::test(start_paused = true)]
async fn a_long_wait_is_recorded_repeatedly() {
    let mut world = World::new([limited(Some(600)), say("Done.")]);
    assert_eq!(world.run().await, completed("Done."));
    let events: Vec<String> = world.events().into_iter().filter(|line| line.starts_with("status")).collect();
    assert_eq!(events.len(), 60, "every 10 s: {events:?}");
    assert_eq!(
        events[0],
        "status: waiting for the model: it failed once, and is given up after 10 times or 300 s without an answer; next try in 600 s: slow down"
    );
    assert_eq!(
        events[59],
        "status: waiting for the model: it failed once, and is given up after 10 times or 300 s without an answer; next try in 10 s: slow down"
    );
}

#[tokio::test(start_paused = true)]
async fn quick_retries_are_not_a_flood_of_status_events() {
    let local = refused(RateLimitOrigin::Local, Some(4));
    let mut world = World::new([local, limited(Some(3)), limited(Some(3)), limited(Some(4)), say("Done.")]);
    assert_eq!(world.run().await, completed("Done."));
    let events: Vec<String> = world.events().into_iter().filter(|line| line.starts_with("status")).collect();
    let expected = [
        "status: waiting for the model: next try in 4 s: slow down",
        "status: waiting for the model: it failed 3 times, and is given up after 10 times or 300 s without an answer; next try in 4 s: slow down",
    ];
    assert_eq!(events, expected, "at 0 s and at 10 s");
}

#[tokio::test(start_paused = true)]
async fn a_prompt_that_arrives_during_the_wait_is_in_the_next_request() {
    let mut world = World::new([limited(Some(600)), say("Done.")]);
    let signals = world.signals();
    let started_at = tokio::time::Instant::now();
    let (outcome, ()) = tokio::join!(world.run(), async {
        tokio::time::sleep(Duration::from_secs(100)).await;
        signals.send(Steer, "and this");
    });
    assert_eq!((outcome, started_at.elapsed().as_secs()), (completed("Done."), 600));
    let asked = world.asked();
    assert_ne!(asked[0].call_id, asked[1].call_id, "another question is another call");
    assert_eq!(asked[1].messages.last().map(spoken).as_deref(), Some("user: and this"));
    assert_eq!(world.run_state.iterations(), 1);
    // It is recorded when it is taken, not when the wait is over.
    let events = world.events();
    let taken = events.iter().position(|line| line == "user: and this").unwrap();
    assert!(events[taken + 1..].iter().any(|line| line.starts_with("status: waiting for the model")), "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn a_prompt_during_the_wait_resets_the_guards() {
    // Five failing calls make the next call text only; the prompt is a new beginning.
    let failing = || call("fail", json!({}));
    let turns = (0..5).map(|_| failing()).chain([limited(Some(30)), say("Done.")]);
    let mut world = World::new(turns);
    let signals = world.signals();
    let (outcome, ()) = tokio::join!(world.run(), async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        signals.send(Steer, "try something else");
    });
    assert_eq!(outcome, completed("Done."));
    let choices: Vec<_> = world.asked().iter().map(|request| request.tool_choice).collect();
    assert_eq!(choices[5..], [protocol::ToolChoice::None, protocol::ToolChoice::Auto]);
}

#[tokio::test(start_paused = true)]
async fn a_prompt_that_arrives_during_a_compaction_is_in_the_next_request() {
    let filling = |tokens: u64| {
        let mut reply = completion("", vec![tool_call("", "echo", json!({}))], FinishReason::ToolCalls);
        (reply.content, reply.usage.input_tokens) = ("words ".repeat(4_000), tokens);
        Turn::Answer(reply)
    };
    let mut world = World::new([
        filling(10_000),
        filling(20_000),
        filling(80_000),
        limited(Some(30)),
        say("a summary"),
        say("Done."),
    ]);
    let signals = world.signals();
    let (outcome, ()) = tokio::join!(world.run(), async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        signals.send(Steer, "and this");
    });
    assert_eq!(outcome, completed("Done."));
    let asked = world.asked();
    let last = asked.last().unwrap().messages.last().map(spoken);
    assert_eq!(last.as_deref(), Some("user: and this"), "{:?}", world.events());
}

#[tokio::test(start_paused = true)]
async fn a_stop_ends_the_wait() {
    let mut world = World::new([limited(Some(600)), say("too late")]);
    let signals = world.signals();
    let started_at = tokio::time::Instant::now();
    let (outcome, ()) = tokio::join!(world.run(), async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        signals.stop.cancel();
    });
    assert_eq!((outcome, started_at.elapsed().as_secs()), (LoopOutcome::Stopped, 3));
}

#[tokio::test(start_paused = true)]
async fn a_permanent_error_fails_with_its_message() {
    let mut world = World::new([Turn::Error(ModelError::failed("no such model"))]);
    let failed = LoopOutcome::Failed { reason: FailureReason::LlmError, message: "no such model".to_owned() };
    assert_eq!(world.run().await, failed);
}

#[tokio::test(start_paused = true)]
async fn a_fenced_attempt_stops() {
    let mut world = World::new([Turn::Error(ModelError::Stopped)]);
    assert_eq!(world.run().await, LoopOutcome::Stopped);
}
