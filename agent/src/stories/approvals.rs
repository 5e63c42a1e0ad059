//! Calls that wait for a person: the loop ends with a request and continues from the answer, also in another process.

use std::collections::BTreeSet;

use protocol::{AgentEvent, Completion, FinishReason, PermissionState, PromptMode::Steer};
use rstest::rstest;
use serde_json::json;

use super::world::{Turn, World, call, calls, completion, say, tool_call};
use crate::{ApprovalAnswer, ApprovalContext, ApprovalRequest, LoopOutcome, NothingToApprove, Run, Transcript};

/// A world with a person, who is asked for every call of the story's tools.
fn chat(script: impl IntoIterator<Item = Turn>) -> World {
    let mut world = World::new(script);
    world.context.approval = ApprovalContext::Interactive { remembered: BTreeSet::new() };
    world
}

fn completed(text: &str) -> LoopOutcome {
    LoopOutcome::Completed { text: text.to_owned(), cut: false }
}

/// Runs the loop until it asks.
async fn request(world: &mut World) -> ApprovalRequest {
    match world.run().await {
        LoopOutcome::NeedsApproval { request } => request,
        other => panic!("expected a request, found {other:?}"),
    }
}

/// What another process knows: the serialized state.
fn restart(world: &mut World) {
    let run = serde_json::to_string(&world.run_state).unwrap();
    let transcript = serde_json::to_string(&world.transcript).unwrap();
    world.run_state = serde_json::from_str::<Run>(&run).unwrap();
    world.transcript = serde_json::from_str::<Transcript>(&transcript).unwrap();
}

/// What the model thought, else what it said before its calls.
#[rstest]
#[case::said(None, "I say it twice.", Some("I say it twice."))]
#[case::thought(Some("It must be said."), "I say it twice.", Some("It must be said."))]
#[case::thought_in_tags(None, "<think>It must be said.</think>I say it twice.", Some("It must be said."))]
#[case::neither(None, "", None)]
#[tokio::test(start_paused = true)]
async fn each_call_of_a_reply_has_its_reason(
    #[case] reasoning: Option<&str>,
    #[case] text: &str,
    #[case] reason: Option<&str>,
) {
    let two = || vec![tool_call("", "echo", json!({})), tool_call("", "echo", json!({}))];
    let reply = || {
        let reasoning = reasoning.map(str::to_owned);
        Turn::Answer(Completion { reasoning, ..completion(text, two(), FinishReason::ToolCalls) })
    };
    let mut world = World::new([reply(), say("Done.")]);
    assert_eq!(world.run().await, completed("Done."));
    assert_eq!(reasons(&world), vec![reason.map(str::to_owned); 2]);

    let mut world = chat([reply(), say("Done.")]);
    for _ in 0..2 {
        assert_eq!(request(&mut world).await.reasoning, reason.unwrap_or_default());
        world.run_state.answer_approval(ApprovalAnswer::Approved).unwrap();
    }
    assert_eq!(world.run().await, completed("Done."));
    assert_eq!(reasons(&world), vec![reason.map(str::to_owned); 2]);
}

#[tokio::test(start_paused = true)]
async fn a_long_reason_is_shortened() {
    let reply = completion(&"why ".repeat(10_000), vec![tool_call("", "echo", json!({}))], FinishReason::ToolCalls);
    let mut world = World::new([Turn::Answer(reply), say("Done.")]);
    world.run().await;
    let kept = reasons(&world).remove(0).unwrap();
    assert!(kept.starts_with("why why") && kept.contains("bytes left out") && kept.len() <= 2_000, "{}", kept.len());
}

/// The reasons in the events of calls.
fn reasons(world: &World) -> Vec<Option<String>> {
    let events = world.journal.events.lock().unwrap();
    let reason = |event: &AgentEvent| match event {
        AgentEvent::ToolUse { reasoning, .. } => Some(reasoning.clone()),
        _ => None,
    };
    events.iter().filter_map(reason).collect()
}

#[rstest]
#[tokio::test(start_paused = true)]
async fn an_approved_call_runs_as_it_was_shown_and_the_work_continues(#[values(false, true)] restarts: bool) {
    let mut world = chat([
        calls(vec![
            tool_call("a", "echo", json!({"message": "one", "headers": {"cookie": "hunter2", "x-note": "n"}})),
            tool_call("b", "echo", json!({"message": "two"})),
        ]),
        say("Done."),
    ]);
    let first = request(&mut world).await;
    assert_eq!((first.call_id.as_str(), first.tool.as_str(), first.can_be_remembered), ("a", "echo", true));
    assert_eq!(first.arguments, json!({"message": "one", "headers": {"cookie": "hunter2", "x-note": "n"}}));
    assert_eq!(first.redacted_input, json!({"message": "one", "headers": {"cookie": "[redacted]", "x-note": "n"}}));
    assert_eq!(world.run_state.approval_request(), Some(&first));
    if restarts {
        restart(&mut world);
    }
    world.run_state.answer_approval(ApprovalAnswer::Approved).unwrap();
    // The second call asks separately.
    assert_eq!(request(&mut world).await.call_id.as_str(), "b");
    if restarts {
        restart(&mut world);
    }
    world.run_state.answer_approval(ApprovalAnswer::Approved).unwrap();
    assert_eq!(world.run().await, completed("Done."));
    let expected = [
        "user: Do the task.",
        r#"assistant:  ["echo", "echo"]"#,
        "tool echo: one",
        "tool echo: two",
        "assistant: Done.",
    ];
    assert_eq!(world.messages(), expected);
    assert_eq!(world.run_state.partial().tool_calls, 2);
    assert!(!world.events().concat().contains("hunter2"));
}

