//! The worker's own process in a real job container: commands cannot inspect or impersonate it, and a hostile workspace
//! cannot harm it through a search.

use protocol::{EventData, JobState};
use serde_json::{Value, json};

use crate::{
    jobs::{command_job, tool_result},
    stack::Stack,
};

const ATTACK: &str = include_str!("attack_worker.py");

#[tokio::test]
async fn no_command_can_read_the_workers_memory_or_open_files() {
    let stack = Stack::start().await;
    let ada = stack.user("ada").await;
    let mut body = command_job("python3 attack.py");
    body["files"] = json!([{"path": "attack.py", "content": ATTACK}]);
    let id = ada.create(body).await;
    let (_, success, output) = tool_result(&ada, id).await;
    assert!(success, "{output}");
    let line = output.lines().find(|line| line.starts_with('{')).unwrap_or_else(|| panic!("no report in: {output}"));
    let found: Value = serde_json::from_str(line).unwrap();
    assert_eq!((&found["workers"], &found["init"]), (&json!(1), &json!("gantry-worker")), "the worker is process 1");
    let refused = [
        ["read memory", "change memory", "memory by its thread", "environment", "map", "auxiliary vector"],
        ["descriptors", "standard output", "standard error", "program", "working directory", "memory killer"],
    ];
    for name in refused.as_flattened().iter().chain(&["read the program", "init's standard output"]) {
        assert!(["EACCES", "EPERM"].contains(&found[*name].as_str().unwrap()), "{name}: {}", found[*name]);
    }
    assert_eq!(found["an ordinary process"], "done");
    assert_eq!((&found["the program runs"], &found["own memory killer"]), (&json!(true), &json!("1000")));
    stack.finish().await;
}

/// A FIFO, a sparse file of 1 GiB, a million patterns, and a tree as deep as a workspace may be.
const HOSTILE: &str = r"mkdir sparse many deep && mkfifo .gitignore && truncate -s 1G sparse/.gitignore && \
    seq -f '*%.0f?[ab]*' 1000000 > many/.ignore && touch top.txt sparse/a.txt many/b.txt && \
    python3 -c 'import os; os.chdir(`deep`); [(os.mkdir(`d`), os.chdir(`d`)) for _ in range(120)]' && echo laid";

const SEARCHER: &str = r"
model: e2e-1
rules:
  - when: { turn: 1 }
    reply: { tool_calls: [{ name: shell, arguments: { command: '{{last_message}}' } }] }
  - when: { turn: 2 }
    reply:
      tool_calls:
        - { name: glob, arguments: { pattern: '*.txt' } }
        - { name: grep, arguments: { pattern: laid } }
        - { name: shell, arguments: { command: 'sleep 300', timeout_seconds: 1 } }
        - { name: shell, arguments: { command: 'grep VmHWM /proc/1/status' } }
  - reply: { text: Found. }
";

/// The maximum resident memory of the worker: a small part of what any of these files would take.
const MAX_WORKER_KIB: u64 = 20 * 1024;

#[tokio::test]
async fn a_hostile_workspace_affects_neither_the_worker_nor_other_tools() {
    let stack = Stack::builder().script(SEARCHER).start().await;
    let ada = stack.user("ada").await;
    let limits = json!({"memory_mb": 512, "disk_mb": 1024, "pids": 64, "cpus": 1.0});
    let id = ada.create(json!({"prompt": HOSTILE.replace('`', "\""), "limits": limits})).await;
    let job = ada.wait_for_end(id).await;
    let events = ada.events(id).await;
    assert_eq!((job.state, job.reason), (JobState::Completed, None), "{events:#?}");
    let result = |name: &str| -> Vec<(bool, String)> {
        let of = |data: &EventData| match data {
            EventData::ToolResult { tool, success, output, .. } if tool == name => Some((*success, output.clone())),
            _ => None,
        };
        events.iter().filter_map(|event| of(&event.data)).collect()
    };
    let (glob, grep, shell) = (result("glob"), result("grep"), result("shell"));
    assert!(shell[0].1.starts_with("laid"), "{}", shell[0].1);
    assert!(glob[0].0 && glob[0].1.starts_with("many/b.txt\nsparse/a.txt\ntop.txt\n[…"), "{}", glob[0].1);
    assert!(grep[0].0 && grep[0].1.starts_with("no line matches"), "{}", grep[0].1);
    let timed_out = shell.iter().any(|(success, output)| !success && output.contains("timed out after 1 s"));
    assert!(timed_out, "{shell:?}");
    let peak = shell.iter().find_map(|(_, output)| output.split_once("VmHWM:")).expect("the worker's peak").1;
    let peak: u64 = peak.split_whitespace().next().unwrap().parse().unwrap();
    assert!(peak < MAX_WORKER_KIB, "{peak} KiB");
    stack.finish().await;
}
