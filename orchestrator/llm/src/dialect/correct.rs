//! What a refusal says about a provider's dialect: a table of words, each from a server's documentation or a report of its
//! users. Pure.

mod output_limit;

use config::{
    CallIds, Dialect, EffortWords, EmptyContent, Field, MessageOrder, OpaqueBack, OpenAiWire, ReasoningBack,
    SchemaSubset, SystemMessages,
};

use self::output_limit::{leading_number, max_output_tokens, output_limit, rest_of_context, smaller_answer};
use crate::provider::error_body::{is_model_mistake, said};

/// A request that was refused.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Refusal<'a> {
    pub(crate) status: u16,
    /// The body of the answer.
    pub(crate) text: &'a str,
    /// The output limit of the request.
    pub(crate) max_output_tokens: u64,
    /// Whether the request says how much the model thinks.
    pub(crate) has_effort: bool,
    /// Whether the request has a reply in its provider's own form.
    pub(crate) has_native: bool,
    /// The names of the tools in the request, in their order.
    pub(crate) tools: &'a [&'a str],
}

/// A property as the provider takes it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Correction {
    pub(super) dialect: Dialect,
    /// It says nothing of other calls: a credit that is nearly used up, a prompt of this length, what one conversation has
    /// that is not valid.
    pub(super) is_of_this_call: bool,
}

impl Correction {
    fn of_this_call(dialect: Dialect) -> Self {
        Self { dialect, is_of_this_call: true }
    }
}

/// The properties that the refusal may be about, as the provider takes them, the likeliest first. None that the request had
/// so.
pub(super) fn correct(dialect: &Dialect, refusal: &Refusal<'_>) -> Vec<Correction> {
    let text = said(refusal.text).to_lowercase();
    match refusal.status {
        // The model's mistake, not the request's; the text quotes what the model wrote.
        _ if is_model_mistake(&text) => Vec::new(),
        // Proxies and servers with chat templates report what they do not take as their own failure.
        400 | 422 | 500 | 502 => {
            let rows = [wire, output_limit, reasoning, fields, messages, call_ids, schema, max_output_tokens];
            let corrections = rows.into_iter().filter_map(|row| row(dialect, refusal, &text)).map(|dialect| {
                let is_of_this_call = is_of_this_call(&dialect, refusal);
                Correction { dialect, is_of_this_call }
            });
            let rest = rest_of_context(dialect, refusal, &text).map(Correction::of_this_call);
            corrections.chain(rest).collect()
        }
        402 | 413 | 429 => smaller_answer(dialect, refusal, &text).map(Correction::of_this_call).into_iter().collect(),
        // Azure: a deployment that does not answer in this format.
        404 | 405 if dialect.wire == Some(OpenAiWire::Responses) => {
            let dialect = Dialect { wire: Some(OpenAiWire::Chat), ..Dialect::default() };
            vec![Correction { dialect, is_of_this_call: false }]
        }
        _ => Vec::new(),
    }
}

/// Tools are remembered by their definitions.
fn is_of_this_call(corrected: &Dialect, refusal: &Refusal<'_>) -> bool {
    corrected.left_out_tools.is_some() || (corrected.opaque_back == Some(OpaqueBack::Never) && refusal.has_native)
}

/// Words for a field that is not taken.
const NOT_TAKEN: [&str; 12] = [
    "unsupported",
    "not support",
    "deprecated",
    "only",
    "not allowed",
    "not permitted",
    "extra",
    "unknown",
    "unrecognized",
    "unexpected",
    "not available",
    "cannot be used",
];

fn has_any(text: &str, words: &[&str]) -> bool {
    words.iter().any(|word| text.contains(word))
}

fn is_not_taken(text: &str, field: &str) -> bool {
    text.contains(field) && has_any(text, &NOT_TAKEN)
}

/// One property as it should be.
type Row = Option<Dialect>;

fn wire(dialect: &Dialect, _refusal: &Refusal<'_>, text: &str) -> Row {
    let is_chat = dialect.wire.unwrap_or_default() == OpenAiWire::Chat;
    let other = match () {
        () if is_chat && text.contains("v1/responses") => OpenAiWire::Responses,
        () if !is_chat && text.contains("v1/chat/completions") => OpenAiWire::Chat,
        () => return None,
    };
    Some(Dialect { wire: Some(other), ..Dialect::default() })
}

