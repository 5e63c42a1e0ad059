//! Examples of request bodies. The page of the document offers them for "Try it out", so each is valid as it is.

use serde_json::{Value, json};

use super::operations;

fn examples() -> Value {
    json!({
        "create_job": {"prompt": "run: id"},
        "cancel_job": {"reason": "no longer needed"},
        "prompt_job": {"content": "Also count the lines."},
        "restart_job": {},
        "reject_job": {"reason": "The table has no header."},
        "send_message": {"content": "hello"},
        "resolve_gate": {"decision": "approve"},
        "resolve_thread_approval": {"thread_id": "main", "decision": "approve"},
        "resolve_thread_gate": {"thread_id": "main", "decision": "approve"},
        "create_routine": {
            "name": "morning-news",
            "trigger": {"type": "cron", "schedule": "0 9 * * mon-fri", "timezone": "Europe/Oslo"},
            "action": {"type": "lightweight", "prompt": "Summarize what has happened since yesterday."},
        },
        "update_routine": {"description": "Every weekday at nine."},
        "trigger_routine": {"wait_seconds": 30},
        "post_message": {"channel": "support", "content": "The printer is on fire.", "sender": "ada"},
        "post_system_event": {"source": "github", "event_type": "issue.opened", "payload": {"number": 7}},
        "receive_webhook": {"action": "opened"},
        "call_rpc": {"jsonrpc": "2.0", "id": 1, "method": "cron.list"},
        "write_memory": {"content": "The team meets on Mondays."},
        "set_secret": {"name": "GITHUB_TOKEN", "value": "not-a-real-token"},
        "put_settings": {"timezone": "Europe/Oslo", "quiet_hours": {"from": "22:00", "to": "07:00"}},
        "set_tool_permission": {"permission": "ask_each_time"},
        "set_tool_policy": {"disabled_tools": ["http"]},
        "approve_mcp_tool": {"tool": "search", "digest": "0".repeat(64)},
    })
}

/// Adds the examples to the operations.
pub(super) fn add(document: &mut Value) {
    let mut examples = examples();
    operations::for_each(document, |_, operation| {
        let example = operation["operationId"].as_str().and_then(|id| examples.get_mut(id)).map(Value::take);
        let content = operation.get_mut("requestBody").and_then(|body| body.get_mut("content"));
        if let (Some(example), Some(content)) =
            (example, content.and_then(|content| content.get_mut("application/json")))
        {
            content["example"] = example;
        }
    });
}
