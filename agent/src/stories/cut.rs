//! Answers that the output limit of the model cuts.

use protocol::{CUT_NOTE, FinishReason, ToolChoice};

use super::world::{Turn, World, completion, say, spoken, tool_call};
use crate::{Delta, DeltaSink, LimitKind, LoopOutcome, ModelError, Run, Transcript};

fn cut(text: &str) -> Turn {
    Turn::Answer(completion(text, Vec::new(), FinishReason::Length))
}

fn completed(text: &str, cut: bool) -> LoopOutcome {
    LoopOutcome::Completed { text: text.to_owned(), cut }
}

fn noted(text: &str) -> String {
    format!("{text}\n\n{CUT_NOTE}")
}

#[tokio::test(start_paused = true)]
async fn a_cut_answer_is_continued_and_both_parts_are_one() {
    let mut world = World::new([cut("Half of it, "), say("and the rest.")]);
    assert_eq!(world.run().await, completed("Half of it, and the rest.", false));
    let asked = world.asked();
    assert_eq!((asked.len(), asked[1].tool_choice, world.run_state.iterations()), (2, ToolChoice::None, 2));
    let [.., answer, request] = asked[1].messages.as_slice() else { panic!("{:?}", asked[1].messages) };
    assert_eq!(spoken(answer), "assistant: Half of it,");
    assert!(spoken(request).starts_with("user: Your answer was cut"), "{request:?}");
    assert!(asked[1].messages.starts_with(&asked[0].messages), "the conversation keeps its beginning");
    let said: Vec<String> = world.events().into_iter().filter(|line| !line.starts_with("user:")).collect();
    assert_eq!(said, ["assistant: half of it, and the rest."]);
    assert!(world.transcript.ended() && world.run_state.partial().usage.output_tokens == 10);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_cut_twice_ends_with_a_line_about_it() {
    let mut world = World::new([cut("One, "), cut("two, "), say("never asked")]);
    assert_eq!(world.run().await, completed(&noted("One, two,"), true));
    assert_eq!(world.asked().len(), 2);
    assert!(world.run_state.is_cut && world.run_state.partial().text == noted("One, two,"));
    // The same outcome when it is asked for again, and of a run that begins with what was recorded.
    assert_eq!(world.run().await, completed(&noted("One, two,"), true));
    let recorded = Transcript::new("system", "Do it.").messages().to_vec();
    let text = noted("One, two,");
    let answer = protocol::Message::Assistant { content: text.clone(), tool_calls: Vec::new(), native: None };
    world.transcript = Transcript::resume([recorded, vec![answer]].concat());
    world.run_state = Run::resume(&world.transcript);
    assert_eq!(world.run().await, completed(&text, true));
}

/// A refusal, or nothing: there is no other answer than the part.
#[tokio::test(start_paused = true)]
async fn an_answer_that_cannot_be_continued_is_what_there_is() {
    let too_long = || Turn::Error(ModelError::ContextLength { message: "too long".to_owned() });
    for second in [too_long(), Turn::Error(ModelError::failed("no")), say(""), cut("<think>and so")] {
        let mut world = World::new([cut("Half of it"), second]);
        assert_eq!(world.run().await, completed(&noted("Half of it"), true));
        assert!(world.transcript.ended(), "{:?}", world.messages());
    }
}

#[tokio::test(start_paused = true)]
async fn calls_of_a_continuation_are_not_run() {
    let second = completion(" the rest.", vec![tool_call("", "echo", serde_json::json!({}))], FinishReason::ToolCalls);
    let mut world = World::new([cut("Half,"), Turn::Answer(second)]);
    assert_eq!(world.run().await, completed("Half, the rest.", false));
    assert_eq!(world.run_state.partial().tool_calls, 0);
}

/// It is no part of the answer, and the model is told so.
#[tokio::test(start_paused = true)]
async fn a_continuation_that_ends_with_a_call_as_text_is_no_end() {
    let call = "<tool_call>{\"name\": \"echo\", \"arguments\": {}}</tool_call>";
    for before in ["", "the rest. "] {
        let second = || say(&format!("{before}{call}"));
        let mut world = World::new([cut("Half, "), second(), say("Half, the rest.")]);
        assert_eq!(world.run().await, completed("Half, the rest.", false));
        let mut world = World::new([cut("Half, "), second(), cut("Half, "), second(), say("never asked")]);
        assert!(matches!(world.run().await, LoopOutcome::Failed { .. }), "{:?}", world.messages());
    }
}

#[tokio::test(start_paused = true)]
async fn limits_count_the_second_call() {
    let mut world = World::new([cut("Half of it"), say("never asked")]);
    world.settings.max_iterations = 1;
    let text = noted("Half of it");
    let limit = LoopOutcome::Limit { which: LimitKind::Iterations, message: "1".to_owned(), text: text.clone() };
    assert_eq!((world.run().await, world.run_state.is_cut), (limit, true));

    let spent = ModelError::Limit { which: LimitKind::Tokens, message: "spent".to_owned() };
    let mut world = World::new([cut("Half of it"), Turn::Error(spent)]);
    assert!(matches!(world.run().await, LoopOutcome::Limit { which: LimitKind::Tokens, .. }));
    assert_eq!(world.run_state.partial().text, "Half of it");
    assert_eq!(world.events().last().unwrap(), "assistant: half of it");
}

#[tokio::test(start_paused = true)]
async fn the_deltas_of_both_calls_are_those_of_one_answer() {
    let limited = ModelError::RateLimited {
        origin: protocol::RateLimitOrigin::Provider,
        retry_after: Some(std::time::Duration::from_secs(1)),
        message: "later".to_owned(),
    };
    let mut world = World::new([cut("Half, "), Turn::Error(limited), say("the rest.")]);
    let (sink, mut reader) = DeltaSink::channel(16);
    world.deltas = sink;
    assert_eq!(world.run().await, completed("Half, the rest.", false));
    world.deltas = DeltaSink::discard();
    let mut deltas = Vec::new();
    while let Some(delta) = reader.recv().await {
        deltas.push(delta);
    }
    let start = |index: usize| Delta::Start { call_id: world.asked()[index].call_id.clone() };
    let text = |text: &str| Delta::Text(text.to_owned());
    // The second call is repeated, which voids what came before.
    assert_eq!(deltas, [start(0), text("Half, "), start(2), text("Half, "), text("the rest.")]);
}
