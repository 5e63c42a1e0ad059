//! Checks of `gantry doctor` about the model provider.

use std::time::Duration;

use base::{error_chain, mask_urls};
use cli::Check;
use config::{Config, ProviderKind, ProviderSettings};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Checks the primary provider.
pub(super) async fn check(config: &Config) -> Check {
    let provider = &config.llm.primary;
    if config.llm.is_demo {
        let advice = "set GANTRY_LLM_PROVIDER, GANTRY_LLM_MODEL and GANTRY_LLM_API_KEY to use a real model";
        return Check::note("model", "the built-in demo script", advice);
    }
    match (provider.kind, &provider.script) {
        (ProviderKind::Scripted, None) => Check::ok("model", "the built-in demo script"),
        (ProviderKind::Scripted, Some(path)) => match std::fs::read_to_string(path) {
            Ok(_) => Check::ok("model", format!("the script {}", path.display())),
            Err(error) => Check::failed(
                "model",
                format!("{}: {error}", path.display()),
                "set GANTRY_LLM_SCRIPT to a readable file",
            ),
        },
        (ProviderKind::OpenAi | ProviderKind::Anthropic | ProviderKind::Ollama, _) => reachability(provider).await,
    }
}

/// Checks that the provider responds at all. Only a completion would prove the key, and that costs money.
async fn reachability(provider: &ProviderSettings) -> Check {
    let found = format!("{} at {}", provider.model, mask_urls(&provider.base_url));
    let client = reqwest::Client::builder().timeout(CONNECT_TIMEOUT).build();
    let answer = match client {
        Ok(client) => client.get(&provider.base_url).send().await,
        Err(error) => Err(error),
    };
    match answer {
        Ok(_) if provider.kind == ProviderKind::OpenAi && has_no_path(&provider.base_url) => Check::note(
            "model",
            format!("{found} (reachable; the key was not tested)"),
            "OpenAI-compatible URLs usually end in /v1: if models are not found, add it to GANTRY_LLM_BASE_URL",
        ),
        Ok(_) => Check::ok("model", format!("{found} (reachable; the key was not tested)")),
        Err(error) => {
            let cause = error_chain(&error.without_url());
            Check::failed("model", format!("{found}: {cause}"), connection_advice(provider.kind))
        }
    }
}

fn has_no_path(url: &str) -> bool {
    reqwest::Url::parse(url).is_ok_and(|url| url.path() == "/")
}

fn connection_advice(kind: ProviderKind) -> &'static str {
    match kind {
        ProviderKind::Ollama => {
            "check GANTRY_LLM_BASE_URL; a container cannot reach 127.0.0.1 of the host: start Ollama with \
             OLLAMA_HOST set to the address of the Docker bridge, such as 172.17.0.1"
        }
        _ => "check GANTRY_LLM_BASE_URL and the network",
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("http://10.0.0.1:8089", true)]
    #[case("http://10.0.0.1:8089/", true)]
    #[case("http://10.0.0.1:8089/v1", false)]
    fn base_urls_without_a_path_are_reported(#[case] url: &str, #[case] bare: bool) {
        assert_eq!(has_no_path(url), bare);
    }
}
