//! Settings of the models: the primary provider, its failover, prices.
//!
//! With nothing set the provider is scripted, with the built-in demo script.

use std::{collections::BTreeMap, fmt, path::PathBuf};

use secrecy::SecretString;
use serde::Deserialize;

use super::{ConfigError, layers::Layers, url::mask_urls};

/// A primary and this many behind it.
const MAX_FAILOVER_PROVIDERS: usize = 8;

/// Completion tokens of a request that names no limit, and the most that one gets, unless the operator sets another number.
const DEFAULT_MAX_OUTPUT_TOKENS: u64 = 16_384;
/// The context of most hosted models.
const DEFAULT_CONTEXT_TOKENS: u64 = 128_000;
/// Ollama reserves memory for the whole context when it loads a model.
const DEFAULT_OLLAMA_CONTEXT_TOKENS: u64 = 32_768;
const DEFAULT_TIMEOUT_SECONDS: u64 = 120;
const DEFAULT_MAX_CONCURRENT: u32 = 16;

/// Which kind of server a provider is: its wire format and its defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ProviderKind {
    /// OpenAI-compatible chat completions.
    OpenAi,
    /// Anthropic messages.
    Anthropic,
    /// Ollama chat.
    Ollama,
    /// A script that this process serves to itself.
    Scripted,
}

impl ProviderKind {
    /// Every kind by its name in the configuration.
    pub const NAMES: [(&str, Self); 4] = [
        ("openai", Self::OpenAi),
        ("anthropic", Self::Anthropic),
        ("ollama", Self::Ollama),
        ("scripted", Self::Scripted),
    ];

    /// The name in the configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::Anthropic => "anthropic",
            Self::Ollama => "ollama",
            Self::Scripted => "scripted",
        }
    }

    /// The base URL when none is configured; empty for a script.
    pub const fn default_base_url(self) -> &'static str {
        match self {
            Self::OpenAi => "https://api.openai.com/v1",
            Self::Anthropic => "https://api.anthropic.com/v1",
            Self::Ollama => "http://127.0.0.1:11434",
            Self::Scripted => "",
        }
    }

    /// The context size when none is configured.
    pub const fn default_context_tokens(self) -> u64 {
        match self {
            Self::Ollama => DEFAULT_OLLAMA_CONTEXT_TOKENS,
            Self::OpenAi | Self::Anthropic | Self::Scripted => DEFAULT_CONTEXT_TOKENS,
        }
    }
}

/// One model provider.
#[derive(Clone)]
pub struct ProviderSettings {
    /// The name in records and the log: the kind, with its place in the failover list.
    pub name: String,
    /// Its kind.
    pub kind: ProviderKind,
    /// Where it is reached; empty for a script.
    pub base_url: String,
    /// The API key, if the provider needs one.
    pub api_key: Option<SecretString>,
    /// The model that is asked unless a job names another.
    pub model: String,
    /// The script's YAML file; none for the built-in demo. Only for [`ProviderKind::Scripted`].
    pub script: Option<PathBuf>,
    /// The longest wait for the first byte of an answer and between two reads of it.
    pub timeout_seconds: u64,
    /// Calls in flight at once.
    pub max_concurrent: u32,
    /// Upper bound of a request's completion tokens.
    pub max_output_tokens: u64,
    /// The model's context size in tokens.
    pub context_tokens: u64,
}

impl ProviderSettings {
    /// A provider with the defaults of its kind.
    pub fn new(name: impl Into<String>, kind: ProviderKind, model: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            kind,
            base_url: kind.default_base_url().to_owned(),
            api_key: None,
            model: model.into(),
            script: None,
            timeout_seconds: DEFAULT_TIMEOUT_SECONDS,
            max_concurrent: DEFAULT_MAX_CONCURRENT,
            max_output_tokens: DEFAULT_MAX_OUTPUT_TOKENS,
            context_tokens: kind.default_context_tokens(),
        }
    }
}

impl fmt::Debug for ProviderSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProviderSettings")
            .field("name", &self.name)
            .field("kind", &self.kind)
            .field("base_url", &mask_urls(&self.base_url))
            .field("model", &self.model)
            .finish_non_exhaustive()
    }
}

/// A model's price in US dollars per million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelPrice {
    /// Prompt tokens.
    pub input_usd_per_million_tokens: f64,
    /// Completion tokens.
    pub output_usd_per_million_tokens: f64,
    /// Prompt tokens read from the provider's cache; derived from `input` when left out.
    pub cache_read_usd_per_million_tokens: Option<f64>,
    /// Prompt tokens written to the provider's cache; derived from `input` when left out.
    pub cache_write_usd_per_million_tokens: Option<f64>,
}

/// The models.
#[derive(Debug, Clone)]
pub struct LlmSettings {
    /// Asked first.
    pub primary: ProviderSettings,
    /// Asked in this order when the one before cannot answer.
    pub failover: Vec<ProviderSettings>,
    /// Models that a job may ask for besides the default.
    pub models: Vec<String>,
    /// Overrides by model name or its prefix.
    pub prices: BTreeMap<String, ModelPrice>,
    /// How long a job asks a model that does not answer before it fails; 0 fails it at once.
    pub outage_patience_seconds: u64,
    /// Nobody chose a provider: the demo script answers, and the log says how to set one.
    pub is_demo: bool,
}

