//! Prompts and stops that reach a loop while it works.

use std::time::Duration;

use protocol::PromptMode::{Queue, Steer};
use serde_json::json;

use super::world::{Turn, World, call, say, spoken};
use crate::{LimitKind, LoopOutcome, ToolOutput};

fn completed(text: &str) -> LoopOutcome {
    LoopOutcome::Completed { text: text.to_owned(), cut: false }
}

/// A world whose tool `knock` lets the prompts arrive while it runs.
fn with_knock(script: Vec<Turn>, prompts: &'static [(protocol::PromptMode, &'static str)]) -> World {
    let mut world = World::new(script);
    let signals = world.signals();
    world.tool("knock", move |_| {
        for (mode, content) in prompts {
            signals.send(*mode, content);
        }
        Box::pin(async { Ok(ToolOutput::success("open")) })
    });
    world
}

#[tokio::test(start_paused = true)]
async fn steer_is_seen_before_the_next_call_and_queued_when_the_work_would_end() {
    let prompts = &[(Queue, "later"), (Steer, "one"), (Steer, "two"), (Queue, "last")];
    let script = vec![call("knock", json!({})), say("first end"), say("second end"), say("the end")];
    let mut world = with_knock(script, prompts);
    assert_eq!(world.run().await, completed("the end"));
    let expected = [
        "user: Do the task.",
        r#"assistant:  ["knock"]"#,
        "tool knock: open",
        "user: one",
        "user: two",
        "assistant: first end",
        "user: later",
        "assistant: second end",
        "user: last",
        "assistant: the end",
    ];
    assert_eq!(world.messages(), expected);
    assert_eq!(world.asked()[1].messages.iter().skip(4).map(spoken).collect::<Vec<_>>(), ["user: one", "user: two"]);
    let users = world.events().into_iter().filter(|line| line.starts_with("user")).count();
    assert_eq!(users, 5, "each prompt is recorded once, the first one too");
}

#[tokio::test(start_paused = true)]
async fn a_second_run_continues_with_new_prompts() {
    let mut world = World::new([say("Done."), say("Done too.")]);
    assert_eq!(world.run().await, completed("Done."));
    world.signals().send(Steer, "and this");
    assert_eq!(world.run().await, completed("Done too."));
    assert_eq!(world.run_state.iterations(), 2);
    // With nothing left to do the outcome is the same, without another model call.
    assert_eq!(world.run().await, completed("Done too."));
    assert_eq!(world.asked().len(), 2);
    assert_eq!(world.events().iter().filter(|line| *line == "user: do the task.").count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_second_run_takes_queued_prompts() {
    let mut world = World::new([say("Done."), say("Done too.")]);
    world.run().await;
    world.signals().send(Queue, "and this");
    assert_eq!(world.run().await, completed("Done too."));
}

#[tokio::test(start_paused = true)]
async fn a_second_run_after_a_limit_has_the_same_outcome() {
    let mut world = World::new([say("So far.")]);
    world.settings.max_iterations = 1;
    let limit =
        LoopOutcome::Limit { which: LimitKind::Iterations, message: "1".to_owned(), text: "So far.".to_owned() };
    assert_eq!(world.run().await, limit);
    world.signals().send(Steer, "more");
    assert_eq!(world.run().await, limit);
    assert_eq!(world.asked().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_stop_drops_the_model_call() {
    let mut world = World::new([Turn::Hang]);
    let signals = world.signals();
    let (outcome, ()) = tokio::join!(world.run(), async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        signals.stop.cancel();
    });
    assert_eq!(outcome, LoopOutcome::Stopped);
}

#[tokio::test(start_paused = true)]
async fn a_stop_drops_the_tool_calls() {
    let mut world = World::new([call("slow", json!({"seconds": 30}))]);
    let signals = world.signals();
    let started_at = tokio::time::Instant::now();
    let (outcome, ()) = tokio::join!(world.run(), async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        signals.stop.cancel();
    });
    assert_eq!(outcome, LoopOutcome::Stopped);
    assert!(started_at.elapsed() < Duration::from_secs(7), "took {:?}", started_at.elapsed());
    assert!(world.events().last().unwrap().contains("stopped before it finished"));
}

#[tokio::test(start_paused = true)]
async fn a_stop_before_the_start_calls_no_model() {
    let mut world = World::new([say("Hello.")]);
    world.signals.stop.cancel();
    assert_eq!(world.run().await, LoopOutcome::Stopped);
    assert!(world.asked().is_empty());
}
