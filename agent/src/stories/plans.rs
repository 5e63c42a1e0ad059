//! Planning and compaction: the loop's own use of the model.

use protocol::{FinishReason, PromptMode, TokenUsage, ToolChoice};
use rstest::rstest;
use serde_json::{Value, json};

use super::world::{Turn, World, call, completion, say, spoken};
use crate::{LimitKind, LoopOutcome, ToolOutput};

fn plan(tools: &[&str]) -> Turn {
    let steps: Vec<Value> =
        tools.iter().map(|tool| json!({"tool": tool, "parameters": {}, "reasoning": "because"})).collect();
    say(&json!({"goal": "the goal", "steps": steps, "confidence": 0.9}).to_string())
}

fn planning(script: Vec<Turn>) -> World {
    let mut world = World::new(script);
    world.settings.plan = true;
    world
}

#[tokio::test(start_paused = true)]
async fn a_plan_is_made_run_and_assessed() {
    let done = say(r#"{"done": true, "remaining": "", "answer": "Both said."}"#);
    let mut world = planning(vec![plan(&["echo", "echo"]), done]);
    world.settings.temperature = Some(0.5);
    assert_eq!(world.run().await, LoopOutcome::Completed { text: "Both said.".to_owned(), cut: false });
    let expected = [
        "user: do the task.",
        "plan: the goal in 2",
        "use echo {}",
        "result echo true: nothing",
        "use echo {}",
        "result echo true: nothing",
        "assistant: both said.",
    ];
    assert_eq!(world.events(), expected);
    let asked = world.asked();
    assert_eq!((asked.len(), asked[0].tool_choice), (2, ToolChoice::None));
    assert_eq!((asked[0].temperature, asked[1].temperature), (None, None), "the plan and its assessment");
    assert!(spoken(asked[0].messages.last().unwrap()).contains("- echo: the echo of the story"));
    assert!(!world.messages().iter().any(|line| line.contains("Plan the task") || line.contains("\"done\"")));
}

#[rstest]
#[case::remaining(r#"{"done": false, "remaining": "Say it louder."}"#, "user: Say it louder.")]
#[case::unparsable("It all looks good to me!", "user: The task is not done yet. Go on until it is.")]
#[tokio::test(start_paused = true)]
async fn remaining_work_is_done_by_the_plain_loop(#[case] assessment: &str, #[case] message: &str) {
    let mut world = planning(vec![plan(&["echo"]), say(assessment), say("Now it is done.")]);
    assert_eq!(world.run().await, LoopOutcome::Completed { text: "Now it is done.".to_owned(), cut: false });
    let tail = ["assistant: because [\"echo\"]", "tool echo: nothing", message, "assistant: Now it is done."];
    assert_eq!(world.messages()[1..], tail);
    assert_eq!(world.asked()[2].tool_choice, ToolChoice::Auto);
}

#[rstest]
#[case::words("I would look around first.")]
#[case::no_steps(r#"{"goal": "g", "steps": [], "confidence": 1}"#)]
#[case::nothing("")]
#[tokio::test(start_paused = true)]
async fn a_bad_plan_falls_back_to_direct_work(#[case] plan: &str) {
    let mut world = planning(vec![say(plan), call("echo", json!({})), say("Done.")]);
    assert_eq!(world.run().await, LoopOutcome::Completed { text: "Done.".to_owned(), cut: false });
    assert_eq!(world.events()[1], "status: no usable plan; working without one");
}

#[tokio::test(start_paused = true)]
async fn a_prompt_abandons_the_plan() {
    let mut world = planning(vec![plan(&["knock", "echo", "echo"]), say("As you say.")]);
    let signals = world.signals();
    world.tool("knock", move |_| {
        signals.send(PromptMode::Steer, "forget it");
        Box::pin(async { Ok(ToolOutput::success("open")) })
    });
    assert_eq!(world.run().await, LoopOutcome::Completed { text: "As you say.".to_owned(), cut: false });
    assert_eq!(world.run_state.partial().tool_calls, 1);
    assert_eq!(world.messages().last_chunk::<2>().unwrap(), &["user: forget it", "assistant: As you say."]);
}

#[tokio::test(start_paused = true)]
async fn failing_steps_are_reported_to_the_assessment() {
    let mut world = planning(vec![plan(&["fail", "nope", "echo"]), say(r#"{"done": true}"#)]);
    assert_eq!(world.run().await, LoopOutcome::Completed { text: "Done: the goal".to_owned(), cut: false });
    assert_eq!(world.asked()[1].messages.iter().filter(|m| spoken(m).contains("error (")).count(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_plan_respects_the_limits() {
    let mut world = planning(vec![plan(&["echo", "echo", "echo"])]);
    world.settings.max_tool_calls = 2;
    assert_eq!(
        world.run().await,
        LoopOutcome::Limit { which: LimitKind::ToolCalls, message: "2".to_owned(), text: String::new() }
    );

    let mut world = planning(vec![plan(&["echo"]), say(r#"{"done": false}"#), say("never asked")]);
    world.settings.max_iterations = 2;
    assert_eq!(
        world.run().await,
        LoopOutcome::Limit { which: LimitKind::Iterations, message: "2".to_owned(), text: String::new() }
    );
}

/// A reply whose usage reports this many tokens.
fn filling(tokens: u64, text: &str) -> Turn {
    let mut reply = completion(text, vec![super::world::tool_call("", "echo", json!({}))], FinishReason::ToolCalls);
    reply.usage = TokenUsage { input_tokens: tokens, ..TokenUsage::default() };
    Turn::Answer(reply)
}

#[tokio::test(start_paused = true)]
async fn at_eighty_percent_older_turns_are_summarised() {
    let long = "words ".repeat(4_000);
    let script = vec![
        filling(10_000, &long),
        filling(20_000, &long),
        filling(76_000, "short one"),
        filling(77_000, "short two"),
        say("There was talk."),
        say("Done."),
    ];
    let mut world = World::new(script);
    world.settings.temperature = Some(0.5);
    assert_eq!(world.run().await, LoopOutcome::Completed { text: "Done.".to_owned(), cut: false });
    let asked = world.asked();
    let of_work = Some(0.5);
    let temperatures: Vec<_> = asked.iter().map(|request| request.temperature).collect();
    assert_eq!(temperatures, [of_work, of_work, of_work, of_work, None, of_work], "none for the summary");
    assert!(asked[4].tools.is_empty() && asked[4].messages.len() == 2, "the fifth call is the summary");
    let transcript = world.messages();
    assert_eq!(transcript[0], "user: Do the task.");
    assert!(transcript[1].contains("There was talk."), "{}", transcript[1]);
    assert!(transcript.iter().any(|line| line.contains("short one")));
    assert_eq!(asked[5].messages.len(), 9, "ten without the summary");
    assert!(world.events().iter().any(|line| line.starts_with("status: ") && line.contains("summarised")));
}

#[tokio::test(start_paused = true)]
async fn below_that_nothing_is_summarised() {
    let long = "words ".repeat(4_000);
    let mut world =
        World::new(vec![filling(10_000, &long), filling(20_000, &long), filling(76_000, "x"), say("Done.")]);
    assert_eq!(world.run().await, LoopOutcome::Completed { text: "Done.".to_owned(), cut: false });
}

#[tokio::test(start_paused = true)]
async fn without_usage_the_size_is_estimated() {
    let long = "words ".repeat(4_000);
    let mut world = World::new(vec![filling(0, &long), filling(0, &long), say("There was talk."), say("Done.")]);
    world.model.context_tokens = 15_000;
    assert_eq!(world.run().await, LoopOutcome::Completed { text: "Done.".to_owned(), cut: false });
    assert!(world.messages()[1].contains("There was talk."));
}