#[rstest]
#[case::denied(ApprovalAnswer::Denied { reason: None }, "error (not_authorized): the user denied this call; do not repeat it")]
#[case::denied_with_a_reason(ApprovalAnswer::Denied { reason: Some("not on Fridays".into()) }, "error (not_authorized): the user denied this call: not on Fridays")]
#[case::expired(
    ApprovalAnswer::Expired,
    "error (not_authorized): this call was not approved in time; continue without it"
)]
#[tokio::test(start_paused = true)]
async fn a_call_that_is_not_approved_is_a_result_for_the_model(#[case] answer: ApprovalAnswer, #[case] result: &str) {
    let mut world = chat([call("echo", json!({"message": "one"})), say("Then not.")]);
    request(&mut world).await;
    world.run_state.answer_approval(answer).unwrap();
    assert_eq!(world.run().await, completed("Then not."));
    assert_eq!(world.messages()[2], format!("tool echo: {result}"));
    let events = world.events();
    assert!(events.contains(&r#"use echo {"message":"one"}"#.to_owned()), "{events:?}");
    assert!(events.contains(&format!("result echo false: {result}")), "{events:?}");
}

#[tokio::test(start_paused = true)]
async fn without_an_answer_the_loop_asks_the_same_again() {
    let mut world = chat([call("echo", json!({"message": "one"}))]);
    assert_eq!(world.run_state.answer_approval(ApprovalAnswer::Approved), Err(NothingToApprove));
    let first = request(&mut world).await;
    assert_eq!(request(&mut world).await, first);
    assert_eq!(world.asked().len(), 1, "the model is not asked meanwhile");
    world.run_state.answer_approval(ApprovalAnswer::Expired).unwrap();
    assert_eq!(world.run_state.answer_approval(ApprovalAnswer::Approved), Err(NothingToApprove));
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_was_disabled_meanwhile_does_not_run() {
    for by_operator in [false, true] {
        let mut world = chat([call("echo", json!({"message": "one"})), say("Then not.")]);
        request(&mut world).await;
        world.run_state.answer_approval(ApprovalAnswer::Approved).unwrap();
        if by_operator {
            world.context.policy.disable("echo");
        } else {
            world.context.policy.permissions.insert("echo".to_owned(), PermissionState::Disabled);
        }
        assert_eq!(world.run().await, completed("Then not."));
        assert!(world.messages()[2].starts_with("tool echo: error ("), "{:?}", world.messages());
    }
}

#[tokio::test(start_paused = true)]
async fn calls_before_the_request_have_run_and_those_after_it_wait() {
    let reply = vec![
        tool_call("a", "slow", json!({"seconds": 1})),
        tool_call("b", "echo", json!({"message": "asks"})),
        tool_call("c", "slow", json!({"seconds": 2})),
    ];
    let mut world = chat([calls(reply), say("Done.")]);
    world.context.policy.permissions.insert("slow".to_owned(), PermissionState::AlwaysAllow);
    assert_eq!(request(&mut world).await.call_id.as_str(), "b");
    assert_eq!(world.messages().last().unwrap(), "tool slow: after 1 s");
    // A prompt that arrives meanwhile is read after the results.
    world.signals().send(Steer, "hurry");
    world.run_state.answer_approval(ApprovalAnswer::Approved).unwrap();
    assert_eq!(world.run().await, completed("Done."));
    assert_eq!(world.messages()[3..], ["tool echo: asks", "tool slow: after 2 s", "user: hurry", "assistant: Done."]);
}

#[tokio::test(start_paused = true)]
async fn a_tool_that_the_user_always_allows_runs_without_asking() {
    let script = || [call("echo", json!({"message": "one"})), say("Done.")];
    let mut world = chat(script());
    world.context.approval = ApprovalContext::Interactive { remembered: BTreeSet::from(["echo".to_owned()]) };
    assert_eq!(world.run().await, completed("Done."));
    let mut world = chat(script());
    world.context.policy.permissions.insert("echo".to_owned(), PermissionState::AlwaysAllow);
    assert_eq!(world.run().await, completed("Done."));
}

#[tokio::test(start_paused = true)]
async fn a_message_that_came_with_the_reply_follows_the_results() {
    let Turn::Answer(mut completion) = call("echo", json!({"message": "one"})) else { unreachable!() };
    completion.notice = Some("80 % of the budget is used".to_owned());
    let mut world = chat([Turn::Answer(completion), say("Done.")]);
    request(&mut world).await;
    restart(&mut world);
    world.run_state.answer_approval(ApprovalAnswer::Approved).unwrap();
    assert_eq!(world.run().await, completed("Done."));
    assert_eq!(world.messages()[2..], ["tool echo: one", "user: 80 % of the budget is used", "assistant: Done."]);
}
