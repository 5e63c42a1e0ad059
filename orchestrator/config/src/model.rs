//! Settings of the models: the primary provider, its failover, prices.
//!
//! When nothing is set the provider is scripted, with the built-in demo script.

use std::{collections::BTreeMap, fmt, path::PathBuf};

use base::mask_urls;
use protocol::Effort;
use secrecy::SecretString;
use serde::Deserialize;
use strum::VariantNames;

use super::{
    ConfigError,
    dialect::{Dialect, OpenAiWire},
    reader::ConfigReader,
    setting::{Kind, SettingSpec, setting, settings},
    setting_value::{RawValue, SettingValue, choose, string},
};

/// Providers after the primary one.
const MAX_FAILOVER_PROVIDERS: usize = 8;

/// The default and maximum completion tokens of a request, unless the operator sets another value.
const DEFAULT_MAX_OUTPUT_TOKENS: u64 = 16_384;
/// The context window of most hosted models.
const DEFAULT_CONTEXT_TOKENS: u64 = 128_000;
/// Ollama reserves memory for the whole context when it loads a model.
const DEFAULT_OLLAMA_CONTEXT_TOKENS: u64 = 32_768;
/// Upper bound of the two settings that count tokens.
const MAX_TOKENS: u64 = 100_000_000;
const DEFAULT_TIMEOUT_SECONDS: u64 = 300;
const DEFAULT_MAX_CONCURRENT: u64 = 16;

/// The kind of a provider, which determines its wire format and defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::EnumString, strum::IntoStaticStr, strum::VariantNames)]
#[strum(serialize_all = "lowercase")]
pub enum ProviderKind {
    /// OpenAI-compatible chat completions.
    OpenAi,
    /// Anthropic messages.
    Anthropic,
    /// Ollama chat.
    Ollama,
    /// A script that this process serves.
    Scripted,
}

impl ProviderKind {
    /// The name in the configuration.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// The base URL when none is configured; empty for a script.
    pub(crate) const fn default_base_url(self) -> &'static str {
        match self {
            Self::OpenAi => "https://api.openai.com/v1",
            Self::Anthropic => "https://api.anthropic.com/v1",
            Self::Ollama => "http://127.0.0.1:11434",
            Self::Scripted => "",
        }
    }

    /// Whether tool calls are recovered from text when nothing is configured.
    pub(crate) const fn writes_tool_calls_as_text(self) -> bool {
        matches!(self, Self::Ollama)
    }

    /// The context size when none is configured.
    pub(crate) const fn default_context_tokens(self) -> u64 {
        match self {
            Self::Ollama => DEFAULT_OLLAMA_CONTEXT_TOKENS,
            Self::OpenAi | Self::Anthropic | Self::Scripted => DEFAULT_CONTEXT_TOKENS,
        }
    }
}

impl SettingValue for ProviderKind {
    const KIND: Kind = Kind::Choice(Self::VARIANTS);

    fn parse(raw: &RawValue, _spec: &SettingSpec) -> Result<Self, String> {
        string(raw)?.parse().map_err(|_| format!("must be one of {}", Self::VARIANTS.join(", ")))
    }
}

/// The treatment of jobs with a cost limit whose model has no price.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum UnpricedModels {
    /// They are refused.
    #[default]
    Refuse,
    /// They run, and the cost limit is not enforced.
    Allow,
}

impl SettingValue for Effort {
    const KIND: Kind = Kind::Choice(&["low", "medium", "high"]);

    fn parse(raw: &RawValue, _spec: &SettingSpec) -> Result<Self, String> {
        choose(raw, &[("low", Ok(Self::Low)), ("medium", Ok(Self::Medium)), ("high", Ok(Self::High))])
    }
}

impl SettingValue for UnpricedModels {
    const KIND: Kind = Kind::Choice(&["refuse", "allow"]);

    fn parse(raw: &RawValue, _spec: &SettingSpec) -> Result<Self, String> {
        choose(raw, &[("refuse", Ok(Self::Refuse)), ("allow", Ok(Self::Allow))])
    }
}

/// The kind of the provider that is being read.
fn kind_of(reader: &ConfigReader<'_>) -> Option<ProviderKind> {
    reader.effective("llm.provider").parse().ok()
}

/// The default model, which only a script has.
fn model_of(reader: &ConfigReader<'_>) -> Result<String, ConfigError> {
    match kind_of(reader) {
        None | Some(ProviderKind::Scripted) => Ok("scripted".to_owned()),
        Some(kind) => Err(reader.missing("llm.model", format!("must be the name of a model of {}", kind.as_str()))),
    }
}

