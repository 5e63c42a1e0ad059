//! Tool calls of a real worker that would need a person: what runs, what is refused, and that the loop goes on.

use protocol::{Event, EventData, JobState};
use reqwest::Method;
use serde_json::{Value, json};
use tests::{Reply, User, script_of};

use crate::stack::Stack;

/// One call for each requirement, one of a denied tool, one of a name that resembles it, and one that runs in the
/// container.
const CALLS: [(&str, &str); 6] = [
    ("echo", r#"{"message": "hi"}"#),
    ("message", r#"{"content": "hi"}"#),
    ("memory_write", r#"{"path": "HEARTBEAT.md", "content": "hi"}"#),
    ("secret_list", "{}"),
    ("s\u{435}cret_list", "{}"),
    ("list_dir", "{}"),
];

fn script() -> String {
    let calls: Vec<Value> = CALLS
        .iter()
        .map(|(name, text)| json!({"name": name, "arguments": serde_json::from_str::<Value>(text).unwrap()}))
        .collect();
    script_of(&[
        json!({"when": {"turn": 1}, "reply": {"text": "I try them all.", "tool_calls": calls}}),
        json!({"reply": {"text": "I have seen all results."}}),
    ])
}

/// The result of each call, as the model gets it.
fn results(events: &[Event]) -> Vec<(String, bool, String)> {
    let result = |event: &Event| match &event.data {
        EventData::ToolResult { tool, success, output, .. } => Some((tool.clone(), *success, output.clone())),
        _ => None,
    };
    let mut results: Vec<_> = events.iter().filter_map(result).collect();
    let position = |name: &str| CALLS.iter().position(|(tool, _)| *tool == name);
    results.sort_by_key(|(tool, ..)| position(tool));
    results
}

async fn run(ada: &User, approve: Value) -> (Vec<(String, bool, String)>, Vec<(String, bool)>) {
    let id = ada.create(json!({"prompt": "work", "approve": approve})).await;
    let ended = ada.wait_for_end(id).await;
    assert_eq!(ended.state, JobState::Completed, "{ended:#?}");
    let text = ended.result.and_then(|result| result.text).unwrap_or_default();
    assert!(text.contains("I have seen all results."), "a refused call does not end the loop: {text}");
    let actions = ada.get(&format!("/api/jobs/{id}/actions")).await.expect(200).body;
    let row = |action: &Value| (action["tool"].as_str().unwrap().to_owned(), action["success"] == true);
    let mut rows: Vec<_> = actions["items"].as_array().unwrap().iter().map(row).collect();
    rows.sort_by_key(|(name, _)| CALLS.iter().position(|(tool, _)| tool == name));
    (results(&ada.events(id).await), rows)
}

async fn permit(user: &User, permission: &str) {
    for tool in ["echo", "message", "memory_write"] {
        let request = user.request(Method::PUT, &format!("/api/tools/{tool}/permission"));
        Reply::of(request.json(&json!({"permission": permission}))).await.expect(200);
    }
}

#[tokio::test]
async fn a_workers_calls_that_need_a_person_are_refused_and_recorded() {
    let stack = Stack::builder().script(&script()).start().await;
    let ada = stack.user("ada").await;
    let (without, with) = (json!([]), json!(["memory_write", "secret_list"]));
    // No permission but `disabled` changes anything: no person is there to ask.
    let table = [
        ("default", &without, [true, true, false]),
        ("default", &with, [true; 3]),
        ("always_allow", &without, [true, true, false]),
        ("ask_each_time", &with, [true; 3]),
        ("disabled", &with, [false; 3]),
    ];
    for (permission, approve, runs) in table {
        permit(&ada, permission).await;
        let (results, rows) = run(&ada, approve.clone()).await;
        let expected = [runs[0], runs[1], runs[2], false, false, true];
        let successes: Vec<bool> = results.iter().map(|(_, success, _)| *success).collect();
        assert_eq!(successes, expected, "{permission}: {results:#?}");
        for (tool, success, output) in &results {
            let is_disabled = permission == "disabled" && tool != "secret_list";
            // The worker is not offered what is disabled.
            let refused = if is_disabled || !tool.is_ascii() { "not_found" } else { "autonomous_unavailable" };
            assert!(*success || output.contains(refused), "{permission}, {tool}: {output}");
        }
        let names = CALLS.map(|(name, _)| name.to_owned());
        assert_eq!(rows, names.into_iter().zip(expected).collect::<Vec<_>>(), "each call has its row");
    }
    stack.finish().await;
}
