//! Settings of the models: the primary provider, its failover, prices.
//!
//! With nothing set the provider is scripted, with the built-in demo script.

use std::{collections::BTreeMap, fmt, path::PathBuf};

use secrecy::SecretString;
use serde::Deserialize;

use super::{ConfigError, layers::Layers, url::mask_urls};

/// A primary and this many behind it.
const MAX_FAILOVER_PROVIDERS: usize = 8;

/// A provider's wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LlmKind {
    /// OpenAI-compatible chat completions.
    OpenAi,
    /// Anthropic messages.
    Anthropic,
    /// Ollama.
    Ollama,
    /// A script; the built-in demo when no file is named.
    Scripted {
        /// The YAML file.
        script: Option<PathBuf>,
    },
}

/// One way to a model.
#[derive(Clone)]
pub struct LlmProvider {
    /// Names it in records and the log: its wire, with its place in the failover list.
    pub name: String,
    /// Its wire.
    pub kind: LlmKind,
    /// Where it answers; empty for a script.
    pub base_url: String,
    /// Its key.
    pub api_key: Option<SecretString>,
    /// The model asked for.
    pub model: String,
    /// One call's limit.
    pub timeout_seconds: u64,
    /// Calls at once.
    pub max_concurrent: u32,
    /// Completions are clamped to it; none leaves it to the gateway.
    pub max_output_tokens: Option<u64>,
    /// The model's context; none leaves it to the gateway.
    pub context_tokens: Option<u64>,
}

impl fmt::Debug for LlmProvider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LlmProvider")
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
    /// Prompt tokens from the cache; as `input` when left out.
    pub cache_read_usd_per_million_tokens: Option<f64>,
    /// Prompt tokens into the cache; as `input` when left out.
    pub cache_write_usd_per_million_tokens: Option<f64>,
}

/// The models.
#[derive(Debug, Clone)]
pub struct LlmSettings {
    /// Asked first.
    pub primary: LlmProvider,
    /// Asked in this order when the one before cannot answer.
    pub failover: Vec<LlmProvider>,
    /// Models that a job may ask for besides the default.
    pub models: Vec<String>,
    /// Overrides by model name or its prefix.
    pub prices: BTreeMap<String, ModelPrice>,
    /// How long a job asks a model that does not answer before it fails; 0 fails it at once.
    pub outage_patience_seconds: u64,
    /// Nobody chose a provider: the demo script answers, and the log says how to set one.
    pub is_demo: bool,
}

#[derive(Clone, Copy)]
enum Wire {
    OpenAi,
    Anthropic,
    Ollama,
    Scripted,
}

const WIRES: [(&str, Wire); 4] =
    [("openai", Wire::OpenAi), ("anthropic", Wire::Anthropic), ("ollama", Wire::Ollama), ("scripted", Wire::Scripted)];

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

fn provider(l: &mut Layers<'_>, at: &str, place: Option<usize>) -> Result<LlmProvider, ConfigError> {
    let key = |name: &str| format!("{at}.{name}");
    let wire = l.choice(&key("provider"), "scripted", &WIRES)?;
    let (word, default_url) = match wire {
        Wire::OpenAi => ("openai", "https://api.openai.com/v1"),
        Wire::Anthropic => ("anthropic", "https://api.anthropic.com/v1"),
        Wire::Ollama => ("ollama", "http://127.0.0.1:11434"),
        Wire::Scripted => ("scripted", ""),
    };
    let name = place.map_or_else(|| word.to_owned(), |place| format!("{word}-{}", place + 2));
    let base_url = l.text(&key("base_url"), default_url)?;
    let is_http = base_url.starts_with("http://") || base_url.starts_with("https://");
    if !matches!(wire, Wire::Scripted) && !is_http {
        return Err(l.wrong(&key("base_url"), "must start with http:// or https://"));
    }
    let api_key = l.secret(&key("api_key"))?;
    if api_key.is_none() && base_url == default_url && matches!(wire, Wire::OpenAi | Wire::Anthropic) {
        return Err(l.wrong(&key("api_key"), format!("must be set to use {word} at {default_url}")));
    }
    let model = match wire {
        Wire::Scripted => l.text(&key("model"), "scripted")?,
        _ => {
            l.optional(&key("model"))?.ok_or_else(|| l.wrong(&key("model"), format!("must name a model of {word}")))?
        }
    };
    let script = l.optional(&key("script"))?.map(PathBuf::from);
    let kind = match (wire, script) {
        (Wire::Scripted, script) => LlmKind::Scripted { script },
        (_, Some(_)) => return Err(l.wrong(&key("script"), "only for the provider scripted")),
        (Wire::OpenAi, None) => LlmKind::OpenAi,
        (Wire::Anthropic, None) => LlmKind::Anthropic,
        (Wire::Ollama, None) => LlmKind::Ollama,
    };
    Ok(LlmProvider {
        name,
        kind,
        base_url,
        api_key,
        model,
        timeout_seconds: l.whole(&key("timeout_seconds"), 120, 1..=3600)?,
        max_concurrent: l.small(&key("max_concurrent"), 16, 1..=1000)?,
        max_output_tokens: optional_count(l, &key("max_output_tokens"))?,
        context_tokens: optional_count(l, &key("context_tokens"))?,
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
