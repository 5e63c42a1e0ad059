//! The agent's searches in a workspace with hostile ignore files.

use attack::FILES;
use protocol::EventData;
use serde_json::json;
use tests::install::stack::RUN_SCRIPT;

use crate::scenario::{ATTACK_SECONDS, Attackers, ExpectedEnd, Scenario, install};

/// The model creates the directories and then searches all of them at once.
const SEARCHES: &str = r"rules:
  - when: { prompt: '^search$', turn: 1 }
    reply: { tool_calls: [{ name: shell, arguments: { command: 'python3 files.py ignore-files' } }] }
  - when: { prompt: '^search$', turn: 2 }
    reply: { tool_calls: [
      { name: glob, arguments: { pattern: '**/*.txt', path: fifo } },
      { name: grep, arguments: { pattern: needle, path: fifo } },
      { name: glob, arguments: { pattern: '**/*.txt', path: sparse } },
      { name: grep, arguments: { pattern: needle, path: sparse } },
      { name: glob, arguments: { pattern: '**/*.txt', path: patterns } },
      { name: grep, arguments: { pattern: needle, path: patterns } }] }
  - when: { prompt: '^search$', turn: 3 }
    reply: { tool_calls: [{ name: shell, arguments: { command: 'echo the job continues' } }] }
  - when: { prompt: '^search$' }
    reply: { text: I searched. }
";

#[tokio::test(flavor = "multi_thread")]
async fn hostile_ignore_files_affect_only_their_own_search() {
    let script = RUN_SCRIPT.replacen("rules:\n", &SEARCHES.replace("'^search$'", "search"), 1);
    let scenario = Scenario::of(install().script(&script), None).await;
    let watch = scenario.watch("searches over hostile ignore files");
    let body = json!({"prompt": "search", "files": [{"path": FILES.0, "content": FILES.1}]});
    let job = scenario.mallory.create(body).await;
    let verdict = scenario.measure(watch, ATTACK_SECONDS, Attackers::jobs(&[(job, ExpectedEnd::Completed)])).await;
    verdict.check();
    let events = scenario.mallory.events(job).await;
    let results = events.iter().filter(|event| matches!(event.data, EventData::ToolResult { .. })).count();
    assert_eq!(results, 8, "each call has its result: {events:#?}");
    let searched = |event: &&protocol::Event| matches!(&event.data, EventData::ToolResult { output, .. } if output.contains("needle.txt"));
    let found = events.iter().filter(searched).count();
    assert!(found >= 2, "at least the search that a pipe would stop finds the file: {events:#?}");
    scenario.stack.finish().await;
}
