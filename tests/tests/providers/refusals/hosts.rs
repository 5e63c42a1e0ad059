//! What other hosted services refuse, and proxies before them. Sends nothing.

use serde_json::{Value, json};

use super::{calling, chat_messages, list, parameters, refuse, refuse_with};
use crate::{
    double::{Asked, Refusal},
    wires::Item,
};

/// janhq/jan#8136.
pub(crate) fn no_reasoning_content(asked: &Asked<'_>) -> Option<Refusal> {
    let (at, _) = chat_messages(asked).find(|(_, message)| message.get("reasoning_content").is_some())?;
    refuse(
        400,
        &format!(
            "'messages.{at}' : for 'role:assistant' the following must be satisfied[('messages.{at}' : property 'reasoning_content' is unsupported)]"
        ),
    )
}

/// BerriAI/litellm#30835.
pub(crate) fn mistral_fields(asked: &Asked<'_>) -> Option<Refusal> {
    let (at, _) = chat_messages(asked).find(|(_, message)| message.get("reasoning_content").is_some())?;
    let detail = json!({"type": "extra_forbidden", "loc": ["body", "messages", at, "assistant", "reasoning_content"], "msg": "Extra inputs are not permitted"});
    Some(Refusal { status: 422, body: json!({"detail": [detail]}).to_string() })
}

/// nearai/ironclaw#1241.
pub(crate) fn mistral_ids(asked: &Asked<'_>) -> Option<Refusal> {
    let ids = asked.items.iter().flat_map(|item| match item {
        Item::Reply(_, calls) => calls.iter().map(|(id, _)| id).collect(),
        _ => Vec::new(),
    });
    let id = ids.into_iter().find(|id| id.len() != 9 || !id.bytes().all(|byte| byte.is_ascii_alphanumeric()))?;
    refuse(400, &format!("Tool call id was {id} but must be a-z, A-Z, 0-9, with a length of 9."))
}

/// NousResearch/hermes-agent#20154.
pub(crate) fn mistral_order(asked: &Asked<'_>) -> Option<Refusal> {
    let is_wrong = |pair: &[Item]| matches!(pair, [Item::Result { .. }, Item::User(_)]);
    asked.items.windows(2).find(|pair| is_wrong(pair))?;
    let body = json!({"object": "error", "message": "Unexpected role 'user' after role 'tool'", "type": "invalid_request_message_order", "code": "3230"});
    Some(Refusal { status: 400, body: body.to_string() })
}

/// earendil-works/pi#3636: of each message with calls since the user's last one.
pub(crate) fn reasoning_passed_back(asked: &Asked<'_>) -> Option<Refusal> {
    let last = chat_messages(asked).filter(|(_, message)| message["role"] == "user").last().map_or(0, |(at, _)| at);
    calling(asked).find(|(at, message)| *at > last && !message["reasoning_content"].is_string())?;
    refuse(400, "The `reasoning_content` in the thinking mode must be passed back to the API.")
}

/// continuedev/continue#11711.
pub(crate) fn reasoning_not_missing(asked: &Asked<'_>) -> Option<Refusal> {
    let (at, _) = calling(asked).find(|(_, message)| !message["reasoning_content"].is_string())?;
    refuse(
        400,
        &format!("thinking is enabled but reasoning_content is missing in assistant tool call message at index {at}"),
    )
}

/// BerriAI/litellm#29687.
pub(crate) fn moonshot_temperature(asked: &Asked<'_>) -> Option<Refusal> {
    asked.body.get("temperature").filter(|given| **given != json!(1.0))?;
    refuse(400, "invalid temperature: only 1 is allowed for this model")
}

/// MoonshotAI/kimi-cli#2030 has the words and each property's `type`, NousResearch/hermes-agent#66835 `required`.
pub(crate) fn moonshot_schema(asked: &Asked<'_>) -> Option<Refusal> {
    let is_flavored = |schema: &Value| {
        let is_typed = |property: &Value| property["type"].is_string();
        schema["required"].is_array() && schema["properties"].as_object().is_some_and(|all| all.values().all(is_typed))
    };
    parameters(asked).find(|(_, schema)| !is_flavored(schema))?;
    refuse(
        400,
        "Invalid request: tools.function.parameters is not a valid moonshot flavored json schema, details: <At path 'properties.x': type is not defined>",
    )
}

