//! What each family of providers refuses, in its words. Where a check names no public report, the words are known from
//! clients of that provider. Both sides of the wire are written here: no server of a provider is asked.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::{
    double::{Asked, Refusal},
    wires::{Item, Reasoning, without_marks},
};

type Check = fn(&Asked<'_>) -> Option<Refusal>;

/// A family of providers.
pub(crate) struct Family {
    pub(crate) name: &'static str,
    /// As `llm.provider` names it.
    pub(crate) kind: &'static str,
    pub(crate) model: &'static str,
    /// Whether its address is one of this machine.
    pub(crate) is_local: bool,
    pub(crate) reasoning: Reasoning,
    /// The id of a call: how many there were, and the tool.
    pub(crate) call_id: fn(usize, &str) -> String,
    pub(crate) checks: &'static [Check],
}

const ANY_ID: fn(usize, &str) -> String = |number, _| format!("call_{number:024}");

const OLD_OPENAI: Family = Family {
    name: "openai, chat",
    kind: "openai",
    model: "gpt-4.1",
    is_local: false,
    reasoning: Reasoning::None,
    call_id: ANY_ID,
    checks: &[only_chat, known_fields, paired, openai_names, openai_ids, array_items],
};
const REASONING_OPENAI: Family = Family {
    name: "openai, a model that reasons",
    kind: "openai",
    model: "house-gpt",
    is_local: false,
    reasoning: Reasoning::Opaque,
    call_id: ANY_ID,
    checks: &[
        no_max_tokens,
        no_temperature,
        no_tools_at_chat,
        paired,
        openai_names,
        nothing_stored,
        encrypted_reasoning,
    ],
};
const ANTHROPIC: Family = Family {
    name: "anthropic",
    kind: "anthropic",
    model: "claude-opus-5-5",
    is_local: false,
    reasoning: Reasoning::Opaque,
    call_id: |number, _| format!("toolu_{number:022}"),
    checks: &[
        paired,
        anthropic_temperature,
        anthropic_names,
        anthropic_schema,
        filled_text,
        ends_with_user,
        bound_thinking,
    ],
};
const GROQ: Family = Family {
    name: "groq",
    reasoning: Reasoning::Field("reasoning"),
    checks: &[only_chat, paired, no_reasoning_content],
    ..OLD_OPENAI
};
const CEREBRAS: Family = Family {
    name: "cerebras",
    reasoning: Reasoning::Field("reasoning_content"),
    checks: &[only_chat, paired, no_reasoning_content],
    ..OLD_OPENAI
};
const MISTRAL: Family = Family {
    name: "mistral",
    model: "house-large",
    reasoning: Reasoning::Field("reasoning_content"),
    call_id: |number, _| format!("c{number:08}"),
    checks: &[only_chat, paired, mistral_fields, mistral_ids, mistral_order],
    ..OLD_OPENAI
};
const DEEPSEEK: Family = Family {
    name: "deepseek",
    model: "house-reasoner",
    reasoning: Reasoning::None,
    checks: &[only_chat, paired, reasoning_passed_back],
    ..OLD_OPENAI
};
const MOONSHOT: Family = Family {
    name: "moonshot",
    model: "house-k3",
    reasoning: Reasoning::Field("reasoning_content"),
    call_id: |number, name| format!("functions.{name}:{number}"),
    checks: &[only_chat, paired, moonshot_temperature, moonshot_schema, reasoning_not_missing],
    ..OLD_OPENAI
};
const GEMINI: Family = Family {
    name: "gemini",
    model: "house-flash",
    reasoning: Reasoning::CallSignature,
    checks: &[only_chat, paired, signed_calls],
    ..OLD_OPENAI
};
const OPENROUTER_GEMINI: Family = Family {
    name: "openrouter, gemini",
    model: "google/house-flash",
    reasoning: Reasoning::Details,
    checks: &[only_chat, paired, kept_details],
    ..OLD_OPENAI
};
const GEMMA: Family = Family {
    name: "gemma's template",
    model: "house-3",
    reasoning: Reasoning::None,
    checks: &[only_chat, content_is_text, gemma_order, typed_properties],
    ..OLD_OPENAI
};
const LLAMA: Family = Family {
    name: "llama's template",
    model: "house-3.3",
    reasoning: Reasoning::None,
    checks: &[only_chat, paired, one_call_at_once],
    ..OLD_OPENAI
};
const MINIMAX: Family = Family {
    name: "minimax",
    model: "house-m2",
    reasoning: Reasoning::None,
    checks: &[only_chat, paired, one_system_message],
    ..OLD_OPENAI
};
const PLAIN: Family = Family {
    name: "a server that knows few fields",
    model: "house",
    reasoning: Reasoning::None,
    checks: &[only_chat, paired, no_stream_options],
    ..OLD_OPENAI
};
/// What the templates of different models refuse, all at once: any of them may be behind a local address.
const LOCAL: Family = Family {
    name: "a local server",
    model: "house",
    is_local: true,
    reasoning: Reasoning::None,
    checks: &[only_chat, content_is_text, typed_properties, one_system_message],
    ..OLD_OPENAI
};
const OLLAMA: Family = Family {
    name: "ollama",
    kind: "ollama",
    model: "house",
    is_local: true,
    reasoning: Reasoning::None,
    call_id: ANY_ID,
    checks: &[results_follow_calls, arguments_are_objects, content_is_text],
};

pub(crate) static FAMILIES: [Family; 16] = [
    OLD_OPENAI,
    REASONING_OPENAI,
    ANTHROPIC,
    GROQ,
    CEREBRAS,
    MISTRAL,
    DEEPSEEK,
    MOONSHOT,
    GEMINI,
    OPENROUTER_GEMINI,
    GEMMA,
    LLAMA,
    MINIMAX,
    PLAIN,
    LOCAL,
    OLLAMA,
];

pub(crate) fn family(name: &str) -> &'static Family {
    FAMILIES.iter().find(|family| family.name == name).unwrap_or_else(|| panic!("no family {name}"))
}

