//! Patches a client's Anthropic request to comply with a policy.

use serde_json::{Value, json};

use crate::wire::{
    json::{count, object},
    policy::{Patched, RelayPolicy, clamp, drop_fields, keep_tools},
};

/// Fields whose features run at the provider.
const DROPPED: &[&str] = &["mcp_servers", "container"];
/// Tools that the provider defines and the client runs; all other typed tools run at the provider.
const CLIENT_TOOLS: &[&str] = &["custom", "bash_", "text_editor_", "computer_", "memory_"];
/// The provider refuses a smaller budget of thinking, and one that is not below the output limit.
const MIN_THINKING_TOKENS: u64 = 1_024;

pub(in crate::wire) fn patch(body: &mut Value, policy: &RelayPolicy<'_>) -> Patched {
    let body = object(body);
    body.insert("model".to_owned(), json!(policy.model));
    drop_fields(body, DROPPED);
    clamp(body.entry("max_tokens").or_insert(Value::Null), policy.max_output_tokens);
    let limit = body.get("max_tokens").and_then(count).unwrap_or_default();
    if let Some(thinking) = body.get_mut("thinking")
        && count(&thinking["budget_tokens"]).is_some_and(|budget| budget >= limit)
    {
        if limit > MIN_THINKING_TOKENS {
            thinking["budget_tokens"] = json!(limit - 1);
        } else {
            body.shift_remove("thinking");
        }
    }
    let runs_at_client = |tool: &Value| match tool["type"].as_str() {
        None => true,
        Some(kind) => CLIENT_TOOLS.iter().any(|known| kind.starts_with(known)),
    };
    keep_tools(body, runs_at_client, &["tool_choice"]);
    Patched { is_stream: body.get("stream").and_then(Value::as_bool) == Some(true), usage_was_added: false }
}