/// securo-finance/securo#884.
pub(crate) fn signed_calls(asked: &Asked<'_>) -> Option<Refusal> {
    calling(asked)
        .find(|(_, message)| !message["tool_calls"][0]["extra_content"]["google"]["thought_signature"].is_string())?;
    let message = "Function call is missing a thought_signature in functionCall parts.";
    let body = json!([{"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}}]);
    Some(Refusal { status: 400, body: body.to_string() })
}

/// massgen/MassGen#624: those of this provider, with its calls. What another one made is none.
pub(crate) fn kept_details(asked: &Asked<'_>) -> Option<Refusal> {
    let is_kept = |message: &Value| {
        let is_own = message["tool_calls"][0]["id"].as_str().is_some_and(|id| id.starts_with("tool_"));
        let details = list(&message["reasoning_details"]);
        let is_signed =
            details.len() == 2 && asked.signed.contains_key(details[1]["data"].as_str().unwrap_or_default());
        if is_own { is_signed } else { message.get("reasoning_details").is_none() }
    };
    calling(asked).find(|(_, message)| !is_kept(message))?;
    let raw = "Gemini models require OpenRouter reasoning details to be preserved in each request.";
    let body = json!({"error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": raw}}});
    Some(Refusal { status: 400, body: body.to_string() })
}

/// BigPizzaV3/CodexPlusPlus#267; can1357/oh-my-pi#954 found that it is about a second one.
pub(crate) fn one_system_message(asked: &Asked<'_>) -> Option<Refusal> {
    let systems = asked.items.iter().filter(|item| matches!(item, Item::System(_))).count();
    if systems < 2 { None } else { refuse(400, "invalid params, chat content has invalid message role: system (2013)") }
}

/// BerriAI/litellm#16265 (the effort), lidge-jun/opencodex#5278 (`stop`) and miaoxworld/NativeTavern#83 (the penalties).
/// NousResearch/hermes-agent#23435 lists the models that take an effort.
pub(crate) fn xai_parameters(asked: &Asked<'_>) -> Option<Refusal> {
    const NOT_TAKEN: [(&str, &str); 4] = [
        ("reasoning_effort", "reasoningEffort"),
        ("stop", "stop"),
        ("presence_penalty", "presencePenalty"),
        ("frequency_penalty", "frequencyPenalty"),
    ];
    let model = asked.body["model"].as_str().unwrap_or_default();
    let is_taken = |field: &str| field == "reasoning_effort" && model.starts_with("grok-4.3");
    let (_, name) = NOT_TAKEN.into_iter().find(|(field, _)| asked.body.get(*field).is_some() && !is_taken(field))?;
    let error = format!("Model {model} does not support parameter {name}.");
    refuse_with(400, &json!({"code": "Client specified an invalid argument", "error": error}))
}

/// kaitranntt/ccs#536 has the body. The first request alone: it works when it is sent again (anomalyco/opencode#14535).
pub(crate) fn zai_rate(asked: &Asked<'_>) -> Option<Refusal> {
    if asked.number > 0 {
        return None;
    }
    refuse_with(429, &json!({"error": {"code": "1302", "message": "Rate limit reached for requests"}}))
}

/// anthropics/claude-code#9201 has the code, vercel/ai#9290 the status.
pub(crate) const ZAI_BALANCE: (u16, &str) =
    (429, r#"{"error": {"code": "1113", "message": "Insufficient balance or no resource package. Please recharge."}}"#);

/// How the proxy reports what the provider behind it refused (BerriAI/litellm#12635).
fn wrapped(asked: &Asked<'_>, text: &str) -> Option<Refusal> {
    let model = asked.body["model"].as_str().unwrap_or_default();
    let message = format!("{text}. Received Model Group={model}\nAvailable Model Group Fallbacks=None");
    refuse_with(400, &json!({"error": {"message": message, "type": null, "param": null, "code": "400"}}))
}

/// lintsinghua/DeepAudit#80.
pub(crate) fn litellm_temperature(asked: &Asked<'_>) -> Option<Refusal> {
    let given = asked.body.get("temperature")?;
    wrapped(
        asked,
        &format!(
            "litellm.BadRequestError: OpenAIException - Unsupported value: 'temperature' does not support {given} with this model. Only the default (1) value is supported."
        ),
    )
}

/// camel-ai/owl#532: a history with calls needs the definitions.
pub(crate) fn litellm_tools(asked: &Asked<'_>) -> Option<Refusal> {
    calling(asked).next().filter(|_| list(&asked.body["tools"]).is_empty())?;
    wrapped(
        asked,
        "litellm.UnsupportedParamsError: Anthropic doesn't support tool calling without `tools=` param specified. Pass `tools=` param OR set `litellm.modify_params = True` // `litellm_settings::modify_params: True` to add dummy tool to the request.",
    )
}

/// pydantic-ai-slim 2.68.0 (`providers`), whose authors asked it; anomalyco/opencode#33811 has the bare text, too. Nothing can be learned of it.
pub(crate) fn copilot_max_tokens(asked: &Asked<'_>) -> Option<Refusal> {
    asked.body.get("max_tokens").map(|_| Refusal { status: 400, body: "Bad Request".to_owned() })
}
