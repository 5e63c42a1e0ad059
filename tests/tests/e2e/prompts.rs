//! A prompt to a job in a real container.

use protocol::JobState;
use serde_json::json;

use crate::{
    jobs::{WAIT_FOR_RELEASE, command_job, is_tool_use, release},
    stack::Stack,
};

#[tokio::test]
async fn a_prompt_to_a_running_job_is_answered_before_the_job_ends() {
    let stack = Stack::start().await;
    let ada = stack.user("ada").await;
    let id = ada.create(command_job(WAIT_FOR_RELEASE)).await;
    ada.wait_for_event(id, "a tool call", is_tool_use).await;
    ada.prompt(id, json!({"content": "and the weather?", "mode": "queue"})).await.expect(202);
    release(&stack, id);
    let job = ada.wait_for_end(id).await;
    assert_eq!((job.state, job.attempt), (JobState::Completed, 1), "{:?}", job.reason);
    let text = job.result.as_ref().and_then(|result| result.text.as_deref());
    assert_eq!(text, Some("You said: and the weather?"));
    stack.finish().await;
}