fn reasoning(dialect: &Dialect, _refusal: &Refusal<'_>, text: &str) -> Row {
    let back = dialect.reasoning_back.unwrap_or_default();
    let wanted = match () {
        () if has_any(text, &["must be passed back", "is missing in assistant"]) => Some(ReasoningBack::Always),
        () if has_any(text, &["reasoning_content", "'reasoning'", "\"reasoning\"", "reasoning_details"])
            && has_any(text, &NOT_TAKEN) =>
        {
            Some(ReasoningBack::Never)
        }
        () => None,
    };
    if let Some(wanted) = wanted.filter(|wanted| *wanted != back) {
        return Some(Dialect { reasoning_back: Some(wanted), ..Dialect::default() });
    }
    let is_of_thinking = text.contains("signature") && text.contains("thinking");
    let wanted = match () {
        () if has_any(
            text,
            &["missing a thought_signature", "missing a `thought_signature`", "thought_signature is missing"],
        ) =>
        {
            OpaqueBack::Placeholder
        }
        () if is_of_thinking || has_any(text, &OPAQUE) => OpaqueBack::Never,
        () => return None,
    };
    (dialect.opaque_back.unwrap_or_default() != wanted)
        .then(|| Dialect { opaque_back: Some(wanted), ..Dialect::default() })
}

/// What is signed or encrypted is not valid here: Anthropic, and OpenAI's responses.
const OPAQUE: [&str; 6] = [
    "bound to a different conversation",
    "thinking blocks in the latest assistant message cannot be modified",
    "invalid_encrypted_content",
    "encrypted content is not supported",
    "item with id 'rs_",
    "provided without its required",
];

/// The names of the field that says how much the model thinks.
const EFFORT: [&str; 5] =
    ["reasoning_effort", "reasoningeffort", "reasoning.effort", "output_config", "effort parameter"];

fn fields(dialect: &Dialect, refusal: &Refusal<'_>, text: &str) -> Row {
    let omit = Some(Field::Omit);
    if dialect.temperature != omit && is_not_taken(text, "temperature") {
        return Some(Dialect { temperature: omit, ..Dialect::default() });
    }
    if text.contains("reasoning_effort to 'none'") && dialect.effort != Some(EffortWords::None) {
        return Some(Dialect { effort: Some(EffortWords::None), ..Dialect::default() });
    }
    if refusal.has_effort && has_any(text, &EFFORT) {
        return Some(Dialect { effort: Some(EffortWords::Omit), ..Dialect::default() });
    }
    if dialect.stream_options != omit && text.contains("stream_options") {
        return Some(Dialect { stream_options: omit, ..Dialect::default() });
    }
    if dialect.parallel_tool_calls != omit && text.contains("parallel_tool_calls") {
        return Some(Dialect { parallel_tool_calls: omit, ..Dialect::default() });
    }
    if dialect.tool_choice != omit && text.contains("tool_choice") {
        return Some(Dialect { tool_choice: omit, ..Dialect::default() });
    }
    None
}

fn messages(dialect: &Dialect, _refusal: &Refusal<'_>, text: &str) -> Row {
    let order = dialect.order.unwrap_or_default();
    if order != MessageOrder::Alternating && has_any(text, &["roles must alternate", "function call turn comes"]) {
        return Some(Dialect { order: Some(MessageOrder::Alternating), ..Dialect::default() });
    }
    if order == MessageOrder::Free
        && has_any(text, &["after role 'tool'", "after role \\\"tool\\\"", "after role tool"])
    {
        return Some(Dialect { order: Some(MessageOrder::TextInResults), ..Dialect::default() });
    }
    let system = dialect.system.unwrap_or_default();
    if system != SystemMessages::InUserMessage
        && has_any(text, &["system role not supported", "system role is not supported"])
    {
        return Some(Dialect { system: Some(SystemMessages::InUserMessage), ..Dialect::default() });
    }
    if system == SystemMessages::InPlace
        && has_any(
            text,
            &[
                "invalid message role: system",
                // MiniMax (can1357/oh-my-pi#954).
                "invalid chat setting",
                "system message must be at the beginning",
                "system message must be the first",
            ],
        )
    {
        return Some(Dialect { system: Some(SystemMessages::OneFirst), ..Dialect::default() });
    }
    let is_about_null = has_any(text, &["nonetype", "null value", "none has no", "'none'"])
        || (text.contains("content")
            && has_any(text, &["must be a string", "should be a valid string", "expected string"]));
    if dialect.empty_content != Some(EmptyContent::Text) && is_about_null {
        return Some(Dialect { empty_content: Some(EmptyContent::Text), ..Dialect::default() });
    }
    if dialect.one_call_per_message != Some(true) && has_any(text, &["single tool-call", "single tool call"]) {
        return Some(Dialect { one_call_per_message: Some(true), ..Dialect::default() });
    }
    None
}

