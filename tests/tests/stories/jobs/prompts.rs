//! Follow-up prompts: delivered in order, refused when it is too late, never lost.

use protocol::{ErrorCode, EventData, JobPrompt, JobState, MessageRole, PromptId, PromptMode};
use serde_json::json;
use tests::{User, World, script_of};

/// The user messages that were sent to the model, in order.
async fn user_messages(user: &User, id: protocol::JobId) -> Vec<String> {
    let messages = user.events(id).await.into_iter().filter_map(|event| match event.data {
        EventData::Message { role: MessageRole::User, content } => Some(content),
        _ => None,
    });
    messages.collect()
}

/// A script whose first tool call waits until the test creates the file `go`.
fn wait_for_go_script() -> String {
    let wait = "until [ -e go ]; do sleep 0.02; done";
    script_of(&[
        json!({"when": {"turn": 1}, "reply": {"tool_calls": [{"name": "shell", "arguments": {"command": wait}}]}}),
        json!({"when": {"last_message": "turn left"}, "reply": {"tool_calls": [{"name": "echo", "arguments": {"message": "left"}}]}}),
        json!({"when": {"last_message": "and then"}, "reply": {"text": "did that too"}}),
        json!({"when": {"turn": {"from": 2}}, "reply": {"text": "first part done"}}),
    ])
}

#[tokio::test]
async fn steer_prompts_precede_the_next_model_call_and_queued_prompts_the_end() {
    let world = World::builder().processes().script(wait_for_go_script()).build().await;
    let ada = world.user("ada");
    let id = ada.create_job("go").await;
    ada.wait_for_event(id, "the tool call", |event| matches!(event.data, EventData::ToolUse { .. })).await;
    ada.prompt(id, json!({"content": "and then rest", "mode": "queue"})).await.expect(202);
    ada.prompt(id, json!({"content": "turn left"})).await.expect(202);
    // The worker receives both before the tool call returns: polling for the next prompt acknowledges the last one.
    world.prompts_taken(id).await;
    std::fs::write(world.config().workspace_dir.join(id.to_string()).join("go"), "").unwrap();
    let job = ada.wait_for(id, JobState::Completed).await;
    assert_eq!(job.result.and_then(|result| result.text).as_deref(), Some("did that too"));
    assert_eq!(user_messages(&ada, id).await, ["go", "turn left", "and then rest"]);
    let listed = ada.get(&format!("/api/jobs/{id}/prompts?limit=1")).await.expect(200).body;
    let next = format!("/api/jobs/{id}/prompts?limit=1&cursor={}", listed["next_cursor"].as_str().unwrap());
    let earlier = ada.get(&next).await.expect(200).body;
    let shown = [&listed, &earlier].map(|page| {
        let prompt: JobPrompt = serde_json::from_value(page["items"][0].clone()).unwrap();
        (prompt.content, prompt.mode, prompt.read_at.is_some())
    });
    let expected = [("turn left", PromptMode::Steer), ("and then rest", PromptMode::Queue)];
    assert_eq!(shown, expected.map(|(content, mode)| (content.to_owned(), mode, true)));
    assert_eq!(earlier["next_cursor"], json!(null));
    world.user("ben").get(&next).await.problem(ErrorCode::NotFound);
    let messages: Vec<String> = ada
        .events(id)
        .await
        .into_iter()
        .filter_map(|event| match event.data {
            EventData::Message { role, content } if role != MessageRole::System => Some(content),
            EventData::ToolUse { tool, .. } => Some(tool),
            _ => None,
        })
        .collect();
    assert_eq!(messages, ["go", "shell", "turn left", "echo", "first part done", "and then rest", "did that too"]);
    world.finish().await;
}