/// `openai` for the primary provider, `openai-2` for the first failover provider.
fn name_of(reader: &ConfigReader<'_>, kind: ProviderKind) -> String {
    reader.failover().map_or_else(|| kind.as_str().to_owned(), |index| format!("{}-{}", kind.as_str(), index + 2))
}

settings! {
    /// One model provider.
    #[derive(Clone)]
    pub struct ProviderSettings {
        /// Model provider: `openai` (any OpenAI-compatible server), `anthropic`, `ollama` or `scripted`.
        pub kind: ProviderKind = setting("llm.provider").default("scripted").flag("llm-provider", "NAME");
        /// Base URL of the provider; may contain credentials and a query, which are used but never shown.
        pub base_url: String = setting("llm.base_url").derived("the provider's own", |reader| Ok(kind_of(reader).map_or("", ProviderKind::default_base_url).to_owned())).flag("llm-base-url", "URL");
        /// API key; required for `openai` and `anthropic` at their own URLs.
        pub api_key: Option<SecretString> = setting("llm.api_key");
        /// Default model; required unless the provider is `scripted`.
        pub model: String = setting("llm.model").derived("`scripted` for a script", model_of).flag("llm-model", "NAME");
        /// Script of the provider `scripted`, a YAML file; the built-in demo when not set.
        pub script: Option<PathBuf> = setting("llm.script").flag("llm-script", "FILE");
        /// Maximum wait in seconds for the first byte of an answer, and between two reads of it.
        pub timeout_seconds: u64 = setting("llm.timeout_seconds").default_integer(DEFAULT_TIMEOUT_SECONDS).range(1, 3600);
        /// Maximum number of concurrent calls to the provider.
        pub max_concurrent: u32 = setting("llm.max_concurrent").default_integer(DEFAULT_MAX_CONCURRENT).range(1, 1000);
        /// Maximum completion tokens of one call, at most a quarter of `llm.context_tokens`; 0 for the default.
        pub max_output_tokens: u64 = setting("llm.max_output_tokens").default_integer(DEFAULT_MAX_OUTPUT_TOKENS).range(0, MAX_TOKENS);
        /// Context size of the model in tokens, to which conversations are compacted; 0 for the default.
        pub context_tokens: u64 = setting("llm.context_tokens").derived("128000; 32768 for `ollama`", |reader| Ok(kind_of(reader).map_or(DEFAULT_CONTEXT_TOKENS, ProviderKind::default_context_tokens).to_string())).range(0, MAX_TOKENS);
        /// What the provider takes of a request, where it is known better than by its refusals; see `config/README.md`.
        pub dialect: Dialect = setting("llm.dialect");
        /// Run tool calls that the model writes as text, unless it has read them. If not run, a call at the end of a reply is pointed out once; the same again fails the work.
        pub text_tool_calls: bool = setting("llm.text_tool_calls").derived("`true` for `ollama`, else `false`", |reader| Ok(kind_of(reader).is_some_and(ProviderKind::writes_tool_calls_as_text).to_string()));
    }
    computed(reader) {
        /// The name in records and the log: the kind, with its place in the failover list.
        pub name: String = name_of(reader, kind);
    }
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
            max_concurrent: u32::try_from(DEFAULT_MAX_CONCURRENT).unwrap_or(u32::MAX),
            max_output_tokens: DEFAULT_MAX_OUTPUT_TOKENS,
            context_tokens: kind.default_context_tokens(),
            dialect: Dialect::default(),
            text_tool_calls: kind.writes_tool_calls_as_text(),
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

/// Upper bound of a price.
const MAX_USD_PER_MILLION_TOKENS: f64 = 1_000_000.0;

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

impl ModelPrice {
    fn check(&self) -> Result<(), String> {
        let prices = [
            Some(self.input_usd_per_million_tokens),
            Some(self.output_usd_per_million_tokens),
            self.cache_read_usd_per_million_tokens,
            self.cache_write_usd_per_million_tokens,
        ];
        let is_sane = prices.into_iter().flatten().all(|usd| (0.0..=MAX_USD_PER_MILLION_TOKENS).contains(&usd));
        if is_sane { Ok(()) } else { Err(format!("a price must be from 0 to {MAX_USD_PER_MILLION_TOKENS}")) }
    }
}

settings! {
    /// The models.
    #[derive(Debug, Clone)]
    pub struct LlmSettings {
        /// Further models that a job may request.
        pub models: Vec<String> = setting("llm.models");
        /// How much models think, where neither the request nor the user's settings say it; sent to models that have a word for it.
        pub effort: Option<Effort> = setting("llm.effort").flag("llm-effort", "LEVEL");
        /// Prices by model name or name prefix, in US dollars per million tokens; see `config/README.md`.
        pub prices: BTreeMap<String, ModelPrice> = setting("llm.prices");
        /// Jobs with a cost limit on a model without a price: `refuse` them, or `allow` them without enforcing the limit.
        pub unpriced: UnpricedModels = setting("llm.unpriced").default("refuse");
        /// Maximum time in seconds that a job waits for a model that does not answer, an open circuit included; 0 fails the job at once. A call that has begun may take `llm.timeout_seconds`.
        pub outage_patience_seconds: u64 = setting("llm.outage_patience_seconds").default("300").range(0, 86_400);
    }
    computed(reader) {
        /// The primary provider.
        pub primary: ProviderSettings = primary(reader)?;
        /// The failover providers, in order.
        pub failover: Vec<ProviderSettings> = failover(reader)?;
        /// True if no provider is configured: the demo script is used.
        pub is_demo: bool = !reader.is_set("llm.provider") && !reader.is_set("llm.script");
    }
}

#[cfg(any(test, feature = "test-util"))]
impl LlmSettings {
    /// One provider, and the defaults of everything else.
    pub fn of_provider(primary: ProviderSettings) -> Self {
        Self {
            primary,
            failover: Vec::new(),
            models: Vec::new(),
            effort: None,
            prices: BTreeMap::new(),
            unpriced: UnpricedModels::Refuse,
            outage_patience_seconds: 300,
            is_demo: false,
        }
    }
}

pub(super) fn read(reader: &mut ConfigReader<'_>) -> Result<LlmSettings, ConfigError> {
    let settings = LlmSettings::read(reader)?;
    for (model, price) in &settings.prices {
        price.check().map_err(|expected| reader.missing("llm.prices", format!("{model}: {expected}")))?;
    }
    Ok(settings)
}

/// Refuses settings that need a provider when none is set, instead of running the demo.
fn primary(reader: &mut ConfigReader<'_>) -> Result<ProviderSettings, ConfigError> {
    let provider = provider(reader)?;
    if !reader.is_set("llm.provider")
        && let Some(key) = ["llm.base_url", "llm.api_key", "llm.model"].into_iter().find(|key| reader.is_set(key))
    {
        return Err(reader.missing(key, "needs GANTRY_LLM_PROVIDER: openai, anthropic or ollama"));
    }
    Ok(provider)
}

fn failover(reader: &mut ConfigReader<'_>) -> Result<Vec<ProviderSettings>, ConfigError> {
    let mut providers = Vec::new();
    while reader.has(&format!("llm.failover.{}.provider", providers.len()))? {
        reader.set_failover(Some(providers.len()));
        if providers.len() == MAX_FAILOVER_PROVIDERS {
            return Err(reader.invalid("llm.provider", format!("at most {MAX_FAILOVER_PROVIDERS} failover providers")));
        }
        providers.push(provider(reader)?);
    }
    reader.set_failover(None);
    match reader.unread_in("llm.failover.") {
        Some((part, name)) if part.parse::<usize>().is_ok_and(|index| index >= providers.len()) => {
            Err(ConfigError::new(format!("{name}.provider"), None, "must be set: openai, anthropic or ollama"))
        }
        Some((part, name)) if part.parse::<usize>().is_err() => {
            Err(ConfigError::new(name, None, "must be in a list of tables; begin each with [[llm.failover]]"))
        }
        _ => Ok(providers),
    }
}

fn provider(reader: &mut ConfigReader<'_>) -> Result<ProviderSettings, ConfigError> {
    let mut settings = ProviderSettings::read(reader)?;
    let kind = settings.kind;
    let is_http = settings.base_url.starts_with("http://") || settings.base_url.starts_with("https://");
    if kind != ProviderKind::Scripted && !is_http {
        return Err(reader.invalid("llm.base_url", "must start with http:// or https://"));
    }
    let needs_key = matches!(kind, ProviderKind::OpenAi | ProviderKind::Anthropic);
    if needs_key && settings.api_key.is_none() && settings.base_url == kind.default_base_url() {
        let expected = format!("must be set to use {} at {}", kind.as_str(), settings.base_url);
        return Err(reader.missing("llm.api_key", expected));
    }
    if settings.dialect.wire == Some(OpenAiWire::Responses) && kind != ProviderKind::OpenAi {
        return Err(reader.invalid("llm.dialect", ".wire: must be chat; only the provider openai has responses"));
    }
    if kind != ProviderKind::Scripted && settings.script.is_some() {
        return Err(reader.invalid("llm.script", "only for the provider scripted"));
    }
    if settings.max_output_tokens == 0 {
        settings.max_output_tokens = DEFAULT_MAX_OUTPUT_TOKENS;
    }
    if settings.context_tokens == 0 {
        settings.context_tokens = kind.default_context_tokens();
    }
    Ok(settings)
}