#[expect(clippy::unnecessary_wraps, reason = "what a check returns")]
fn refuse(status: u16, message: &str) -> Option<Refusal> {
    let body = json!({"error": {"message": message, "type": "invalid_request_error"}}).to_string();
    Some(Refusal { status, body })
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn chat_messages<'a>(asked: &Asked<'a>) -> impl Iterator<Item = (usize, &'a Value)> {
    list(&asked.body["messages"]).iter().enumerate()
}

/// The replies with calls, and their places.
fn calling<'a>(asked: &Asked<'a>) -> impl Iterator<Item = (usize, &'a Value)> {
    chat_messages(asked).filter(|(_, message)| !list(&message["tool_calls"]).is_empty())
}

fn parameters<'a>(asked: &Asked<'a>) -> impl Iterator<Item = (&'a str, &'a Value)> {
    list(&asked.body["tools"]).iter().map(|tool| {
        let function = if tool["function"].is_object() { &tool["function"] } else { tool };
        let schema =
            if function["parameters"].is_object() { &function["parameters"] } else { &function["input_schema"] };
        (function["name"].as_str().unwrap_or_default(), schema)
    })
}

fn only_chat(asked: &Asked<'_>) -> Option<Refusal> {
    if asked.path == "chat/completions" { None } else { refuse(404, "Not Found") }
}

/// Every server: each call has its result, directly after its message.
fn paired(asked: &Asked<'_>) -> Option<Refusal> {
    let mut open: Vec<&str> = Vec::new();
    let mut known = BTreeSet::new();
    for item in asked.items {
        match item {
            Item::Reply(_, calls) => {
                // A reply may be several items of the responses format.
                open.extend(calls.iter().map(|(id, _)| id.as_str()));
                if calls.iter().any(|(id, _)| !known.insert(id)) {
                    return refuse(400, "Duplicate value for 'tool_call_id'");
                }
            }
            Item::Result { id, .. } if open.first() == Some(&id.as_str()) => drop(open.remove(0)),
            Item::Result { id, .. } => return refuse(400, &format!("tool result's tool id {id} not found")),
            Item::User(_) | Item::System(_) if !open.is_empty() => {
                return refuse(400, "An assistant message with 'tool_calls' must be followed by tool messages");
            }
            Item::User(_) | Item::System(_) => {}
        }
    }
    if open.is_empty() { None } else { refuse(400, "No tool output found for function call") }
}

