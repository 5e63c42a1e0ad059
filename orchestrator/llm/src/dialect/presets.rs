//! What is known of providers before they are asked, by host and by model. A start: refusals correct it. Pure.

use std::net::IpAddr;

use config::{
    CallIds, Dialect, EffortWords, EmptyContent, Field, MessageOrder, OpaqueBack, OpenAiWire, OutputLimit,
    ReasoningBack, SchemaSubset, SystemMessages,
};

/// The dialect of a model below a base URL of this host and path.
pub fn preset(host: &str, path: &str, model: &str) -> Dialect {
    // The name of a deployment says nothing of its model.
    if is_within(host, "azure.com") {
        let is_v1 = path.trim_end_matches('/').ends_with("/openai/v1");
        return Dialect {
            wire: is_v1.then_some(OpenAiWire::Responses),
            output_limit: Some(OutputLimit::MaxCompletionTokens),
            ..Dialect::default()
        };
    }
    let model = &own_name(model);
    let mut dialect = of_model(model).or(&of_host(host));
    dialect.effort = effort_words(host, model);
    // OpenAI's own: with tools these models answer there alone.
    if is_within(host, "openai.com") && reasons(model) {
        dialect.wire = Some(OpenAiWire::Responses);
        dialect.call_ids = Some(CallIds::Max64);
    }
    // Cerebras has documented this for GLM.
    if host == "api.cerebras.ai" && model.contains("glm") {
        dialect.reasoning_back = Some(ReasoningBack::ThinkText);
    }
    // Groq and Cerebras take the reasoning of these models back, and nothing of others.
    if model.starts_with("gpt-oss") && dialect.reasoning_back == Some(ReasoningBack::Never) {
        dialect.reasoning_back = None;
    }
    dialect
}

/// The dialect that the name of a model tells, wherever it is served.
pub(super) fn of_name(model: &str) -> Dialect {
    let model = own_name(model);
    Dialect { effort: effort_words("", &model), ..of_model(&model) }
}

/// Routers put the maker before the name.
fn own_name(model: &str) -> String {
    let model = model.to_ascii_lowercase();
    model.rsplit('/').next().unwrap_or_default().to_owned()
}

fn of_host(host: &str) -> Dialect {
    match host {
        _ if is_within(host, "openai.com") => Dialect {
            output_limit: Some(OutputLimit::MaxCompletionTokens),
            call_ids: Some(CallIds::Max40),
            schema: Some(SchemaSubset::NoTopUnion),
            ..Dialect::default()
        },
        "api.anthropic.com" => anthropic(),
        "generativelanguage.googleapis.com" => Dialect { opaque_back: Some(OpaqueBack::Placeholder), ..plain_schema() },
        "api.groq.com" | "api.cerebras.ai" => {
            Dialect { reasoning_back: Some(ReasoningBack::Never), ..Dialect::default() }
        }
        "api.deepseek.com" => Dialect { reasoning_back: Some(ReasoningBack::Always), ..Dialect::default() },
        "api.mistral.ai" => mistral(),
        "api.moonshot.ai" | "api.moonshot.cn" => {
            let (omit, always) = (Some(Field::Omit), Some(ReasoningBack::Always));
            Dialect { temperature: omit, reasoning_back: always, ..plain_schema() }
        }
        "api.minimax.io" | "api.minimax.chat" | "api.minimaxi.com" => {
            Dialect { system: Some(SystemMessages::OneFirst), ..plain_schema() }
        }
        _ if host.starts_with("dashscope") && host.ends_with(".aliyuncs.com") => {
            Dialect { empty_content: Some(EmptyContent::Text), ..Dialect::default() }
        }
        _ if host.ends_with("githubcopilot.com") => Dialect {
            output_limit: Some(OutputLimit::MaxCompletionTokens),
            call_ids: Some(CallIds::Max40),
            temperature: Some(Field::Omit),
            ..Dialect::default()
        },
        _ if is_local(host) => local(),
        _ => Dialect::default(),
    }
}

