//! Child jobs in containers: a parent that waits for its children with a single slot, and children that end with it.

use protocol::{EventData, Job, JobId, JobReason, JobState, JobSummary};
use serde_json::json;
use tests::{User, poll};

use crate::{
    jobs::is_tool_use,
    stack::{REMOVAL_TIMEOUT, Stack},
};

/// `chain` makes one child after the other, and the second one's task has the first one's result. `fork` makes two at
/// once, `guard` two that do not end.
const SCRIPT: &str = r#"
model: e2e-1
rules:
  - when: { prompt: { regex: '^chain' }, turn: 1 }
    reply: { tool_calls: [{ name: create_job, arguments: { prompt: 'run: echo part one', wait: true } }] }
  - when: { prompt: { regex: '^chain' }, turn: 2, tool_result: { regex: '"result":"(part one)' } }
    reply: { tool_calls: [{ name: create_job, arguments: { prompt: 'run: echo {{match.1}} and part two', wait: true } }] }
  - when: { prompt: { regex: '^chain' } }
    reply: { text: '{{tool_result}}' }
  - when: { prompt: { regex: '^fork' }, turn: 1 }
    reply:
      tool_calls:
        - { name: create_job, arguments: { prompt: 'run: echo part one', wait: true } }
        - { name: create_job, arguments: { prompt: 'run: echo part two', wait: true } }
  - when: { prompt: { regex: '^fork' } }
    reply: { text: joined }
  - when: { prompt: { regex: '^guard' }, turn: 1 }
    reply:
      tool_calls:
        - { name: create_job, arguments: { prompt: 'run: sleep 600', wait: true } }
        - { name: create_job, arguments: { prompt: 'run: sleep 601', wait: true } }
  - when: { prompt: { regex: '(?s)^run: (.*)$' }, turn: 1 }
    reply: { text: I run it., tool_calls: [{ name: shell, arguments: { command: '{{match.1}}' } }] }
  - reply: { text: '{{tool_result}}' }
"#;

async fn create(user: &User, prompt: &str) -> JobId {
    user.create(json!({"prompt": prompt, "limits": {"max_children": 2, "memory_mb": 256, "pids": 64}})).await
}

async fn children(user: &User, parent: JobId) -> Vec<JobSummary> {
    let mut jobs = user.jobs().await;
    jobs.retain(|job| job.parent_id == Some(parent));
    jobs
}

/// The results of a job's calls.
async fn results(user: &User, job: JobId) -> Vec<String> {
    let output = |data| match data {
        EventData::ToolResult { output, success: true, .. } => Some(output),
        _ => None,
    };
    user.events(job).await.into_iter().filter_map(|event| output(event.data)).collect()
}

#[tokio::test]
async fn a_parent_with_a_single_slot_gets_the_results_of_its_children() {
    let stack = Stack::builder().script(SCRIPT).set("GANTRY_MAX_PARALLEL_JOBS", "1").start().await;
    let ada = stack.user("ada").await;
    let chain = create(&ada, "chain").await;
    let ended: Job = ada.wait_for_end(chain).await;
    let text = ended.result.as_ref().and_then(|result| result.text.as_deref()).unwrap_or_default();
    assert!(ended.state == JobState::Completed && text.contains("part one and part two"), "{ended:#?}");
    let fork = create(&ada, "fork").await;
    assert_eq!(ada.wait_for_end(fork).await.state, JobState::Completed);
    let outputs = results(&ada, fork).await;
    for (output, part) in outputs.iter().zip(["part one", "part two"]) {
        assert!(output.contains(part) && output.contains("completed"), "{outputs:#?}");
    }
    assert_eq!(outputs.len(), 2, "results are in the order of the calls");
    for parent in [chain, fork] {
        let made = children(&ada, parent).await;
        assert_eq!(made.iter().map(|job| (job.state, job.attempt)).collect::<Vec<_>>(), [(JobState::Completed, 1); 2]);
        assert!(made.iter().all(|job| job.container.is_some() && job.limits.memory_mb == 256), "{made:#?}");
    }
    stack.finish().await;
}

#[tokio::test]
async fn cancelling_a_parent_removes_the_containers_of_its_children() {
    let stack = Stack::builder().script(SCRIPT).set("GANTRY_MAX_PARALLEL_JOBS", "4").start().await;
    let ada = stack.user("ada").await;
    let parent = create(&ada, "guard").await;
    let made = poll("two children", async || Some(children(&ada, parent).await).filter(|made| made.len() == 2)).await;
    for child in &made {
        ada.wait_for_event(child.id, "a command", is_tool_use).await;
    }
    ada.cancel(parent).await.expect(202);
    assert_eq!(ada.wait_for_end(parent).await.reason, Some(JobReason::CancelledByUser));
    for child in made {
        let ended = ada.wait_for_end(child.id).await;
        assert_eq!((ended.state, ended.reason), (JobState::Cancelled, Some(JobReason::CancelledByParent)));
        stack.wait_for_removal(child.id, REMOVAL_TIMEOUT).await;
    }
    stack.finish().await;
}