pub(super) fn read(l: &mut Layers<'_>) -> Result<LlmSettings, ConfigError> {
    let chosen = l.is_set("llm.provider");
    if !chosen
        && let Some(key) =
            ["llm.base_url", "llm.api_key", "llm.api_key_file", "llm.model"].into_iter().find(|k| l.is_set(k))
    {
        let wanted =
            format!("set without a provider: set {} to openai, anthropic or ollama", Layers::variable("llm.provider"));
        return Err(ConfigError::new(Layers::variable(key), None, wanted));
    }
    let is_demo = !chosen && !l.is_set("llm.script");
    let primary = provider(l, "llm", None)?;
    let mut failover = Vec::new();
    while l.is_set(&format!("llm.failover.{}.provider", failover.len())) {
        let index = failover.len();
        if index == MAX_FAILOVER_PROVIDERS {
            let wanted = format!("at most {MAX_FAILOVER_PROVIDERS} providers behind the first");
            return Err(l.wrong(&format!("llm.failover.{index}.provider"), wanted));
        }
        failover.push(provider(l, &format!("llm.failover.{index}"), Some(index))?);
    }
    Ok(LlmSettings {
        primary,
        failover,
        models: l.list("llm.models")?,
        prices: prices(l)?,
        outage_patience_seconds: l.whole("llm.outage_patience_seconds", 300, 0..=86_400)?,
        is_demo,
    })
}

fn provider(l: &mut Layers<'_>, at: &str, place: Option<usize>) -> Result<ProviderSettings, ConfigError> {
    let key = |name: &str| format!("{at}.{name}");
    let kind = l.choice(&key("provider"), "scripted", &ProviderKind::NAMES)?;
    let (word, default_url) = (kind.as_str(), kind.default_base_url());
    let name = place.map_or_else(|| word.to_owned(), |place| format!("{word}-{}", place + 2));
    let base_url = l.text(&key("base_url"), default_url)?;
    let is_http = base_url.starts_with("http://") || base_url.starts_with("https://");
    if kind != ProviderKind::Scripted && !is_http {
        return Err(l.wrong(&key("base_url"), "must start with http:// or https://"));
    }
    let api_key = l.secret(&key("api_key"))?;
    if api_key.is_none() && base_url == default_url && matches!(kind, ProviderKind::OpenAi | ProviderKind::Anthropic) {
        return Err(l.wrong(&key("api_key"), format!("must be set to use {word} at {default_url}")));
    }
    let model = match kind {
        ProviderKind::Scripted => l.text(&key("model"), "scripted")?,
        _ => {
            l.optional(&key("model"))?.ok_or_else(|| l.wrong(&key("model"), format!("must name a model of {word}")))?
        }
    };
    let script = l.optional(&key("script"))?.map(PathBuf::from);
    if kind != ProviderKind::Scripted && script.is_some() {
        return Err(l.wrong(&key("script"), "only for the provider scripted"));
    }
    let defaults = ProviderSettings::new(name, kind, model);
    Ok(ProviderSettings {
        base_url,
        api_key,
        script,
        timeout_seconds: l.whole(&key("timeout_seconds"), defaults.timeout_seconds, 1..=3600)?,
        max_concurrent: l.small(&key("max_concurrent"), defaults.max_concurrent, 1..=1000)?,
        max_output_tokens: optional_count(l, &key("max_output_tokens"))?.unwrap_or(defaults.max_output_tokens),
        context_tokens: optional_count(l, &key("context_tokens"))?.unwrap_or(defaults.context_tokens),
        ..defaults
    })
}

/// 0 and nothing are the same: none.
fn optional_count(l: &mut Layers<'_>, key: &str) -> Result<Option<u64>, ConfigError> {
    Ok(Some(l.whole(key, 0, 0..=100_000_000)?).filter(|count| *count > 0))
}

fn prices(l: &mut Layers<'_>) -> Result<BTreeMap<String, ModelPrice>, ConfigError> {
    let Some((value, name)) = l.table("llm.prices") else { return Ok(BTreeMap::new()) };
    let prices: BTreeMap<String, ModelPrice> = value
        .try_into()
        .map_err(|error: toml::de::Error| ConfigError::new(&name, None, error.message().replace('\n', " ")))?;
    for (model, price) in &prices {
        let all = [
            Some(price.input_usd_per_million_tokens),
            Some(price.output_usd_per_million_tokens),
            price.cache_read_usd_per_million_tokens,
            price.cache_write_usd_per_million_tokens,
        ];
        if all.into_iter().flatten().any(|usd| !(0.0..=1_000_000.0).contains(&usd)) {
            return Err(ConfigError::new(format!("{name}.{model}"), None, "a price must be from 0 to 1000000"));
        }
    }
    Ok(prices)
}
