//! What keeps a loop from running in circles: nudges, duplicates, cut-off and empty replies.

use protocol::{FinishReason, ToolChoice};
use rstest::rstest;
use serde_json::json;

use super::world::{Turn, World, call, completion, say, tool_call};
use crate::{FailureReason, LoopOutcome};

fn reason(outcome: LoopOutcome) -> FailureReason {
    match outcome {
        LoopOutcome::Failed { reason, .. } => reason,
        other => panic!("not a failure: {other:?}"),
    }
}

fn cut_off() -> Turn {
    Turn::Answer(completion("", vec![tool_call("", "echo", json!({}))], FinishReason::Length))
}

#[tokio::test(start_paused = true)]
async fn an_announced_action_is_nudged_twice_and_then_accepted_as_the_answer() {
    let mut world = World::new((0..4).map(|_| say("Let me read the file.")));
    assert_eq!(world.run().await, LoopOutcome::Completed { text: "Let me read the file.".to_owned(), cut: false });
    assert_eq!(world.asked().len(), 3);
    assert_eq!(world.events().iter().filter(|line| line.starts_with("system:")).count(), 2);
}

#[tokio::test(start_paused = true)]
async fn an_endless_failing_call_is_warned_then_text_only_then_failed() {
    let mut world = World::new((0..9).map(|_| call("fail", json!({"again": true}))));
    assert_eq!(reason(world.run().await), FailureReason::DuplicateCalls);
    let asked = world.asked();
    assert_eq!(asked.len(), 6);
    let choices: Vec<ToolChoice> = asked.iter().map(|request| request.tool_choice).collect();
    assert_eq!(choices.iter().position(|choice| *choice == ToolChoice::None), Some(5));
    let notes: Vec<String> = world.events().into_iter().filter(|line| line.starts_with("system:")).collect();
    assert!(notes.len() == 2 && notes[0].contains("3 times") && notes[1].contains("5 times"), "{notes:?}");
    assert_eq!(world.run_state.partial().tool_calls, 5);
}

#[tokio::test(start_paused = true)]
async fn after_the_duplicate_guard_a_text_still_completes_the_work() {
    let failing = (0..5).map(|_| call("fail", json!({})));
    let mut world = World::new(failing.chain([say("It cannot be done.")]));
    assert_eq!(world.run().await, LoopOutcome::Completed { text: "It cannot be done.".to_owned(), cut: false });
}

#[tokio::test(start_paused = true)]
async fn a_success_in_between_resets_the_count() {
    let turn = |one: usize| if one % 3 == 2 { call("echo", json!({})) } else { call("fail", json!({})) };
    let mut world = World::new((0..12).map(turn).chain([say("Done.")]));
    assert_eq!(world.run().await, LoopOutcome::Completed { text: "Done.".to_owned(), cut: false });
    assert!(!world.events().iter().any(|line| line.starts_with("system:")));
}

#[tokio::test(start_paused = true)]
async fn calls_of_cut_off_replies_are_never_run_and_the_third_forces_text() {
    let mut world = World::new([cut_off(), cut_off(), cut_off(), say("Half of it.")]);
    assert_eq!(world.run().await, LoopOutcome::Completed { text: "Half of it.".to_owned(), cut: false });
    assert_eq!(world.run_state.partial().tool_calls, 0);
    let choices: Vec<ToolChoice> = world.asked().iter().map(|request| request.tool_choice).collect();
    assert_eq!(choices, [ToolChoice::Auto, ToolChoice::Auto, ToolChoice::Auto, ToolChoice::None]);
    assert!(world.asked().iter().all(|request| request.tools == world.asked()[0].tools), "one beginning for all");
}

#[tokio::test(start_paused = true)]
async fn a_complete_reply_in_between_resets_the_count() {
    let mut world = World::new([cut_off(), cut_off(), call("echo", json!({})), cut_off(), cut_off(), say("Done.")]);
    assert_eq!(world.run().await, LoopOutcome::Completed { text: "Done.".to_owned(), cut: false });
    assert!(world.asked().iter().all(|request| request.tool_choice == ToolChoice::Auto));
}

#[rstest]
#[case::empty("")]
#[case::blank(" \n\t")]
#[case::only_thinking("<think>hm</think>")]
#[tokio::test(start_paused = true)]
async fn empty_replies_are_nudged_then_text_only_then_failed(#[case] nothing: &str) {
    let mut world = World::new((0..5).map(|_| say(nothing)));
    assert_eq!(reason(world.run().await), FailureReason::EmptyReply);
    let choices: Vec<ToolChoice> = world.asked().iter().map(|request| request.tool_choice).collect();
    assert_eq!(choices, [ToolChoice::Auto, ToolChoice::Auto, ToolChoice::None]);
}

#[tokio::test(start_paused = true)]
async fn an_empty_reply_is_no_result_and_leaves_no_trace_in_the_transcript() {
    let mut world = World::new([say(""), say("Done.")]);
    assert_eq!(world.run().await, LoopOutcome::Completed { text: "Done.".to_owned(), cut: false });
    assert_eq!(world.messages().iter().filter(|line| line.starts_with("assistant")).count(), 1);
}
