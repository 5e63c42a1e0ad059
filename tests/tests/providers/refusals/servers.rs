//! What servers refuse that people run themselves, and the templates of the models on them. Sends nothing.

use serde_json::Value;

use super::{calling, chat_messages, list, parameters, refuse};
use crate::{
    double::{Asked, Refusal},
    wires::Item,
};

/// Ollama's own format has no ids, and its templates render what comes. Each result has its call by its place.
pub(crate) fn results_follow_calls(asked: &Asked<'_>) -> Option<Refusal> {
    let mut open = 0_usize;
    for item in asked.items {
        open = match item {
            Item::Reply(_, calls) => open + calls.len(),
            Item::Result { .. } if open == 0 => return refuse(400, "a tool message without a tool call"),
            Item::Result { .. } => open - 1,
            Item::User(_) | Item::System(_) if open > 0 => return refuse(400, "a tool call without a tool message"),
            Item::User(_) | Item::System(_) => 0,
        };
    }
    None
}

/// aliasrobotics/cai#76.
pub(crate) fn arguments_are_objects(asked: &Asked<'_>) -> Option<Refusal> {
    let calls = calling(asked).flat_map(|(_, message)| list(&message["tool_calls"]));
    let is_text = calls.into_iter().any(|call| !call["function"]["arguments"].is_object());
    if !is_text {
        return None;
    }
    refuse(
        400,
        "json: cannot unmarshal string into Go struct field ChatRequest.messages.tool_calls.function.arguments of type api.ToolCallFunctionArguments",
    )
}

/// langchain-ai/langgraph#1122. As a 500, as llama.cpp reports what fails in a template.
pub(crate) fn content_is_text(asked: &Asked<'_>) -> Option<Refusal> {
    chat_messages(asked).find(|(_, message)| message["content"].is_null())?;
    refuse(500, "can only concatenate str (not \"NoneType\") to str")
}

/// vllm-project/vllm#6862: results are part of the assistant's turn.
pub(crate) fn gemma_order(asked: &Asked<'_>) -> Option<Refusal> {
    let spoken: Vec<&Item> =
        asked.items.iter().filter(|item| !matches!(item, Item::Result { .. } | Item::System(_))).collect();
    let is_user = |item: &Item| matches!(item, Item::User(_));
    let has_calls = |item: &Item| matches!(item, Item::Reply(_, calls) if !calls.is_empty());
    let is_wrong = |pair: &[&Item]| is_user(pair[0]) == is_user(pair[1]) && !has_calls(pair[0]);
    spoken.windows(2).find(|pair| is_wrong(pair))?;
    refuse(
        500,
        "After the optional system message, conversation roles must alternate user/assistant/user/assistant/...",
    )
}

/// theroyallab/YALS#24.
pub(crate) fn typed_properties(asked: &Asked<'_>) -> Option<Refusal> {
    let is_untyped = |schema: &Value| {
        schema["properties"].as_object().is_some_and(|all| all.values().any(|one| !one["type"].is_string()))
    };
    parameters(asked).find(|(_, schema)| is_untyped(schema))?;
    refuse(400, "Cannot apply filter \"upper\" to type: UndefinedValue")
}

/// vllm-project/vllm#12937: the template of Llama 3.1 and later.
pub(crate) fn one_call_at_once(asked: &Asked<'_>) -> Option<Refusal> {
    calling(asked).find(|(_, message)| list(&message["tool_calls"]).len() > 1)?;
    refuse(400, "This model only supports single tool-calls at once!")
}

/// microsoft/semantic-kernel#10510.
pub(crate) fn no_stream_options(asked: &Asked<'_>) -> Option<Refusal> {
    asked.body.get("stream_options")?;
    refuse(400, "Validation error at #/stream_options: Extra inputs are not permitted")
}