fn of_model(model: &str) -> Dialect {
    let is_of = |families: &[&str]| families.iter().any(|family| model.starts_with(family));
    match () {
        () if model.contains("claude") => Dialect { temperature: temperature_of_claude(model), ..anthropic() },
        () if is_of(&["mistral", "ministral", "devstral", "codestral", "magistral", "pixtral"]) => mistral(),
        () if is_of(&["gemma"]) => Dialect { order: Some(MessageOrder::Alternating), ..local() },
        () if is_of(&["llama-3", "llama3"]) => Dialect { one_call_per_message: Some(true), ..local() },
        () => Dialect { temperature: temperature_of_gpt(model), ..Dialect::default() },
    }
}

fn anthropic() -> Dialect {
    Dialect { call_ids: Some(CallIds::Max64), schema: Some(SchemaSubset::NoTopUnion), ..Dialect::default() }
}

fn mistral() -> Dialect {
    Dialect {
        output_limit: Some(OutputLimit::MaxTokens),
        order: Some(MessageOrder::TextInResults),
        // The templates of its models at other hosts take no null.
        empty_content: Some(EmptyContent::Text),
        call_ids: Some(CallIds::Nine),
        reasoning_back: Some(ReasoningBack::Never),
        ..Dialect::default()
    }
}

fn plain_schema() -> Dialect {
    Dialect { schema: Some(SchemaSubset::Plain), ..Dialect::default() }
}

/// Servers that run a model's chat template, which fails on what it does not expect.
fn local() -> Dialect {
    Dialect {
        empty_content: Some(EmptyContent::Text),
        system: Some(SystemMessages::OneFirst),
        order: Some(MessageOrder::TextInResults),
        ..plain_schema()
    }
}