#[tokio::test]
async fn prompts_to_a_pending_job_are_delivered_when_it_starts() {
    let world = World::builder().set("GANTRY_MAX_PARALLEL_JOBS", 1).build().await;
    let ada = world.user("ada");
    let first = ada.create_job("first").await;
    let worker = world.manual_worker(first).await;
    let waiting = ada.create_job("second").await;
    ada.prompt(waiting, json!({"content": "one"})).await.expect(202);
    ada.prompt(waiting, json!({"content": "two", "mode": "queue", "done": true})).await.expect(202);
    ada.prompt(waiting, json!({"content": "three"})).await.problem(ErrorCode::PromptsClosed);
    worker.finish("done").await;

    let worker = world.manual_worker(waiting).await;
    let one = worker.prompt(PromptId::nil(), 0).await.unwrap();
    assert_eq!((one.content.as_str(), one.mode, one.done), ("one", PromptMode::Steer, false));
    assert_eq!(worker.prompt(PromptId::nil(), 0).await.as_ref(), Some(&one), "offered until acknowledged");
    let two = worker.prompt(one.prompt_id, 0).await.unwrap();
    assert_eq!((two.content.as_str(), two.mode, two.done), ("two", PromptMode::Queue, true));
    assert_eq!(worker.prompt(two.prompt_id, 0).await, None);
    worker.finish("done").await;
    ada.wait_for(waiting, JobState::Completed).await;
    ada.prompt(waiting, json!({"content": "late"})).await.problem(ErrorCode::JobFinished);
    world.finish().await;
}

#[tokio::test]
async fn a_prompt_during_completion_is_delivered_or_refused() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = ada.create_job("work").await;
    let worker = world.manual_worker(id).await;
    ada.prompt(id, json!({"content": "wait, one more"})).await.expect(202);
    let report = json!({"outcome": "completed", "text": "done"});
    worker.report(report.clone()).await.problem(ErrorCode::PromptsWaiting);
    assert_eq!(ada.job(id).await.state, JobState::InProgress);
    let prompt = worker.prompt(PromptId::nil(), 0).await.unwrap();
    assert_eq!(prompt.content, "wait, one more");
    worker.report(report.clone()).await.problem(ErrorCode::PromptsWaiting);
    assert_eq!(
        worker.prompt(prompt.prompt_id, 0).await,
        None,
        "polling for the next prompt must acknowledge the previous one"
    );
    worker.report(report).await.expect(200);
    ada.prompt(id, json!({"content": "too late"})).await.problem(ErrorCode::JobFinished);
    worker.exit(0);
    world.finish().await;
}

#[tokio::test]
async fn waiting_prompts_do_not_delay_a_failure_report() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = ada.create_job("work").await;
    let worker = world.manual_worker(id).await;
    ada.prompt(id, json!({"content": "more"})).await.expect(202);
    worker.report(json!({"outcome": "failed", "reason": "llm_error", "text": ""})).await.expect(200);
    worker.exit(0);
    ada.wait_for(id, JobState::Failed).await;
    world.finish().await;
}

#[tokio::test]
async fn a_long_poll_is_answered_as_soon_as_there_is_a_prompt() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = ada.create_job("work").await;
    let worker = world.manual_worker(id).await;
    let (prompt, reply) = tokio::join!(worker.prompt(PromptId::nil(), 25), ada.prompt(id, json!({"content": "now"})));
    reply.expect(202);
    let prompt = prompt.unwrap();
    assert_eq!(prompt.content, "now");
    assert_eq!(worker.prompt(prompt.prompt_id, 0).await, None);
    let (none, ended) = tokio::join!(worker.prompt(prompt.prompt_id, 25), async {
        ada.cancel(id).await.expect(202);
        ada.wait_for(id, JobState::Cancelled).await
    });
    assert_eq!((none, ended.state), (None, JobState::Cancelled), "the end of the attempt ends the wait");
    world.finish().await;
}

#[tokio::test]
async fn an_invalid_prompt_is_refused() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = ada.create_job("work").await;
    for (field, body) in [
        ("content", json!({})),
        ("content", json!({"content": " "})),
        ("mode", json!({"content": "a", "mode": "shout"})),
        ("volume", json!({"content": "a", "volume": 11})),
    ] {
        let reply = ada.prompt(id, body).await.problem(ErrorCode::Invalid);
        assert_eq!(reply.fields(), [field]);
    }
    world.manual_worker(id).await.finish("done").await;
    world.finish().await;
}
