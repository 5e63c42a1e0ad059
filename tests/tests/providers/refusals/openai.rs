//! What OpenAI refuses, below its own address and below that of Azure. Sends nothing.

use serde_json::{Value, json};

use super::{chat_messages, is_word, list, names, parameters, refuse, refuse_with};
use crate::{
    double::{Asked, Refusal},
    wires::Item,
};

/// The fields are those of the openai package 3.57.0 (`types/chat/chat_completion_assistant_message_param.py`), the words those of
/// coroot/coroot#698 about another field.
pub(crate) fn known_fields(asked: &Asked<'_>) -> Option<Refusal> {
    const KNOWN: [&str; 8] =
        ["role", "content", "name", "refusal", "audio", "function_call", "tool_calls", "tool_call_id"];
    chat_messages(asked).find_map(|(_, message)| {
        let unknown = message.as_object()?.keys().find(|key| !KNOWN.contains(&key.as_str()))?;
        refuse(400, &format!("Unrecognized request argument supplied: {unknown}"))
    })
}

/// mcp-use/mcp-use#90.
pub(crate) fn openai_names(asked: &Asked<'_>) -> Option<Refusal> {
    let (at, _) = names(asked).find(|(_, name)| !is_word(name))?;
    refuse(
        400,
        &format!(
            "Invalid 'messages[{at}].tool_calls[0].function.name': string does not match pattern. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'."
        ),
    )
}

/// vercel/ai#5171.
pub(crate) fn openai_ids(asked: &Asked<'_>) -> Option<Refusal> {
    let ids = asked.items.iter().enumerate().flat_map(|(at, item)| match item {
        Item::Reply(_, calls) => calls.iter().map(|(id, _)| (at, id.len())).collect(),
        _ => Vec::new(),
    });
    let (at, length) = ids.into_iter().find(|(_, length)| *length > 40)?;
    refuse(
        400,
        &format!(
            "Invalid 'messages[{at}].tool_calls[0].id': string too long. Expected a string with maximum length 40, but got a string with length {length} instead."
        ),
    )
}

/// apify/apify-mcp-server#36.
pub(crate) fn array_items(asked: &Asked<'_>) -> Option<Refusal> {
    fn lacks_items(schema: &Value) -> bool {
        schema["type"] == "array" && schema["items"].is_null()
            || schema.as_object().is_some_and(|fields| fields.values().any(lacks_items))
            || schema.as_array().is_some_and(|values| values.iter().any(lacks_items))
    }
    let (name, _) = parameters(asked).find(|(_, schema)| lacks_items(schema))?;
    refuse(
        400,
        &format!("Invalid schema for function '{name}': In context=('properties', 'x'), array schema missing items."),
    )
}

/// microsoft/vscode-copilot-release#8065.
pub(crate) fn no_max_tokens(asked: &Asked<'_>) -> Option<Refusal> {
    asked.body.get("max_tokens")?;
    refuse(
        400,
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
    )
}

/// QwenLM/qwen-code#921 and paperless-ngx/paperless-ngx#12822.
pub(crate) fn no_temperature(asked: &Asked<'_>) -> Option<Refusal> {
    let given = asked.body.get("temperature")?;
    refuse(
        400,
        &format!(
            "Unsupported value: 'temperature' does not support {given} with this model. Only the default (1) value is supported."
        ),
    )
}

/// laurent22/joplin#16451: the model thinks unless it is told not to.
pub(crate) fn no_tools_at_chat(asked: &Asked<'_>) -> Option<Refusal> {
    let is_thinking = asked.body["reasoning_effort"] != "none";
    if asked.path != "chat/completions" || asked.body.get("tools").is_none() || !is_thinking {
        return None;
    }
    refuse(
        400,
        "Function tools with reasoning_effort are not supported for house-gpt in /v1/chat/completions. To use function tools, use /v1/responses or set reasoning_effort to 'none'.",
    )
}

/// maximhq/bifrost#5410 has the reason, that reasoning which is not encrypted is lost.
pub(crate) fn nothing_stored(asked: &Asked<'_>) -> Option<Refusal> {
    if asked.path != "responses"
        || (asked.body["store"] == false && asked.body["include"] == json!(["reasoning.encrypted_content"]))
    {
        return None;
    }
    refuse(400, "the test wants nothing stored, and the reasoning encrypted")
}

/// Wei-Shaw/sub2api#3138 (encrypted by another one) and continuedev/continue#8933 (without the item that it led to).
pub(crate) fn encrypted_reasoning(asked: &Asked<'_>) -> Option<Refusal> {
    let input = list(&asked.body["input"]);
    input.iter().enumerate().find_map(|(at, item)| {
        if item["type"] != "reasoning" {
            return None;
        }
        let content = item["encrypted_content"].as_str().unwrap_or_default();
        if !asked.signed.contains_key(content) {
            return refuse(400, "invalid_encrypted_content: The encrypted content could not be verified.");
        }
        let follows =
            input.get(at + 1).is_some_and(|next| next["type"] == "function_call" || next["role"] == "assistant");
        if follows {
            None
        } else {
            refuse(400, "Item 'rs_1' of type 'reasoning' was provided without its required following item.")
        }
    })
}

/// KeyserDSoze/Rystem.OpenAi#22: what Azure says of a path that a deployment does not have.
pub(crate) fn azure_chat_alone(asked: &Asked<'_>) -> Option<Refusal> {
    if asked.path == "chat/completions" {
        return None;
    }
    refuse_with(404, &json!({"error": {"code": "404", "message": "Resource not found"}}))
}
