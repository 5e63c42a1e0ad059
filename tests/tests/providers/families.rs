//! The families of providers: how each answers and what it refuses. Refuses nothing itself: the checks are in `refusals`.

use crate::{
    refusals::{
        Check,
        anthropic::{
            anthropic_names, anthropic_schema, anthropic_temperature, bound_thinking, ends_with_user, filled_text,
        },
        hosts::{
            copilot_max_tokens, kept_details, litellm_temperature, litellm_tools, mistral_fields, mistral_ids,
            mistral_order, moonshot_schema, moonshot_temperature, no_reasoning_content, one_system_message,
            reasoning_not_missing, reasoning_passed_back, signed_calls, xai_parameters, zai_rate,
        },
        only_chat,
        openai::{
            array_items, azure_chat_alone, encrypted_reasoning, known_fields, no_max_tokens, no_temperature,
            no_tools_at_chat, nothing_stored, openai_ids, openai_names,
        },
        paired,
        servers::{
            arguments_are_objects, content_is_text, gemma_order, no_stream_options, one_call_at_once,
            results_follow_calls, typed_properties,
        },
    },
    wires::Reasoning,
};

/// A family of providers.
pub(crate) struct Family {
    pub(crate) name: &'static str,
    /// As `llm.provider` names it.
    pub(crate) kind: &'static str,
    pub(crate) model: &'static str,
    /// Of its base URL.
    pub(crate) path: &'static str,
    /// Whether its address is one of this machine.
    pub(crate) is_local: bool,
    /// The real one, if presets know something of it.
    pub(crate) real: Option<Real>,
    pub(crate) reasoning: Reasoning,
    /// The id of a call: how many there were, and the tool.
    pub(crate) call_id: fn(usize, &str) -> String,
    pub(crate) checks: &'static [Check],
}

/// What the preset of a family goes by.
pub(crate) struct Real {
    pub(crate) host: &'static str,
    pub(crate) path: &'static str,
    pub(crate) model: &'static str,
    /// Refusals from which the rest is learned, where the name of the model says nothing.
    pub(crate) lessons: usize,
}

const fn real(host: &'static str, path: &'static str, model: &'static str) -> Real {
    Real { host, path, model, lessons: 0 }
}

const ANY_ID: fn(usize, &str) -> String = |number, _| format!("call_{number:024}");

