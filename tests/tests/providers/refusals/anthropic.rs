//! What Anthropic refuses. Sends nothing.

use serde_json::Value;

use super::{chat_messages, is_word, list, names, parameters, refuse};
use crate::{
    double::{Asked, Refusal},
    wires::without_marks,
};

/// Roo-Code#12162 has the words.
pub(crate) fn anthropic_temperature(asked: &Asked<'_>) -> Option<Refusal> {
    asked.body.get("temperature")?;
    refuse(400, "`temperature` is deprecated for this model.")
}

/// The manual of drorm/vmpilot ("LLM Issues and Error Handling").
pub(crate) fn anthropic_names(asked: &Asked<'_>) -> Option<Refusal> {
    let (at, _) = names(asked).find(|(_, name)| !is_word(name))?;
    refuse(
        400,
        &format!("messages.{at}.content.0.tool_use.name: String should match pattern '^[a-zA-Z0-9_-]{{1,64}}$'"),
    )
}

/// anthropics/claude-code#45106.
pub(crate) fn anthropic_schema(asked: &Asked<'_>) -> Option<Refusal> {
    let is_union = |schema: &Value| ["oneOf", "anyOf", "allOf"].iter().any(|key| schema.get(*key).is_some());
    let at = parameters(asked).position(|(_, schema)| is_union(schema))?;
    refuse(
        400,
        &format!(
            "tools.{at}.custom.input_schema: input_schema does not support oneOf, allOf, or anyOf at the top level"
        ),
    )
}

/// anthropics/claude-code#59812, and #23369 for blanks.
pub(crate) fn filled_text(asked: &Asked<'_>) -> Option<Refusal> {
    let mut blocks = chat_messages(asked).flat_map(|(_, message)| list(&message["content"]));
    let is_empty = |block: &&Value| block["text"].as_str().is_some_and(|text| text.trim().is_empty());
    blocks.find(is_empty)?;
    refuse(400, "messages: text content blocks must be non-empty")
}

/// cortexkit/magic-context#511.
pub(crate) fn ends_with_user(asked: &Asked<'_>) -> Option<Refusal> {
    let (_, last) = chat_messages(asked).last()?;
    if last["role"] == "user" {
        None
    } else {
        refuse(
            400,
            "This model does not support assistant message prefill. The conversation must end with a user message.",
        )
    }
}

/// anomalyco/opencode#48637: what comes before a signed block is what came before it when it was made.
pub(crate) fn bound_thinking(asked: &Asked<'_>) -> Option<Refusal> {
    let now = without_marks(asked.body);
    let messages = list(&now["messages"]);
    for (at, message) in messages.iter().enumerate() {
        for block in list(&message["content"]).iter().filter(|block| block["type"] == "thinking") {
            let made = asked.signed.get(block["signature"].as_str().unwrap_or_default());
            let is_bound = made.is_some_and(|made| {
                made["system"] == now["system"]
                    && made["tools"] == now["tools"]
                    && list(&made["messages"]) == &messages[..at]
            });
            if !is_bound {
                return refuse(
                    400,
                    &format!(
                        "messages.{at}.content.0: Invalid signature in `thinking` block. The block is bound to a different conversation"
                    ),
                );
            }
        }
    }
    None
}
