//! A frozen worker is replaced by one that resumes from the recorded transcript, on the real engine.

use protocol::{EventData, JobState};
use serde_json::json;
use tests::install::{engine::must, stack::Stack};

/// One effect, then a wait; the next turn reports.
const SCRIPT: &str = r"
model: e2e-1
rules:
  - when: { turn: 1 }
    reply: { tool_calls: [ { name: shell, arguments: { command: 'echo effect >> effects; sleep 600' } } ] }
  - when: { turn: 2 }
    reply: { tool_calls: [ { name: shell, arguments: { command: 'wc -l < effects' } } ] }
  - reply: { text: 'effects: {{tool_result}}' }
";

#[tokio::test]
async fn a_frozen_worker_is_replaced_without_repeating_its_effects() {
    let stack = Stack::builder().script(SCRIPT).set("GANTRY_LEASE_SECONDS", "6").start().await;
    let ada = stack.user("ada").await;
    let id = ada.create(json!({"prompt": "work"})).await;
    ada.wait_for_event(id, "the tool call", |event| matches!(event.data, EventData::ToolUse { .. })).await;
    let effects = stack.workspace(id).join("effects");
    tests::within("the effect", async {
        while !effects.exists() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let name = ada.job(id).await.container.expect("a container").name;
    must(&["pause", &name]).await;
    let job = ada.wait_for_end(id).await;
    assert_eq!((job.state, job.attempt, job.repair_attempts), (JobState::Completed, 2, 1), "{job:#?}");
    let text = job.result.and_then(|result| result.text).expect("a result");
    assert!(text.contains("effects: 1"), "the call was repeated: {text}");
    let states: Vec<_> = ada
        .events(id)
        .await
        .into_iter()
        .filter_map(|event| match event.data {
            EventData::State { to, .. } => Some(to),
            _ => None,
        })
        .collect();
    let working = JobState::InProgress;
    assert_eq!(states, [JobState::Pending, working, JobState::Stuck, working, JobState::Completed]);
    stack.finish().await;
}
