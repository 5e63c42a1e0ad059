//! A process in the container cannot impersonate the worker, even with the token.

use std::collections::BTreeMap;

use protocol::{EventData, JobState};
use serde_json::{Value, json};

use crate::scenario::{ATTACK_SECONDS, Attackers, ExpectedEnd, Scenario, output_of};

/// The errors of access to another process's files.
const ACCESS_ERRORS: [&str; 3] = ["EACCES", "EPERM", "ENOENT"];

#[tokio::test(flavor = "multi_thread")]
async fn a_command_with_the_token_cannot_impersonate_its_worker() {
    let scenario = Scenario::start().await;
    let watch = scenario.watch("forged calls");
    let command = "touch started; python3 forge.py; echo the command ends";
    let job = scenario.hostile(command, json!({})).await;
    // Longer than the calls take: with fewer than 100 samples, one pause of the machine would decide the 99th
    // percentile.
    let verdict = scenario.measure(watch, ATTACK_SECONDS, Attackers::jobs(&[(job, ExpectedEnd::Completed)])).await;
    let events = scenario.mallory.events(job).await;
    let outputs = output_of(&events);
    let reports =
        outputs.iter().flat_map(|output| output.lines()).find_map(|line| serde_json::from_str::<Value>(line).ok());
    let reports = reports.unwrap_or_else(|| panic!("no report in {outputs:?}: {events:#?}"));

    let calls: BTreeMap<String, Value> = serde_json::from_value(reports["calls"].clone()).unwrap();
    assert_eq!(calls.len(), 24, "8 calls in 3 ways: {calls:#?}");
    let taken: Vec<_> = calls.iter().filter(|(_, status)| **status != 401).collect();
    assert!(taken.is_empty(), "calls without the worker's session were not refused: {taken:#?}");
    let opens: BTreeMap<String, String> = serde_json::from_value(reports["opens"].clone()).unwrap();
    let opened: Vec<_> = opens.iter().filter(|(_, how)| !ACCESS_ERRORS.contains(&how.as_str())).collect();
    assert!(opened.is_empty(), "the worker's own: {opened:#?}");
    for file in ["environ", "mem", "fd"] {
        assert!(opens.contains_key(&format!("/proc/1/{file}")), "{file} was tried: {opens:#?}");
    }
    assert_eq!(reports["run directory"], json!(["worker.sock"]));
    let names: Vec<String> = serde_json::from_value(reports["environment"].clone()).unwrap();
    let secret = names.iter().find(|name| name.contains("TOKEN") || name.contains("SESSION"));
    assert_eq!(secret, None, "nothing of the session is in a command's environment: {names:?}");

    let ended = scenario.mallory.job(job).await;
    let text = ended.result.as_ref().and_then(|result| result.text.as_deref()).unwrap_or_default();
    assert!(text.contains("the command ends"), "the result is the worker's: {ended:#?}");
    assert_eq!((ended.state, ended.usage.llm_calls, ended.usage.tool_calls), (JobState::Completed, 2, 1));
    let rejected = events.iter().filter(
        |event| matches!(&event.data, EventData::Limit { limit, .. } if *limit == protocol::LimitName::SessionRejected),
    );
    assert_eq!(rejected.count(), 1, "recorded once: {events:#?}");
    let reported: Vec<String> = events.iter().filter_map(|event| own(&event.data)).collect();
    let own = ["message: run: touch started", "message: I run it.", "tool_use: shell", "tool_result: ok", "message: {"];
    for line in own {
        assert!(reported.iter().any(|reported| reported.starts_with(line)), "{line} is in the record: {reported:#?}");
    }
    assert_eq!(reported.len(), own.len(), "and nothing else: {reported:#?}");
    verdict.check();
    scenario.stack.finish().await;
}

/// A short form of the worker's loop events.
fn own(data: &EventData) -> Option<String> {
    match data {
        EventData::Message { content, .. } => Some(format!("message: {content}")),
        EventData::ToolUse { tool, .. } => Some(format!("tool_use: {tool}")),
        EventData::ToolResult { success, .. } => {
            Some(format!("tool_result: {}", if *success { "ok" } else { "failed" }))
        }
        _ => None,
    }
}
