//! The gateway's settings from the configuration: scripts read, prices converted.

use std::{fs, io, path::PathBuf, time::Duration};

use crate::{
    config::{LlmKind, LlmProvider, LlmSettings, ModelPrice},
    llm::{GatewayError, GatewaySettings, Price, PriceOverride, ProviderKind, ProviderSettings, Script, ScriptError},
};

/// What answers when nobody has chosen a model.
const DEMO: &str = include_str!("../../../docker/demo.yaml");
/// Dollars per million tokens are micro-dollars per token; prices are kept per million.
const MICRO: f64 = 1_000_000.0;

/// A model's settings do not hold.
#[derive(Debug, thiserror::Error)]
pub enum ModelsError {
    /// The script file.
    #[error("GANTRY_LLM_SCRIPT: {path} cannot be read")]
    ScriptFile {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// What is in it.
    #[error("the script {path} is wrong")]
    Script {
        /// Which.
        path: PathBuf,
        /// Where and how.
        #[source]
        source: ScriptError,
    },
    /// The whole.
    #[error(transparent)]
    Gateway(#[from] GatewayError),
}

/// From the configuration.
pub(super) fn settings(llm: &LlmSettings) -> Result<GatewaySettings, ModelsError> {
    let providers = std::iter::once(&llm.primary).chain(&llm.failover).map(provider).collect::<Result<_, _>>()?;
    let mut settings = GatewaySettings::new(providers);
    settings.prices = llm.prices.iter().map(|(prefix, price)| price_override(prefix, *price)).collect();
    Ok(settings)
}

fn provider(given: &LlmProvider) -> Result<ProviderSettings, ModelsError> {
    let kind = match &given.kind {
        LlmKind::OpenAi => ProviderKind::OpenAi,
        LlmKind::Anthropic => ProviderKind::Anthropic,
        LlmKind::Ollama => ProviderKind::Ollama,
        LlmKind::Scripted { script } => ProviderKind::Scripted(read(script.as_ref())?),
    };
    let mut settings = ProviderSettings::new(&given.name, kind, &given.model);
    settings.base_url = (!given.base_url.is_empty()).then(|| given.base_url.clone());
    settings.api_key.clone_from(&given.api_key);
    settings.timeout = Duration::from_secs(given.timeout_seconds);
    settings.max_concurrent_calls = given.max_concurrent as usize;
    settings.max_output_tokens = given.max_output_tokens.unwrap_or(settings.max_output_tokens);
    settings.context_tokens = given.context_tokens.unwrap_or(settings.context_tokens);
    Ok(settings)
}

fn read(path: Option<&PathBuf>) -> Result<Script, ModelsError> {
    let Some(path) = path else {
        let built_in = |source| ModelsError::Script { path: PathBuf::from("(built in)"), source };
        return Script::parse(DEMO).map_err(built_in);
    };
    let text = fs::read_to_string(path).map_err(|source| ModelsError::ScriptFile { path: path.clone(), source })?;
    Script::parse(&text).map_err(|source| ModelsError::Script { path: path.clone(), source })
}

fn price_override(prefix: &str, price: ModelPrice) -> PriceOverride {
    let input = price.input_usd_per_million_tokens;
    PriceOverride {
        model_prefix: prefix.to_owned(),
        price: Price {
            input: micro(input),
            output: micro(price.output_usd_per_million_tokens),
            cache_read: micro(price.cache_read_usd_per_million_tokens.unwrap_or(input)),
            cache_write: micro(price.cache_write_usd_per_million_tokens.unwrap_or(input)),
        },
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the configuration refuses negative and absurd prices"
)]
fn micro(usd: f64) -> u64 {
    (usd * MICRO).round() as u64
}
