//! Makes a client's request of the responses API fit a policy.

use serde_json::{Value, json};

use crate::llm::wire::{
    json::object,
    policy::{Patched, Policy, clamp, drop_fields, keep_tools},
};

/// What refers to data that the provider keeps: the operator's key would reach other users' data, and it is unknown what it
/// costs to read.
const DROPPED: &[&str] = &["previous_response_id", "conversation", "prompt"];
/// Tools that the client runs; all others run at the provider.
const CLIENT_TOOLS: &[&str] = &["function", "custom", "local_shell", "apply_patch"];

pub(in crate::llm::wire) fn patch(body: &mut Value, policy: &Policy<'_>) -> Patched {
    let body = object(body);
    body.insert("model".to_owned(), json!(policy.model));
    body.insert("store".to_owned(), json!(false));
    drop_fields(body, DROPPED);
    clamp(body.entry("max_output_tokens").or_insert(Value::Null), policy.max_output_tokens);
    let runs_at_client = |tool: &Value| tool["type"].as_str().is_some_and(|kind| CLIENT_TOOLS.contains(&kind));
    keep_tools(body, runs_at_client, &["tool_choice", "parallel_tool_calls"]);
    // A choice of a tool that is gone would be refused.
    let chosen = body.get("tool_choice").and_then(|choice| choice["type"].as_str());
    if chosen.is_some_and(|kind| !CLIENT_TOOLS.contains(&kind) && kind != "allowed_tools") {
        body.remove("tool_choice");
    }
    Patched { is_stream: body.get("stream").and_then(Value::as_bool) == Some(true), usage_was_added: false }
}