fn call_ids(dialect: &Dialect, _refusal: &Refusal<'_>, text: &str) -> Row {
    let is_about = has_any(text, &["tool_use.id", "tool_use_id", "tool_call_id", "tool call id", "call_id", "].id"]);
    let wanted = match () {
        () if !is_about => return None,
        () if text.contains("length of 9") => CallIds::Nine,
        () if text.contains("maximum length 40") => CallIds::Max40,
        () if text.contains("maximum length 64") || has_any(text, &["match pattern", "string should match"]) => {
            CallIds::Max64
        }
        () => return None,
    };
    (dialect.call_ids != Some(wanted)).then(|| Dialect { call_ids: Some(wanted), ..Dialect::default() })
}

fn schema(dialect: &Dialect, refusal: &Refusal<'_>, text: &str) -> Row {
    let is_about = has_any(
        text,
        &[
            "at the top level",
            "invalid schema for function",
            "moonshot flavored",
            "schema error",
            "invalid_function_parameters",
            "failed to parse grammar",
            "generate parser",
            "filter \"upper\"",
            "filter \\\"upper\\\"",
            "input_schema",
            "array schema missing items",
        ],
    );
    let known = dialect.schema.unwrap_or_default();
    match known {
        _ if !is_about => None,
        SchemaSubset::Full if text.contains("at the top level") => {
            Some(Dialect { schema: Some(SchemaSubset::NoTopUnion), ..Dialect::default() })
        }
        SchemaSubset::Full | SchemaSubset::NoTopUnion => {
            Some(Dialect { schema: Some(SchemaSubset::Plain), ..Dialect::default() })
        }
        SchemaSubset::Plain => {
            let mut names = dialect.left_out_tools.clone().unwrap_or_default();
            names.push(named_tool(refusal.tools, refusal.text)?.to_owned());
            Some(Dialect { left_out_tools: Some(names), ..Dialect::default() })
        }
    }
}

/// The tool whose definition a refusal names, by its place or its name.
fn named_tool<'a>(tools: &[&'a str], text: &str) -> Option<&'a str> {
    let place = ["tools.", "tools["]
        .into_iter()
        .find_map(|prefix| text.match_indices(prefix).find_map(|(at, _)| leading_number(&text[at + prefix.len()..])));
    let by_place = place.and_then(|place| tools.get(usize::try_from(place).ok()?)).copied();
    by_place.or_else(|| {
        let quoted = |name: &str| {
            [format!("function '{name}'"), format!("function \"{name}\""), format!("function \\\"{name}\\\"")]
        };
        tools.iter().copied().find(|name| quoted(name).iter().any(|quoted| text.contains(quoted.as_str())))
    })
}

#[cfg(test)]
mod tests {
    use config::OutputLimit;
    use rstest::rstest;

    use super::*;

    pub(super) fn corrected(known: &Dialect, status: u16, text: &str) -> Option<Dialect> {
        let tools = ["weather", "notion__update"];
        let max_output_tokens = known.max_output_tokens.unwrap_or(16_384);
        let has_effort = known.effort.is_some_and(|words| words != EffortWords::Omit);
        let refusal = Refusal { status, text, max_output_tokens, has_effort, has_native: false, tools: &tools };
        correct(known, &refusal).into_iter().next().map(|correction| correction.dialect)
    }