fn is_within(host: &str, domain: &str) -> bool {
    host.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// Whether a host is this machine or of a private network.
fn is_local(host: &str) -> bool {
    match host.trim_matches(['[', ']']).parse() {
        Ok(IpAddr::V4(address)) => address.is_loopback() || address.is_private(),
        Ok(IpAddr::V6(address)) => address.is_loopback() || address.is_unique_local(),
        Err(_) => host == "localhost" || host.ends_with(".localhost") || !host.contains('.'),
    }
}

/// From these versions on a temperature is refused.
const CLAUDE_WITHOUT_TEMPERATURE: [(&str, (u32, u32)); 5] =
    [("opus", (4, 7)), ("sonnet", (5, 0)), ("haiku", (5, 5)), ("fable", (0, 0)), ("mythos", (0, 0))];

/// From these versions on the effort is taken.
const CLAUDE_WITH_EFFORT: [(&str, (u32, u32)); 5] =
    [("opus", (4, 5)), ("sonnet", (4, 6)), ("haiku", (5, 5)), ("fable", (0, 0)), ("mythos", (0, 0))];

fn temperature_of_claude(model: &str) -> Option<Field> {
    is_claude_of(model, &CLAUDE_WITHOUT_TEMPERATURE).then_some(Field::Omit)
}

/// Whether a model of Anthropic is one of these versions or later.
fn is_claude_of(model: &str, families: &[(&str, (u32, u32))]) -> bool {
    families.iter().any(|(family, first)| {
        let version = model.split_once(family).map(|(_, rest)| version(rest.trim_start_matches('-')));
        version.is_some_and(|version| version >= *first)
    })
}

/// The words of the models whose documentation has some.
fn effort_words(host: &str, model: &str) -> Option<EffortWords> {
    let of = |family: &str| model.strip_prefix(family).map(version);
    let takes_all = || {
        let is_grok = of("grok-").is_some_and(|version| match version {
            // 4.20 is older than 4.3.
            (4, minor) => (3..20).contains(&minor),
            (major, _) => major > 4,
        });
        let is_gemini = of("gemini-").is_some_and(|version| version >= (2, 5));
        let is_claude = model.contains("claude") && is_claude_of(model, &CLAUDE_WITH_EFFORT);
        reasons(model) || model.starts_with("gpt-oss") || is_grok || is_gemini || is_claude
    };
    let takes_two = || {
        let is_deepseek =
            ["deepseek-v4", "deepseek-flash", "deepseek-reasoner"].iter().any(|name| model.starts_with(name));
        is_deepseek || model.starts_with("grok-3-mini") || of("glm-").is_some_and(|version| version >= (5, 3))
    };
    match () {
        // What it passes on to which model is not documented.
        () if host.ends_with("githubcopilot.com") => None,
        () if takes_all() => Some(EffortWords::LowMediumHigh),
        () if takes_two() => Some(EffortWords::LowHigh),
        () => None,
    }
}

/// Whether a model of OpenAI reasons: GPT 5 and later, and the o-series.
fn reasons(model: &str) -> bool {
    is_o(model) || model.strip_prefix("gpt-").is_some_and(|rest| version(rest).0 >= 5)
}

fn is_o(model: &str) -> bool {
    model.strip_prefix('o').is_some_and(|rest| rest.starts_with(|char: char| char.is_ascii_digit()))
}

/// Models that reason unless they are told not to take no temperature: GPT 5, and 5.5 and later, and the o-series.
fn temperature_of_gpt(model: &str) -> Option<Field> {
    let reasons_unasked = |rest: &str| match version(rest) {
        (5, minor) => minor == 0 || minor >= 5,
        (major, _) => major > 5,
    };
    (is_o(model) || model.strip_prefix("gpt-").is_some_and(reasons_unasked)).then_some(Field::Omit)
}

/// The version that a name begins with: `4-7-20260115` and `4.7` are 4 and 7, `5-mini` and `5-20260115` 5 and 0.
fn version(name: &str) -> (u32, u32) {
    let mut numbers = name.split(['-', '.', '@', ':']).map(|part| part.parse::<u32>().ok().filter(|_| part.len() < 3));
    let major = numbers.next().flatten().unwrap_or_default();
    (major, numbers.next().flatten().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("gpt-4o", None)]
    #[case("gpt-4.1-mini", None)]
    #[case("gpt-5", Some(Field::Omit))]
    #[case("gpt-5-mini-2025-08-07", Some(Field::Omit))]
    #[case("gpt-5.1", None)]
    #[case("gpt-5.4-mini", None)]
    #[case("gpt-5.5", Some(Field::Omit))]
    #[case("gpt-5.6-terra", Some(Field::Omit))]
    #[case("gpt-6-astra", Some(Field::Omit))]
    #[case("o3", Some(Field::Omit))]
    #[case("o4-mini", Some(Field::Omit))]
    #[case("gpt-oss-120b", None)]
    #[case("claude-3-5-sonnet-20241022", None)]
    #[case("claude-opus-4-6", None)]
    #[case("claude-opus-4-20250514", None)]
    #[case("claude-opus-4-7", Some(Field::Omit))]
    #[case("claude-opus-4-7-20260401", Some(Field::Omit))]
    #[case("claude-sonnet-4-6", None)]
    #[case("claude-sonnet-5", Some(Field::Omit))]
    #[case("anthropic/claude-sonnet-5.5", Some(Field::Omit))]
    #[case("claude-haiku-4-5", None)]
    #[case("claude-haiku-5-5", Some(Field::Omit))]
    #[case("claude-fable-5-1", Some(Field::Omit))]
    #[case("us.anthropic.claude-opus-5-v1:0", Some(Field::Omit))]
    #[case("llama-3.3-70b", None)]
    fn models_that_refuse_a_temperature(#[case] model: &str, #[case] expected: Option<Field>) {
        assert_eq!(preset("openrouter.ai", "/v1", model).temperature, expected);
        assert_eq!(preset("house.openai.azure.com", "/v1", model).temperature, None, "the name of a deployment");
    }

    #[rstest]
    #[case("api.openai.com", "gpt-4.1", None)]
    #[case("api.openai.com", "gpt-5.6-terra", Some(EffortWords::LowMediumHigh))]
    #[case("api.openai.com", "o4-mini", Some(EffortWords::LowMediumHigh))]
    #[case("openrouter.ai", "openai/gpt-6-astra", Some(EffortWords::LowMediumHigh))]
    #[case("house.openai.azure.com", "gpt-5.6", None)]
    #[case("api.githubcopilot.com", "gpt-5.6", None)]
    #[case("api.anthropic.com", "claude-opus-4-5-20251101", Some(EffortWords::LowMediumHigh))]
    #[case("api.anthropic.com", "claude-sonnet-4-5", None)]
    #[case("api.anthropic.com", "claude-sonnet-4-6", Some(EffortWords::LowMediumHigh))]
    #[case("api.anthropic.com", "claude-haiku-4-5", None)]
    #[case("api.anthropic.com", "claude-fable-5-1", Some(EffortWords::LowMediumHigh))]
    #[case("api.anthropic.com", "claude-3-5-sonnet-20241022", None)]
    #[case("generativelanguage.googleapis.com", "gemini-2.0-flash", None)]
    #[case("generativelanguage.googleapis.com", "gemini-3-pro-preview", Some(EffortWords::LowMediumHigh))]
    #[case("api.x.ai", "grok-4-0709", None)]
    #[case("api.x.ai", "grok-4.20-0309-reasoning", None)]
    #[case("api.x.ai", "grok-4.3", Some(EffortWords::LowMediumHigh))]
    #[case("api.x.ai", "grok-3-mini", Some(EffortWords::LowHigh))]
    #[case("api.groq.com", "openai/gpt-oss-120b", Some(EffortWords::LowMediumHigh))]
    #[case("api.groq.com", "llama-3.3-70b-versatile", None)]
    #[case("api.z.ai", "glm-5.3", Some(EffortWords::LowHigh))]
    #[case("api.z.ai", "glm-4.7", None)]
    #[case("api.deepseek.com", "deepseek-v4-pro", Some(EffortWords::LowHigh))]
    #[case("api.mistral.ai", "magistral-medium", None)]
    #[case("api.moonshot.ai", "kimi-k2.5", None)]
    #[case("127.0.0.1", "qwen3", None)]
    fn models_that_have_words_for_an_effort(
        #[case] host: &str,
        #[case] model: &str,
        #[case] expected: Option<EffortWords>,
    ) {
        assert_eq!(preset(host, "/v1", model).effort, expected);
    }

    #[rstest]
    #[case("127.0.0.1", true)]
    #[case("[::1]", true)]
    #[case("192.168.1.20", true)]
    #[case("ollama", true)]
    #[case("8.8.8.8", false)]
    #[case("api.x.ai", false)]
    fn local_servers_run_templates(#[case] host: &str, #[case] expected: bool) {
        assert_eq!(preset(host, "/v1", "qwen3") != Dialect::default(), expected);
    }

    #[test]
    fn a_model_has_its_dialect_wherever_it_is_served() {
        let dialect = preset("api.groq.com", "/v1", "mistralai/devstral-small");
        assert_eq!((dialect.order, dialect.call_ids), (Some(MessageOrder::TextInResults), Some(CallIds::Nine)));
        let dialect = preset("127.0.0.1", "/v1", "gemma3:12b");
        assert_eq!((dialect.order, dialect.schema), (Some(MessageOrder::Alternating), Some(SchemaSubset::Plain)));
        assert_eq!(preset("api.openai.com", "/v1", "gpt-4.1").output_limit, Some(OutputLimit::MaxCompletionTokens));
    }

    #[rstest]
    #[case("api.openai.com", "/v1", "gpt-4.1", None)]
    #[case("api.openai.com", "/v1", "gpt-5.6-terra", Some(OpenAiWire::Responses))]
    #[case("eu.api.openai.com", "/v1", "o4-mini", Some(OpenAiWire::Responses))]
    #[case("openrouter.ai", "/api/v1", "openai/gpt-5.6", None)]
    #[case("house.openai.azure.com", "/openai/v1/", "whatever", Some(OpenAiWire::Responses))]
    #[case("house.openai.azure.com", "/openai/deployments/x", "gpt-5.6", None)]
    fn models_that_answer_in_the_format_of_responses(
        #[case] host: &str,
        #[case] path: &str,
        #[case] model: &str,
        #[case] expected: Option<OpenAiWire>,
    ) {
        assert_eq!(preset(host, path, model).wire, expected);
    }

    #[test]
    fn reasoning_goes_back_where_it_is_taken() {
        let back = |host, model| preset(host, "/v1", model).reasoning_back;
        assert_eq!(back("api.groq.com", "qwen/qwen3-32b"), Some(ReasoningBack::Never));
        assert_eq!(back("api.groq.com", "openai/gpt-oss-120b"), None);
        assert_eq!(back("api.cerebras.ai", "zai-glm-4.7"), Some(ReasoningBack::ThinkText));
        assert_eq!(back("api.mistral.ai", "magistral-medium"), Some(ReasoningBack::Never));
        assert_eq!(back("api.deepseek.com", "deepseek-reasoner"), Some(ReasoningBack::Always));
        assert_eq!(back("api.x.ai", "grok-4.3"), None);
    }
}
