//! Turns: what the agent does with a message, and how a turn ends.

use protocol::{ChatContent, ErrorCode, JobReason, MessageReceipt, ThreadState, UsageLine};
use serde_json::{Value, json};
use sqlx::Executor as _;
use tests::{User, World, script_of};

use super::{answers, history, history_of, notices, roles, send, turn, until_state};

/// The errors of a thread.
pub(super) fn errors(history: &protocol::ChatHistory) -> Vec<JobReason> {
    let reason = |content: &ChatContent| match content {
        ChatContent::Error { reason, .. } => Some(*reason),
        _ => None,
    };
    history.messages.iter().filter_map(|message| reason(&message.content)).collect()
}

/// A model that does not answer a message with this word.
fn script() -> String {
    script_of(&[
        json!({"when": {"last_message": "wait forever"}, "hang": true}),
        json!({"when": {"last_message": "take your time"}, "reply": {"text": "Slow: {{last_message}}", "delay_ms": 300}}),
        json!({"reply": {"text": "You said: {{last_message}}"}}),
    ])
}

#[tokio::test]
async fn a_turn_whose_answer_cannot_be_stored_ends_with_an_error() {
    let world = World::new().await;
    let ada = world.user("ada");
    let fails =
        "CREATE TRIGGER fails BEFORE INSERT ON chat_messages WHEN NEW.role = 'assistant' BEGIN SELECT json('{'); END";
    world.database().await.execute(fails).await.unwrap();
    let history = turn(&ada, "hello").await;
    assert_eq!((errors(&history), notices(&history)), (vec![JobReason::Internal], vec![]));
    world.finish().await;
}