    /// A refusal by a provider that was asked with the default dialect.
    #[rstest]
    // openai/openai-python#1969 and each reasoning model since.
    #[case(400, "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
        Dialect { output_limit: Some(OutputLimit::MaxCompletionTokens), ..Dialect::default() })]
    #[case(400, "Unsupported value: 'temperature' does not support 0.3 with this model. Only the default (1) value is supported.",
        Dialect { temperature: Some(Field::Omit), ..Dialect::default() })]
    #[case(400, "`temperature` is deprecated for this model.", Dialect { temperature: Some(Field::Omit), ..Dialect::default() })]
    // BerriAI/litellm#29687.
    #[case(400, "invalid temperature: only 1 is allowed for this model",
        Dialect { temperature: Some(Field::Omit), ..Dialect::default() })]
    // NousResearch/hermes-agent#20154.
    #[case(400, r#"{"object":"error","message":"Unexpected role 'user' after role 'tool'","code":"3230"}"#,
        Dialect { order: Some(MessageOrder::TextInResults), ..Dialect::default() })]
    // vllm-project/vllm#6862, and as a 500 by llama.cpp.
    #[case(500, "After the optional system message, conversation roles must alternate user and assistant roles except for tool calls and results.",
        Dialect { order: Some(MessageOrder::Alternating), ..Dialect::default() })]
    #[case(400, "Tool call id was call_AbCd but must be a-z, A-Z, 0-9, with a length of 9.",
        Dialect { call_ids: Some(CallIds::Nine), ..Dialect::default() })]
    #[case(400, "messages.1.content.0.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'",
        Dialect { call_ids: Some(CallIds::Max64), ..Dialect::default() })]
    // vercel/ai#5171.
    #[case(400, "Invalid 'messages[2].tool_calls[0].id': string too long. Expected a string with maximum length 40, but got a string with length 53 instead.",
        Dialect { call_ids: Some(CallIds::Max40), ..Dialect::default() })]
    // anthropics/claude-code#45106.
    #[case(400, "tools.17.custom.input_schema: input_schema does not support oneOf, allOf, or anyOf at the top level",
        Dialect { schema: Some(SchemaSubset::NoTopUnion), ..Dialect::default() })]
    // apify/apify-mcp-server#36.
    #[case(400, "Invalid schema for function 'weather': In context=('properties', 'x'), array schema missing items.",
        Dialect { schema: Some(SchemaSubset::Plain), ..Dialect::default() })]
    // MoonshotAI/kimi-cli#1595.
    #[case(400, "Invalid request: tools.function.parameters is not a valid moonshot flavored json schema",
        Dialect { schema: Some(SchemaSubset::Plain), ..Dialect::default() })]
    // ggml-org/llama.cpp, b11549.
    #[case(500, "JSON schema error at /properties/x: schema must be an object",
        Dialect { schema: Some(SchemaSubset::Plain), ..Dialect::default() })]
    #[case(400, "Unable to generate parser for this template. Automatic parser generation failed",
        Dialect { schema: Some(SchemaSubset::Plain), ..Dialect::default() })]
    #[case(400, "Cannot apply filter \"upper\" to type: UndefinedValue",
        Dialect { schema: Some(SchemaSubset::Plain), ..Dialect::default() })]
    #[case(400, "This model only supports single tool-calls at once!",
        Dialect { one_call_per_message: Some(true), ..Dialect::default() })]
    // laurent22/joplin#16451.
    #[case(400, "Function tools with reasoning_effort are not supported for gpt-5.6-terra in /v1/chat/completions. To use function tools, use /v1/responses or set reasoning_effort to 'none'.",
        Dialect { wire: Some(OpenAiWire::Responses), ..Dialect::default() })]
    // janhq/jan#8136.
    #[case(400, "'messages.2' : for 'role:assistant' the following must be satisfied[('messages.2' : property 'reasoning_content' is unsupported)]",
        Dialect { reasoning_back: Some(ReasoningBack::Never), ..Dialect::default() })]
    // BerriAI/litellm#30835.
    #[case(422, r#"{"detail":[{"type":"extra_forbidden","loc":["body","messages",2,"assistant","reasoning_content"],"msg":"Extra inputs are not permitted"}]}"#,
        Dialect { reasoning_back: Some(ReasoningBack::Never), ..Dialect::default() })]
    // earendil-works/pi#3636.
    #[case(400, "The `reasoning_content` in the thinking mode must be passed back to the API.",
        Dialect { reasoning_back: Some(ReasoningBack::Always), ..Dialect::default() })]
    // continuedev/continue#11711.
    #[case(400, "thinking is enabled but reasoning_content is missing in assistant tool call message at index 2",
        Dialect { reasoning_back: Some(ReasoningBack::Always), ..Dialect::default() })]
    // anomalyco/opencode#48637.
    #[case(400, "messages.1.content.0: Invalid signature in thinking block. The block is bound to a different conversation",
        Dialect { opaque_back: Some(OpaqueBack::Never), ..Dialect::default() })]
    // Wei-Shaw/sub2api#3138.
    #[case(400, r#"{"error":{"code":"invalid_encrypted_content","message":"The encrypted content could not be verified."}}"#,
        Dialect { opaque_back: Some(OpaqueBack::Never), ..Dialect::default() })]
    // securo-finance/securo#884.
    #[case(400, "Function call is missing a thought_signature in functionCall parts.",
        Dialect { opaque_back: Some(OpaqueBack::Placeholder), ..Dialect::default() })]
    #[case(400, "System role not supported", Dialect { system: Some(SystemMessages::InUserMessage), ..Dialect::default() })]
    // BigPizzaV3/CodexPlusPlus#267.
    #[case(400, "invalid params, invalid message role: system (2013)",
        Dialect { system: Some(SystemMessages::OneFirst), ..Dialect::default() })]
    #[case(500, "Jinja Exception: can only concatenate str (not \"NoneType\") to str",
        Dialect { empty_content: Some(EmptyContent::Text), ..Dialect::default() })]
    #[case(422, r#"{"detail":[{"type":"extra_forbidden","loc":["body","stream_options"],"msg":"Extra inputs are not permitted"}]}"#,
        Dialect { stream_options: Some(Field::Omit), ..Dialect::default() })]
    #[case(400, "max_tokens is too large: 16384. This model supports at most 4096 completion tokens.",
        Dialect { max_output_tokens: Some(4_096), ..Dialect::default() })]
    #[case(400, "Range of max_tokens should be [1, 8192]", Dialect { max_output_tokens: Some(8_192), ..Dialect::default() })]
    #[case(400, "max_tokens: 16384 > 8192, which is the maximum allowed number of output tokens for claude-3-5-haiku",
        Dialect { max_output_tokens: Some(8_192), ..Dialect::default() })]
    // can1357/oh-my-pi#9569.
    #[case(402, "This request requires more credits, or fewer max_tokens. You requested up to 16384 tokens, but can only afford 2,048.",
        Dialect { max_output_tokens: Some(2_048), ..Dialect::default() })]
    fn each_refusal_corrects_one_property(#[case] status: u16, #[case] text: &str, #[case] expected: Dialect) {
        assert_eq!(corrected(&Dialect::default(), status, text), Some(expected.clone()));
        let again = corrected(&expected, status, text);
        assert!(again.is_none_or(|again| again != expected), "what is known is not corrected again");
    }

    #[rstest]
    // NousResearch/hermes-agent#23435.
    #[case("Model grok-4 does not support parameter reasoningEffort")]
    #[case("Unsupported parameter: 'reasoning.effort' is not supported with this model.")]
    #[case("This model does not support the effort parameter.")]
    #[case("output_config: Extra inputs are not permitted")]
    #[case("Function tools with reasoning_effort are not supported for gpt-5.4 in this route.")]
    fn an_effort_that_was_sent_is_left_out(#[case] text: &str) {
        let known = Dialect { effort: Some(EffortWords::LowMediumHigh), ..Dialect::default() };
        let omitted = Dialect { effort: Some(EffortWords::Omit), ..Dialect::default() };
        assert_eq!(corrected(&known, 400, text), Some(omitted));
        assert_eq!(corrected(&Dialect::default(), 400, text), None, "none was sent");
    }

    #[rstest]
    #[case(400, "temperature must be between 0 and 2")]
    #[case(400, "This model's maximum context length is 8192 tokens")]
    #[case(401, "temperature is not supported")]
    #[case(429, "Use 'max_completion_tokens' instead")]
    #[case(413, "Request too large for model `x` on tokens per minute (TPM): Limit 6000, Requested 22000")]
    #[case(429, "Rate limit reached on tokens per minute (TPM): Limit 6000, Used 5034, Requested 1443.")]
    #[case(413, "")]
    #[case(500, "internal server error")]
    #[case(402, "the account is empty")]
    #[case(400, "can only afford 99999 max_tokens")]
    #[case(402, "You requested up to 16384 tokens, but can only afford 12.")]
    #[case(400, "max_tokens：8192é, which is the maximum allowed number of output tokens")]
    #[case(500, "error parsing tool call: raw='{\"temperature\": \"only\"}'")]
    #[case(422, r#"{"detail":[{"type":"missing","loc":["body","x"],"input":"Use 'max_completion_tokens' instead, v1/responses"}]}"#)]
    #[case(400, "")]
    fn other_refusals_correct_nothing(#[case] status: u16, #[case] text: &str) {
        assert_eq!(corrected(&Dialect::default(), status, text), None);
    }

    #[rstest]
    #[case("tools.1.custom.input_schema: JSON schema is invalid", "notion__update")]
    #[case("Invalid schema for function 'weather': schema must be an object", "weather")]
    fn a_tool_that_is_refused_in_the_plainest_form_is_left_out(#[case] text: &str, #[case] name: &str) {
        let plain = Dialect { schema: Some(SchemaSubset::Plain), ..Dialect::default() };
        let corrected = corrected(&plain, 400, text).unwrap();
        assert_eq!(corrected.left_out_tools.as_deref(), Some([name.to_owned()].as_slice()));
    }
}
