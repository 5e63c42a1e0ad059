//! Wire formats of model providers: requests are encoded from Gantry's types and answers decoded into them. For a
//! relay, requests are patched and usage is read from streams without knowing every field.
//!
//! Everything here is pure: bytes and values in, values out. Never opens a connection, retries or counts money.

mod adapt;
mod anthropic;
mod decoder;
mod framing;
mod halves;
mod json;
mod ollama;
mod openai;
mod openai_chat;
mod openai_responses;
mod policy;
mod tool_calls;
mod usage_counter;

#[cfg(test)]
mod tests;

use config::Dialect;
use protocol::CompletionRequest;
use serde_json::Value;

use self::adapt::adapt;
pub use self::{
    decoder::{DecodeError, Decoder, Delta},
    policy::{Patched, RelayPolicy},
    usage_counter::UsageTap,
};

/// A wire format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Wire {
    /// OpenAI chat completions, also of the many servers that are compatible with it.
    OpenAiChat,
    OpenAiResponses,
    Anthropic,
    Ollama,
}

/// Tools that the model must call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForcedTool<'a> {
    /// At least one of those on offer.
    Any,
    Named(&'a str),
}

/// Options of a request besides the conversation.
#[derive(Debug, Clone, Copy)]
pub struct RequestOptions<'a> {
    /// The model, as the provider knows it.
    pub model: &'a str,
    /// The limit of completion tokens.
    pub max_output_tokens: u64,
    /// What the provider takes.
    pub dialect: &'a Dialect,
    /// The name under which the provider's own form of a reply is kept.
    pub maker: &'a str,
    /// The model's context size. Sent where the server sizes the context per request.
    pub context_tokens: u64,
    /// Whether the model may call several tools in one reply; none leaves it to the provider.
    pub parallel_tool_calls: Option<bool>,
    /// How much the model thinks, in its own word.
    pub effort: Option<&'a str>,
    /// A tool that must be called; not supported by Ollama.
    pub forced_tool: Option<ForcedTool<'a>>,
}

impl<'a> RequestOptions<'a> {
    /// Options for `model` without any of the optional ones.
    pub const fn new(model: &'a str, max_output_tokens: u64, context_tokens: u64, dialect: &'a Dialect) -> Self {
        Self {
            model,
            max_output_tokens,
            dialect,
            maker: "",
            context_tokens,
            parallel_tool_calls: None,
            effort: None,
            forced_tool: None,
        }
    }
}

impl Wire {
    /// The path of a call below the provider's base URL.
    pub const fn path(self) -> &'static str {
        match self {
            Self::OpenAiChat => "chat/completions",
            Self::OpenAiResponses => "responses",
            Self::Anthropic => "messages",
            Self::Ollama => "api/chat",
        }
    }

    /// The request body. The answer is always asked for as a stream.
    pub fn request(self, request: &CompletionRequest, options: &RequestOptions<'_>) -> Value {
        let request = &adapt(request, options);
        match self {
            Self::OpenAiChat => openai_chat::request::body(request, options),
            Self::OpenAiResponses => openai_responses::request::body(request, options),
            Self::Anthropic => anthropic::request::body(request, options),
            Self::Ollama => ollama::request::body(request, options),
        }
    }

    /// A decoder of one answer.
    pub(crate) fn decoder(self) -> Decoder {
        match self {
            Self::OpenAiChat => Decoder::new(self, Box::<openai_chat::stream::ChunkAssembler>::default()),
            Self::OpenAiResponses => Decoder::new(self, Box::<openai_responses::stream::ResponseAssembler>::default()),
            Self::Anthropic => Decoder::new(self, Box::<anthropic::stream::MessageAssembler>::default()),
            Self::Ollama => Decoder::new(self, Box::<ollama::stream::LineAssembler>::default()),
        }
    }

    /// Patches a client's request to comply with a policy; everything else is unchanged.
    pub fn patch(self, body: &mut Value, policy: &RelayPolicy<'_>) -> Patched {
        match self {
            Self::OpenAiChat => openai_chat::patch::patch(body, policy),
            Self::OpenAiResponses => openai_responses::patch::patch(body, policy),
            Self::Anthropic => anthropic::patch::patch(body, policy),
            Self::Ollama => ollama::patch::patch(body, policy),
        }
    }

    /// The estimated tokens of a whole request body: messages, tools and everything else.
    pub fn estimate(self, body: &Value) -> u64 {
        policy::estimate(body)
    }

    /// Headers of a client's request that are sent on to the provider, besides those of every HTTP request.
    pub const fn forwarded_headers(self) -> &'static [&'static str] {
        match self {
            Self::OpenAiChat | Self::OpenAiResponses => &["openai-beta"],
            Self::Anthropic => &["anthropic-beta", "anthropic-version"],
            Self::Ollama => &[],
        }
    }

    /// Reads usage off a relayed answer. `prompt_tokens` is the request's estimate, for answers that report none.
    pub fn usage_tap(self, prompt_tokens: u64) -> UsageTap {
        UsageTap::new(self, prompt_tokens)
    }
}