/// Where calls have no ids, each has its result by its place.
fn results_follow_calls(asked: &Asked<'_>) -> Option<Refusal> {
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

/// ollama/ollama `api/types.go`: the arguments of a call are a map.
fn arguments_are_objects(asked: &Asked<'_>) -> Option<Refusal> {
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

/// openai 3.57.0 (Python), the fields of an assistant message.
fn known_fields(asked: &Asked<'_>) -> Option<Refusal> {
    const KNOWN: [&str; 8] =
        ["role", "content", "name", "refusal", "audio", "function_call", "tool_calls", "tool_call_id"];
    chat_messages(asked).find_map(|(_, message)| {
        let unknown = message.as_object()?.keys().find(|key| !KNOWN.contains(&key.as_str()))?;
        refuse(400, &format!("Unrecognized request argument supplied: {unknown}"))
    })
}

fn names<'a>(asked: &Asked<'a>) -> impl Iterator<Item = (usize, &'a str)> {
    asked.items.iter().enumerate().flat_map(|(at, item)| match item {
        Item::Reply(_, calls) => calls.iter().map(|(_, name)| (at, name.as_str())).collect(),
        _ => Vec::new(),
    })
}

fn is_word(name: &str) -> bool {
    let is_char = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    (1..=64).contains(&name.len()) && name.bytes().all(is_char)
}

/// mcp-use/mcp-use#90.
fn openai_names(asked: &Asked<'_>) -> Option<Refusal> {
    let (at, _) = names(asked).find(|(_, name)| !is_word(name))?;
    refuse(
        400,
        &format!(
            "Invalid 'messages[{at}].tool_calls[0].function.name': string does not match pattern. Expected a string that matches the pattern '^[a-zA-Z0-9_-]+$'."
        ),
    )
}

/// vercel/ai#5171.
fn openai_ids(asked: &Asked<'_>) -> Option<Refusal> {
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
fn array_items(asked: &Asked<'_>) -> Option<Refusal> {
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

fn no_max_tokens(asked: &Asked<'_>) -> Option<Refusal> {
    asked.body.get("max_tokens")?;
    refuse(
        400,
        "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
    )
}

fn no_temperature(asked: &Asked<'_>) -> Option<Refusal> {
    let given = asked.body.get("temperature")?;
    refuse(
        400,
        &format!(
            "Unsupported value: 'temperature' does not support {given} with this model. Only the default (1) value is supported."
        ),
    )
}

/// laurent22/joplin#16451.
fn no_tools_at_chat(asked: &Asked<'_>) -> Option<Refusal> {
    if asked.path != "chat/completions" || asked.body.get("tools").is_none() {
        return None;
    }
    refuse(
        400,
        "Function tools with reasoning_effort are not supported for house-gpt in /v1/chat/completions. To use function tools, use /v1/responses or set reasoning_effort to 'none'.",
    )
}

/// maximhq/bifrost#5410 has the reason; the words are those of this test.
fn nothing_stored(asked: &Asked<'_>) -> Option<Refusal> {
    if asked.path != "responses"
        || (asked.body["store"] == false && asked.body["include"] == json!(["reasoning.encrypted_content"]))
    {
        return None;
    }
    refuse(400, "the test wants nothing stored, and the reasoning encrypted")
}

/// Wei-Shaw/sub2api#3138 and coder/xum#59.
fn encrypted_reasoning(asked: &Asked<'_>) -> Option<Refusal> {
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

/// Roo-Code#12162 has the words.
fn anthropic_temperature(asked: &Asked<'_>) -> Option<Refusal> {
    asked.body.get("temperature")?;
    refuse(400, "`temperature` is deprecated for this model.")
}

fn anthropic_names(asked: &Asked<'_>) -> Option<Refusal> {
    let (at, _) = names(asked).find(|(_, name)| !is_word(name))?;
    refuse(
        400,
        &format!("messages.{at}.content.0.tool_use.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'"),
    )
}

/// anthropics/claude-code#45106.
fn anthropic_schema(asked: &Asked<'_>) -> Option<Refusal> {
    let is_union = |schema: &Value| ["oneOf", "anyOf", "allOf"].iter().any(|key| schema.get(*key).is_some());
    let at = parameters(asked).position(|(_, schema)| is_union(schema))?;
    refuse(
        400,
        &format!(
            "tools.{at}.custom.input_schema: input_schema does not support oneOf, allOf, or anyOf at the top level"
        ),
    )
}

fn filled_text(asked: &Asked<'_>) -> Option<Refusal> {
    let mut blocks = chat_messages(asked).flat_map(|(_, message)| list(&message["content"]));
    let is_empty = |block: &&Value| block["text"].as_str().is_some_and(|text| text.trim().is_empty());
    blocks.find(is_empty)?;
    refuse(400, "messages: text content blocks must be non-empty")
}

fn ends_with_user(asked: &Asked<'_>) -> Option<Refusal> {
    let (_, last) = chat_messages(asked).last()?;
    if last["role"] == "user" { None } else { refuse(400, "This model does not support assistant message prefill.") }
}

/// anomalyco/opencode#48637: what comes before a signed block is what came before it when it was made.
fn bound_thinking(asked: &Asked<'_>) -> Option<Refusal> {
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

/// janhq/jan#8136.
fn no_reasoning_content(asked: &Asked<'_>) -> Option<Refusal> {
    let (at, _) = chat_messages(asked).find(|(_, message)| message.get("reasoning_content").is_some())?;
    refuse(
        400,
        &format!(
            "'messages.{at}' : for 'role:assistant' the following must be satisfied[('messages.{at}' : property 'reasoning_content' is unsupported)]"
        ),
    )
}

/// BerriAI/litellm#30835.
fn mistral_fields(asked: &Asked<'_>) -> Option<Refusal> {
    let (at, _) = chat_messages(asked).find(|(_, message)| message.get("reasoning_content").is_some())?;
    let detail = json!({"type": "extra_forbidden", "loc": ["body", "messages", at, "assistant", "reasoning_content"], "msg": "Extra inputs are not permitted"});
    Some(Refusal { status: 422, body: json!({"detail": [detail]}).to_string() })
}

fn mistral_ids(asked: &Asked<'_>) -> Option<Refusal> {
    let ids = asked.items.iter().flat_map(|item| match item {
        Item::Reply(_, calls) => calls.iter().map(|(id, _)| id).collect(),
        _ => Vec::new(),
    });
    let id = ids.into_iter().find(|id| id.len() != 9 || !id.bytes().all(|byte| byte.is_ascii_alphanumeric()))?;
    refuse(400, &format!("Tool call id was {id} but must be a-z, A-Z, 0-9, with a length of 9."))
}

/// NousResearch/hermes-agent#20154.
fn mistral_order(asked: &Asked<'_>) -> Option<Refusal> {
    let is_wrong = |pair: &[Item]| matches!(pair, [Item::Result { .. }, Item::User(_)]);
    asked.items.windows(2).find(|pair| is_wrong(pair))?;
    let body = json!({"object": "error", "message": "Unexpected role 'user' after role 'tool'", "type": "invalid_request_message_order", "code": "3230"});
    Some(Refusal { status: 400, body: body.to_string() })
}

/// earendil-works/pi#3636: of each message with calls since the user's last one.
fn reasoning_passed_back(asked: &Asked<'_>) -> Option<Refusal> {
    let last = chat_messages(asked).filter(|(_, message)| message["role"] == "user").last().map_or(0, |(at, _)| at);
    calling(asked).find(|(at, message)| *at > last && !message["reasoning_content"].is_string())?;
    refuse(400, "The `reasoning_content` in the thinking mode must be passed back to the API.")
}

/// continuedev/continue#11711.
fn reasoning_not_missing(asked: &Asked<'_>) -> Option<Refusal> {
    let (at, _) = calling(asked).find(|(_, message)| !message["reasoning_content"].is_string())?;
    refuse(
        400,
        &format!("thinking is enabled but reasoning_content is missing in assistant tool call message at index {at}"),
    )
}

/// BerriAI/litellm#29687.
fn moonshot_temperature(asked: &Asked<'_>) -> Option<Refusal> {
    asked.body.get("temperature").filter(|given| **given != json!(1.0))?;
    refuse(400, "invalid temperature: only 1 is allowed for this model")
}

/// NousResearch/hermes-agent#66835 and MoonshotAI/kimi-cli#1595.
fn moonshot_schema(asked: &Asked<'_>) -> Option<Refusal> {
    let is_flavored = |schema: &Value| {
        let is_typed = |property: &Value| property["type"].is_string();
        schema["required"].is_array() && schema["properties"].as_object().is_some_and(|all| all.values().all(is_typed))
    };
    let (name, _) = parameters(asked).find(|(_, schema)| !is_flavored(schema))?;
    refuse(
        400,
        &format!("Invalid request: tools.function.parameters of {name} is not a valid moonshot flavored json schema"),
    )
}

/// securo-finance/securo#884.
fn signed_calls(asked: &Asked<'_>) -> Option<Refusal> {
    calling(asked)
        .find(|(_, message)| !message["tool_calls"][0]["extra_content"]["google"]["thought_signature"].is_string())?;
    let message = "Function call is missing a thought_signature in functionCall parts.";
    let body = json!([{"error": {"code": 400, "message": message, "status": "INVALID_ARGUMENT"}}]);
    Some(Refusal { status: 400, body: body.to_string() })
}

/// RooCodeInc/Roo-Code#10307.
fn kept_details(asked: &Asked<'_>) -> Option<Refusal> {
    let is_kept = |message: &Value| {
        let details = list(&message["reasoning_details"]);
        details.len() == 2 && asked.signed.contains_key(details[1]["data"].as_str().unwrap_or_default())
    };
    calling(asked).find(|(_, message)| !is_kept(message))?;
    let raw = "Gemini models require OpenRouter reasoning details to be preserved in each request.";
    let body = json!({"error": {"message": "Provider returned error", "code": 400, "metadata": {"raw": raw}}});
    Some(Refusal { status: 400, body: body.to_string() })
}

/// Qwen3, gpt-oss and others in llama.cpp b11549.
fn content_is_text(asked: &Asked<'_>) -> Option<Refusal> {
    chat_messages(asked).find(|(_, message)| message["content"].is_null())?;
    refuse(500, "Jinja Exception: can only concatenate str (not \"NoneType\") to str")
}

/// vllm-project/vllm#6862: results are part of the assistant's turn.
fn gemma_order(asked: &Asked<'_>) -> Option<Refusal> {
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

/// @huggingface/jinja 0.5.11 with Gemma's template.
fn typed_properties(asked: &Asked<'_>) -> Option<Refusal> {
    let is_untyped = |schema: &Value| {
        schema["properties"].as_object().is_some_and(|all| all.values().any(|one| !one["type"].is_string()))
    };
    parameters(asked).find(|(_, schema)| is_untyped(schema))?;
    refuse(400, "Cannot apply filter \"upper\" to type: UndefinedValue")
}

/// The template of Llama 3.x.
fn one_call_at_once(asked: &Asked<'_>) -> Option<Refusal> {
    calling(asked).find(|(_, message)| list(&message["tool_calls"]).len() > 1)?;
    refuse(400, "This model only supports single tool-calls at once!")
}

/// BigPizzaV3/CodexPlusPlus#267.
fn one_system_message(asked: &Asked<'_>) -> Option<Refusal> {
    let systems = asked.items.iter().filter(|item| matches!(item, Item::System(_))).count();
    if systems < 2 { None } else { refuse(400, "invalid params, invalid message role: system (2013)") }
}

fn no_stream_options(asked: &Asked<'_>) -> Option<Refusal> {
    asked.body.get("stream_options")?;
    let detail =
        json!({"type": "extra_forbidden", "loc": ["body", "stream_options"], "msg": "Extra inputs are not permitted"});
    Some(Refusal { status: 422, body: json!({"detail": [detail]}).to_string() })
}
