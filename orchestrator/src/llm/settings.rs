//! What the gateway is built from: plain values, from wherever the caller has them. Never reads the environment.

use std::{fmt, time::Duration};

use secrecy::SecretString;

use super::{circuit::BreakerSettings, price::PriceOverride, retry::RetrySettings, script::Script};

/// Everything the gateway is told, once.
#[derive(Debug)]
pub struct GatewaySettings {
    /// The first is asked; the others, in order, when it cannot answer.
    pub providers: Vec<ProviderSettings>,
    /// The operator's prices, before the built-in ones.
    pub prices: Vec<PriceOverride>,
    /// For every provider.
    pub retry: RetrySettings,
    /// For every provider.
    pub breaker: BreakerSettings,
}

impl GatewaySettings {
    /// These providers, and the defaults for the rest.
    pub fn new(providers: Vec<ProviderSettings>) -> Self {
        Self { providers, prices: Vec::new(), retry: RetrySettings::default(), breaker: BreakerSettings::default() }
    }
}

/// One provider.
#[derive(Debug)]
pub struct ProviderSettings {
    /// What it is called in records and in health.
    pub name: String,
    /// The wire it speaks.
    pub kind: ProviderKind,
    /// Where it is; none = the provider's own address.
    pub base_url: Option<String>,
    /// Its key; none for what needs none.
    pub api_key: Option<SecretString>,
    /// The model that is asked unless a job names another.
    pub model: String,
    /// The longest silence: before the first byte and between bytes. A whole call may take ten times as long.
    pub timeout: Duration,
    /// Calls at once; others wait in line, as long as `timeout`.
    pub max_concurrent_calls: usize,
    /// No request gets more completion tokens than this, and one that names no limit gets this.
    pub max_output_tokens: u64,
    /// The model's context.
    pub context_tokens: u64,
}

impl ProviderSettings {
    /// A provider with the defaults of its kind.
    pub fn new(name: impl Into<String>, kind: ProviderKind, model: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            kind,
            base_url: None,
            api_key: None,
            model: model.into(),
            timeout: Duration::from_mins(2),
            max_concurrent_calls: 32,
            max_output_tokens: 16_384,
            context_tokens: 128_000,
        }
    }
}

/// The wire a provider speaks.
#[derive(Debug)]
pub enum ProviderKind {
    /// OpenAI's chat completions, and all that copy them.
    OpenAi,
    /// Anthropic's messages.
    Anthropic,
    /// Ollama's chat.
    Ollama,
    /// A script in this process.
    Scripted(Script),
}

/// Why a gateway cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GatewayError {
    /// Nobody to ask.
    #[error("no model provider is configured: set one")]
    NoProvider,
    /// A value that cannot be.
    #[error("model provider {provider}: {field}: {message}")]
    Provider {
        /// Its name.
        provider: String,
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        message: String,
    },
}

/// Why a try brought no answer; the word in records and for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// Too long a silence, or too long a call.
    Timeout,
    /// No connection.
    Connect,
    /// The provider's own failure (5xx, 408).
    Server,
    /// The answer ended in the middle.
    Cut,
    /// What came was no answer.
    Garbage,
    /// Too many requests.
    RateLimited,
    /// The provider's money is spent.
    Quota,
    /// The key is wrong or may not do this.
    Auth,
    /// No such model.
    NotFound,
    /// The provider refuses the request as it is.
    BadRequest,
    /// The breaker is open.
    CircuitOpen,
    /// The line of calls is too long.
    Busy,
    /// Nobody wants the answer any more.
    Aborted,
}

impl ErrorKind {
    /// Its name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Timeout => "timeout",
            Self::Connect => "connect",
            Self::Server => "server",
            Self::Cut => "cut",
            Self::Garbage => "garbage",
            Self::RateLimited => "rate_limited",
            Self::Quota => "quota",
            Self::Auth => "auth",
            Self::NotFound => "not_found",
            Self::BadRequest => "bad_request",
            Self::CircuitOpen => "circuit_open",
            Self::Busy => "busy",
            Self::Aborted => "aborted",
        }
    }
}

impl ErrorKind {
    /// Its name in a sentence.
    pub const fn for_people(self) -> &'static str {
        match self {
            Self::RateLimited => "rate limited",
            other => other.as_str(),
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