#[tokio::test]
async fn a_turn_with_tools_is_in_the_thread_and_in_the_usage() {
    let calls =
        json!([{"name": "echo", "arguments": {"message": "one"}}, {"name": "echo", "arguments": {"message": "two"}}]);
    let usage = json!({"input_tokens": 300, "output_tokens": 100});
    let rules = [
        json!({"when": {"tool_name": "echo"}, "reply": {"text": "It said {{tool_result}}", "usage": usage}}),
        json!({"reply": {"text": "I look.", "tool_calls": calls, "usage": usage}}),
    ];
    let world = World::builder().script(script_of(&rules)).build().await;
    let ada = world.user("ada");
    let history = turn(&ada, "look it up").await;
    let expected = ["user", "assistant", "tool_use", "tool_use", "tool_result", "tool_result", "assistant"];
    assert_eq!(roles(&history), expected);
    assert_eq!((history.thread.title.as_str(), history.thread.key.as_deref()), ("look it up", Some("main")));
    let outputs: Vec<&str> = history
        .messages
        .iter()
        .filter_map(|message| match &message.content {
            ChatContent::ToolResult { output, success: true, .. } => Some(output.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(outputs.len(), 2);
    assert!(outputs[0].contains("one") && outputs[1].contains("two"), "{outputs:?}");
    assert!(outputs.iter().all(|output| !output.contains("untrusted")), "the markers are for the model: {outputs:?}");
    for by in ["day", "model"] {
        let page: protocol::Page<UsageLine> = ada.get(&format!("/api/usage?by={by}")).await.expect(200).json();
        let [line] = &page.items[..] else { panic!("{page:?}") };
        assert_eq!((line.llm_calls, line.input_tokens, line.output_tokens), (2, 600, 200), "{by}");
        assert_eq!(line.tool_calls, (by == "day").then_some(2), "{by}");
    }
    let summary = ada.get("/api/jobs/summary").await.expect(200).body;
    assert_eq!(summary["usage_today"]["tool_calls"], 2, "{summary}");
    world.finish().await;
}

#[tokio::test]
async fn messages_to_a_busy_thread_are_answered_in_order() {
    let world = World::builder().script(script()).build().await;
    let ada = world.user("ada");
    send(&ada, "take your time").await;
    until_state(&ada, ThreadState::Processing).await;
    for message in ["two", "three"] {
        assert!(!send(&ada, message).await.waiting_for_gate);
    }
    let queued = history(&ada).await;
    assert_eq!(queued.messages.iter().map(|message| message.seq).collect::<Vec<_>>(), [Some(1), None, None]);
    let history = turn(&ada, "four").await;
    let expected = ["Slow: take your time", "You said: two", "You said: three", "You said: four"];
    assert_eq!(answers(&history), expected);
    world.finish().await;
}

#[tokio::test]
async fn a_turn_that_a_restart_ends_is_an_error_and_queued_messages_go_on() {
    let mut world = World::builder().script(script()).build().await;
    let ada = world.user("ada");
    send(&ada, "wait forever").await;
    until_state(&ada, ThreadState::Processing).await;
    send(&ada, "and then?").await;
    world.restart().await;
    let ada = world.user("ada");
    let history =
        tests::poll("the answer", async || Some(history(&ada).await).filter(|history| !answers(history).is_empty()))
            .await;
    assert_eq!(errors(&history), [JobReason::OrchestratorRestart]);
    assert_eq!(answers(&history), ["You said: and then?"]);
    until_state(&ada, ThreadState::Idle).await;
    world.finish().await;
}

#[tokio::test]
async fn a_turn_is_stopped_and_the_next_message_goes_on() {
    let world = World::builder().script(script()).build().await;
    let ada = world.user("ada");
    send(&ada, "wait forever").await;
    until_state(&ada, ThreadState::Processing).await;
    send(&ada, "next").await;
    ada.post("/api/chat/threads/main/stop", &json!({})).await.expect(202);
    let history = turn(&ada, "last").await;
    assert_eq!((notices(&history), errors(&history)), (vec!["Stopped."], vec![]));
    assert_eq!(answers(&history), ["You said: next", "You said: last"]);
    ada.post("/api/chat/threads/main/stop", &json!({})).await.problem(ErrorCode::Conflict);
    // The command does the same.
    send(&ada, "wait forever").await;
    until_state(&ada, ThreadState::Processing).await;
    send(&ada, "/stop").await;
    assert_eq!(notices(&until_state(&ada, ThreadState::Idle).await), ["Stopped.", "Stopped."]);
    world.finish().await;
}

#[tokio::test]
async fn a_turn_has_a_limited_number_of_model_calls() {
    let calls = json!([{"name": "echo", "arguments": {"message": "{{turn}}"}}]);
    let again = json!({"when": {"prompt": "again and again"}, "reply": {"tool_calls": calls}});
    let world = World::builder().script(script_of(&[again])).build().await;
    let ada = world.user("ada");
    let history = turn(&ada, "again and again").await;
    assert_eq!(errors(&history), [JobReason::IterationLimit]);
    let used = roles(&history).iter().filter(|role| **role == "tool_use").count();
    assert_eq!(used, 49);
    world.finish().await;
}

#[tokio::test]
async fn the_budget_of_the_day_ends_turns() {
    let usage = json!({"input_tokens": 3_000, "output_tokens": 100});
    let rules = [json!({"reply": {"text": "ok", "usage": usage}})];
    let world = World::builder().script(script_of(&rules)).set("GANTRY_USER_DAY_MAX_TOKENS", 10_000).build().await;
    let (ada, bob) = (world.user("ada"), world.user("bob"));
    let mut history = turn(&ada, "one").await;
    for _ in 0..4 {
        history = turn(&ada, "more").await;
    }
    assert!((1..=3).contains(&answers(&history).len()), "{history:#?}");
    assert_eq!(errors(&history).last(), Some(&JobReason::TokenBudget));
    assert_eq!(answers(&turn(&bob, "one").await), ["ok"], "a day is a user's own");
    world.finish().await;
}

/// A new thread of the user.
async fn new_thread(user: &User) -> String {
    let receipt: MessageReceipt = user.post("/api/chat/send", &json!({"content": "/new"})).await.expect(202).json();
    receipt.thread_id.to_string()
}

#[tokio::test]
async fn ten_threads_work_at_once() {
    let world = World::builder().script(script()).build().await;
    let ada = world.user("ada");
    let mut threads = vec![];
    for _ in 0..10 {
        threads.push(new_thread(&ada).await);
    }
    for thread in &threads {
        ada.post("/api/chat/send", &json!({"thread_id": thread, "content": "wait forever"})).await.expect(202);
    }
    for thread in &threads {
        tests::until("the thread to work", async || {
            history_of(&ada, thread).await.thread.state == ThreadState::Processing
        })
        .await;
    }
    for thread in &threads {
        let state = async || history_of(&ada, thread).await.thread.state;
        assert_eq!(state().await, ThreadState::Processing);
        ada.post(&format!("/api/chat/threads/{thread}/stop"), &json!({})).await.expect(202);
        tests::until("the thread to stop", async || state().await == ThreadState::Idle).await;
    }
    world.finish().await;
}

#[tokio::test]
async fn of_several_calls_that_a_stop_leaves_the_model_reads_that_none_ran() {
    let calls: Vec<Value> =
        ["one", "two"].map(|text| json!({"name": "message", "arguments": {"content": text}})).into();
    let rules = [
        json!({"when": {"last_message": "tell me"}, "reply": {"tool_calls": calls}}),
        json!({"when": {"last_message": "which?"}, "reply": {"text": "{{turn}}"}}),
    ];
    let world = World::builder().script(script_of(&rules)).build().await;
    let ada = world.user("ada");
    send(&ada, "tell me").await;
    until_state(&ada, ThreadState::AwaitingApproval).await;
    ada.post("/api/chat/threads/main/stop", &json!({})).await.expect(202);
    let stopped = until_state(&ada, ThreadState::Idle).await;
    assert_eq!(roles(&stopped), ["user", "tool_use", "tool_use", "tool_result", "tool_result", "system"]);
    let history = turn(&ada, "which?").await;
    assert_eq!(answers(&history), ["2"], "{history:#?}");
    world.finish().await;
}
