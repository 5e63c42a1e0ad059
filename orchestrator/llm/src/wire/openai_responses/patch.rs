//! Patches a client's request of the responses API to comply with a policy.

use serde_json::{Value, json};

use crate::wire::{
    json::object,
    policy::{Patched, RelayPolicy, clamp, drop_fields, keep_tools},
};

/// Fields that refer to data stored at the provider: the operator's key would give access to other users' data, and the
/// cost of reading it is unknown.
const DROPPED: &[&str] = &["previous_response_id", "conversation", "prompt"];
/// Tools that the client runs; all others run at the provider.
const CLIENT_TOOLS: &[&str] = &["function", "custom", "local_shell", "apply_patch"];

pub(in crate::wire) fn patch(body: &mut Value, policy: &RelayPolicy<'_>) -> Patched {
    let body = object(body);
    body.insert("model".to_owned(), json!(policy.model));
    body.insert("store".to_owned(), json!(false));
    drop_fields(body, DROPPED);
    clamp(body.entry("max_output_tokens").or_insert(Value::Null), policy.max_output_tokens);
    let runs_at_client = |tool: &Value| tool["type"].as_str().is_some_and(|kind| CLIENT_TOOLS.contains(&kind));
    keep_tools(body, runs_at_client, &["tool_choice", "parallel_tool_calls"]);
    // A choice of a removed tool would be refused.
    let chosen = body.get("tool_choice").and_then(|choice| choice["type"].as_str());
    if chosen.is_some_and(|kind| !CLIENT_TOOLS.contains(&kind) && kind != "allowed_tools") {
        body.shift_remove("tool_choice");
    }
    Patched { is_stream: body.get("stream").and_then(Value::as_bool) == Some(true), usage_was_added: false }
}