const OLD_OPENAI: Family = Family {
    name: "openai, chat",
    kind: "openai",
    model: "gpt-4.1",
    path: "/v1",
    is_local: false,
    real: Some(real("api.openai.com", "/v1", "gpt-4.1")),
    reasoning: Reasoning::None,
    call_id: ANY_ID,
    checks: &[only_chat, known_fields, paired, openai_names, openai_ids, array_items],
};
const REASONING_OPENAI: Family = Family {
    name: "openai, a model that reasons",
    kind: "openai",
    model: "house-gpt",
    path: "/v1",
    is_local: false,
    real: Some(real("api.openai.com", "/v1", "gpt-5.6-terra")),
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
    path: "/v1",
    is_local: false,
    real: Some(real("api.anthropic.com", "/v1", "claude-opus-5-5")),
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
    real: Some(real("api.groq.com", "/openai/v1", "qwen/qwen3-32b")),
    reasoning: Reasoning::Field("reasoning"),
    checks: &[only_chat, paired, no_reasoning_content],
    ..OLD_OPENAI
};
const CEREBRAS: Family = Family {
    name: "cerebras",
    real: Some(real("api.cerebras.ai", "/v1", "zai-glm-4.7")),
    reasoning: Reasoning::Field("reasoning_content"),
    checks: &[only_chat, paired, no_reasoning_content],
    ..OLD_OPENAI
};
const MISTRAL: Family = Family {
    name: "mistral",
    model: "house-large",
    real: Some(real("api.mistral.ai", "/v1", "mistral-large-latest")),
    reasoning: Reasoning::Field("reasoning_content"),
    call_id: |number, _| format!("c{number:08}"),
    checks: &[only_chat, paired, mistral_fields, mistral_ids, mistral_order],
    ..OLD_OPENAI
};
const DEEPSEEK: Family = Family {
    name: "deepseek",
    model: "house-reasoner",
    real: Some(real("api.deepseek.com", "/v1", "deepseek-v4-pro")),
    reasoning: Reasoning::None,
    checks: &[only_chat, paired, reasoning_passed_back],
    ..OLD_OPENAI
};
const MOONSHOT: Family = Family {
    name: "moonshot",
    model: "house-k3",
    real: Some(real("api.moonshot.ai", "/v1", "kimi-k3")),
    reasoning: Reasoning::Field("reasoning_content"),
    call_id: |number, name| format!("functions.{name}:{number}"),
    checks: &[only_chat, paired, moonshot_temperature, moonshot_schema, reasoning_not_missing],
    ..OLD_OPENAI
};
const GEMINI: Family = Family {
    name: "gemini",
    model: "house-flash",
    real: Some(real("generativelanguage.googleapis.com", "/v1beta/openai", "gemini-3-pro-preview")),
    reasoning: Reasoning::CallSignature,
    checks: &[only_chat, paired, signed_calls],
    ..OLD_OPENAI
};
const OPENROUTER_GEMINI: Family = Family {
    name: "openrouter, gemini",
    model: "google/house-flash",
    real: Some(real("openrouter.ai", "/api/v1", "google/gemini-3-pro-preview")),
    reasoning: Reasoning::Details,
    call_id: |number, name| format!("tool_{number:020}_{name}"),
    checks: &[only_chat, paired, kept_details],
    ..OLD_OPENAI
};
const GEMMA: Family = Family {
    name: "gemma's template",
    model: "house-3",
    real: Some(real("127.0.0.1", "/v1", "gemma3:12b")),
    reasoning: Reasoning::None,
    checks: &[only_chat, content_is_text, gemma_order, typed_properties],
    ..OLD_OPENAI
};
const LLAMA: Family = Family {
    name: "llama's template",
    model: "house-3.3",
    real: Some(real("127.0.0.1", "/v1", "llama-3.3-70b-instruct")),
    reasoning: Reasoning::None,
    checks: &[only_chat, paired, one_call_at_once],
    ..OLD_OPENAI
};
const MINIMAX: Family = Family {
    name: "minimax",
    model: "house-m2",
    real: Some(real("api.minimax.io", "/v1", "MiniMax-M2")),
    reasoning: Reasoning::None,
    checks: &[only_chat, paired, one_system_message],
    ..OLD_OPENAI
};
const PLAIN: Family = Family {
    name: "a server that knows few fields",
    model: "house",
    real: None,
    reasoning: Reasoning::None,
    checks: &[only_chat, paired, no_stream_options],
    ..OLD_OPENAI
};
/// What the templates of different models refuse, all at once: any of them may be behind a local address.
const LOCAL: Family = Family {
    name: "a local server",
    model: "house",
    is_local: true,
    real: Some(real("127.0.0.1", "/v1", "qwen3")),
    reasoning: Reasoning::None,
    checks: &[only_chat, content_is_text, typed_properties, one_system_message],
    ..OLD_OPENAI
};
const OLLAMA: Family = Family {
    name: "ollama",
    kind: "ollama",
    model: "house",
    path: "",
    is_local: true,
    real: Some(real("127.0.0.1", "", "qwen3")),
    reasoning: Reasoning::None,
    call_id: ANY_ID,
    checks: &[results_follow_calls, arguments_are_objects, content_is_text],
};

/// A deployment at Azure has any name, of which nothing can be concluded.
const AZURE: Family = Family {
    name: "azure",
    model: "our-deployment",
    path: "/openai/v1",
    real: Some(Real { host: "house.openai.azure.com", path: "/openai/v1", model: "our-deployment", lessons: 1 }),
    ..REASONING_OPENAI
};
const XAI: Family = Family {
    name: "xai",
    model: "grok-5-house",
    real: Some(real("api.x.ai", "/v1", "grok-4.3")),
    reasoning: Reasoning::Field("reasoning_content"),
    checks: &[only_chat, paired, xai_parameters],
    ..OLD_OPENAI
};
const ZAI: Family = Family {
    name: "z.ai",
    model: "glm-5.3",
    path: "/api/paas/v4",
    real: None,
    reasoning: Reasoning::Field("reasoning_content"),
    checks: &[only_chat, paired, zai_rate],
    ..OLD_OPENAI
};
const LITELLM: Family = Family {
    name: "litellm",
    model: "house-proxy",
    real: None,
    checks: &[only_chat, paired, litellm_temperature, litellm_tools],
    ..OLD_OPENAI
};

/// Those of which everything can be learned.
pub(crate) static FAMILIES: [Family; 20] = [
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
    AZURE,
    XAI,
    ZAI,
    LITELLM,
];

/// Nothing can be learned of its refusal.
pub(crate) static COPILOT: Family = Family {
    name: "copilot",
    model: "house-gpt",
    path: "",
    real: Some(real("api.githubcopilot.com", "", "gpt-5.4")),
    // BerriAI/litellm#17343 has the length of ids.
    checks: &[only_chat, paired, copilot_max_tokens, openai_ids],
    ..OLD_OPENAI
};

/// A deployment of a model that thinks, where Azure has no responses.
pub(crate) static AZURE_CHAT_ALONE: Family = Family {
    name: "azure, chat alone",
    model: "our-deployment",
    path: "/openai/v1",
    real: None,
    checks: &[azure_chat_alone, paired, no_max_tokens, no_temperature, no_tools_at_chat],
    ..OLD_OPENAI
};

pub(crate) fn family(name: &str) -> &'static Family {
    FAMILIES.iter().find(|family| family.name == name).unwrap_or_else(|| panic!("no family {name}"))
}
