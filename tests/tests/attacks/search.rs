//! The agent's own searches over a workspace that was made to hurt whoever reads its ignore files.

use attack::FILES;
use protocol::EventData;
use serde_json::json;
use tests::install::stack::OBEDIENT;

use crate::scene::{ATTACK_SECONDS, Attackers, Ends, Scene, install};

/// The model makes the folders, then searches all of them at once.
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
    reply: { tool_calls: [{ name: shell, arguments: { command: 'echo the job goes on' } }] }
  - when: { prompt: '^search$' }
    reply: { text: I searched. }
";

#[tokio::test(flavor = "multi_thread")]
async fn hostile_ignore_files_break_only_their_own_search() {
    let script = OBEDIENT.replacen("rules:\n", &SEARCHES.replace("'^search$'", "search"), 1);
    let scene = Scene::of(install().script(&script), None).await;
    let watch = scene.watch("searches over hostile ignore files");
    let body = json!({"prompt": "search", "files": [{"path": FILES.0, "content": FILES.1}]});
    let job = scene.mallory.create(body).await;
    let verdict = scene.measure(watch, ATTACK_SECONDS, Attackers::jobs(&[(job, Ends::Completed)])).await;
    verdict.check();
    let events = scene.mallory.events(job).await;
    let results = events.iter().filter(|event| matches!(event.data, EventData::ToolResult { .. })).count();
    assert_eq!(results, 8, "each call has its result: {events:#?}");
    let searched = |event: &&protocol::Event| matches!(&event.data, EventData::ToolResult { output, .. } if output.contains("needle.txt"));
    let found = events.iter().filter(searched).count();
    assert!(found >= 2, "at least the search that a pipe would stop finds the file: {events:#?}");
    scene.stack.finish().await;
}
