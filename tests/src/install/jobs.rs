//! Jobs that run commands on an install, and what is visible of them on the machine.

use std::fs;

use protocol::{Event, EventData, Job, JobId, JobState, JobSummary};
use serde_json::{Value, json};

use super::stack::Stack;
use crate::User;

/// Processes on this machine that run in a container of these jobs, as `pid command`.
pub fn processes_of_jobs(jobs: &[JobSummary]) -> Vec<String> {
    let ids: Vec<&str> =
        jobs.iter().filter_map(|job| job.container.as_ref().and_then(|container| container.id.as_deref())).collect();
    let directories = fs::read_dir("/proc").expect("/proc").flatten().map(|entry| entry.path());
    let contained = directories.filter(|directory| {
        let cgroups = fs::read_to_string(directory.join("cgroup")).unwrap_or_default();
        ids.iter().any(|id| cgroups.contains(id))
    });
    contained
        .map(|directory| {
            let command = fs::read_to_string(directory.join("cmdline")).unwrap_or_default().replace('\0', " ");
            format!("{} {command}", directory.display())
        })
        .collect()
}

/// A shell command that waits until the test calls [`release`].
pub const WAIT_FOR_RELEASE: &str = "until [ -e go ]; do sleep 0.05; done";

/// Lets the command of a job that waits for [`release`] continue.
pub fn release(stack: &Stack, job: JobId) {
    fs::write(stack.workspace(job).join("go"), "").expect("the workspace is there");
}

/// Creates a job that runs a command.
pub fn command_job(command: &str) -> Value {
    json!({"prompt": format!("run: {command}")})
}

/// Whether the event is a tool call of the agent.
pub fn is_tool_use(event: &Event) -> bool {
    matches!(event.data, EventData::ToolUse { .. })
}

/// Follows a job to its end and returns the output of its only tool call.
pub async fn tool_result(user: &User, job: JobId) -> (Job, bool, String) {
    let ended = user.wait_for_end(job).await;
    let results: Vec<_> = user
        .events(job)
        .await
        .into_iter()
        .filter_map(|event| match event.data {
            EventData::ToolResult { success, output, .. } => Some((success, output)),
            _ => None,
        })
        .collect();
    let [(success, output)] = results.as_slice() else { panic!("one result of {ended:#?}, but {results:#?}") };
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    (ended, *success, output.clone())
}
