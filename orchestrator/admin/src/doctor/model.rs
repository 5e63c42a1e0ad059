//! Checks of `gantry doctor` about the model providers.

use std::time::Duration;

use base::{error_chain, mask_urls};
use cli::Check;
use config::{LlmSettings, ProviderKind, ProviderSettings};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Checks the primary provider and those of the failover list.
pub(super) async fn checks(settings: &LlmSettings) -> Vec<Check> {
    let primary = if settings.is_demo {
        let advice = "set GANTRY_LLM_PROVIDER, GANTRY_LLM_MODEL and GANTRY_LLM_API_KEY to use a real model";
        Check::note("model", "the built-in demo script", advice)
    } else {
        check("model", &settings.primary, "GANTRY_LLM").await
    };
    let mut checks = vec![primary];
    for (index, provider) in settings.failover.iter().enumerate() {
        checks.push(check("failover", provider, &format!("GANTRY_LLM_FAILOVER_{index}")).await);
    }
    checks
}

/// Checks a provider whose variables begin so.
async fn check(name: &'static str, provider: &ProviderSettings, variables: &str) -> Check {
    match (provider.kind, &provider.script) {
        (ProviderKind::Scripted, None) => Check::ok(name, "the built-in demo script"),
        (ProviderKind::Scripted, Some(path)) => match std::fs::read_to_string(path) {
            Ok(_) => Check::ok(name, format!("the script {}", path.display())),
            Err(error) => Check::failed(
                name,
                format!("{}: {error}", path.display()),
                format!("set {variables}_SCRIPT to a readable file"),
            ),
        },
        (ProviderKind::OpenAi | ProviderKind::Anthropic | ProviderKind::Ollama, _) => {
            reachability(name, provider, variables).await
        }
    }
}

/// Checks that the provider responds at all. Only a completion would prove the key, and that costs money.
async fn reachability(name: &'static str, provider: &ProviderSettings, variables: &str) -> Check {
    let found = format!("{} at {}", provider.model, mask_urls(&provider.base_url));
    let client = reqwest::Client::builder().timeout(CONNECT_TIMEOUT).build();
    let answer = match client {
        Ok(client) => client.get(&provider.base_url).send().await,
        Err(error) => Err(error),
    };
    match answer {
        Ok(_) if provider.kind == ProviderKind::OpenAi && has_no_path(&provider.base_url) => Check::note(
            name,
            format!("{found} (reachable; the key was not tested)"),
            format!(
                "OpenAI-compatible URLs usually end in /v1: if models are not found, add it to {variables}_BASE_URL"
            ),
        ),
        Ok(_) => Check::ok(name, format!("{found} (reachable; the key was not tested)")),
        Err(error) => {
            let cause = error_chain(&error.without_url());
            Check::failed(name, format!("{found}: {cause}"), connection_advice(provider.kind, variables))
        }
    }
}

fn has_no_path(url: &str) -> bool {
    reqwest::Url::parse(url).is_ok_and(|url| url.path() == "/")
}

fn connection_advice(kind: ProviderKind, variables: &str) -> String {
    match kind {
        ProviderKind::Ollama => format!(
            "check {variables}_BASE_URL; a container cannot reach 127.0.0.1 of the host: start Ollama with OLLAMA_HOST \
             set to the address of the Docker bridge, such as 172.17.0.1"
        ),
        _ => format!("check {variables}_BASE_URL and the network"),
    }
}

#[cfg(test)]
mod tests {
    use base::Environment;
    use cli::Verdict;
    use config::{Config, Sources};
    use rstest::rstest;
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn each_provider_is_reached() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let closed = listener.local_addr().unwrap();
        drop(listener);
        let directory = tempfile::tempdir().unwrap();
        let script = directory.path().join("script.yaml");
        std::fs::write(&script, "").unwrap();
        let set = Environment::from_pairs([
            ("HOME", "/tmp"),
            ("GANTRY_LLM_PROVIDER", "scripted"),
            ("GANTRY_LLM_SCRIPT", script.to_str().unwrap()),
            ("GANTRY_LLM_FAILOVER_0_PROVIDER", "openai"),
            ("GANTRY_LLM_FAILOVER_0_MODEL", "second"),
            ("GANTRY_LLM_FAILOVER_0_BASE_URL", &format!("http://{closed}/v1")),
        ]);
        let checks = checks(&Config::load(&set, Sources::default()).unwrap().llm).await;
        let verdicts: Vec<_> = checks.iter().map(|check| (check.name, check.verdict)).collect();
        assert_eq!(verdicts, [("model", Verdict::Ok), ("failover", Verdict::Failed)], "{checks:?}");
        assert!(checks[1].found.starts_with(&format!("second at http://{closed}/v1: ")), "{checks:?}");
        let advice = checks[1].advice.as_deref().unwrap();
        assert_eq!(advice, "check GANTRY_LLM_FAILOVER_0_BASE_URL and the network");
    }

    #[rstest]
    #[case("http://10.0.0.1:8089", true)]
    #[case("http://10.0.0.1:8089/", true)]
    #[case("http://10.0.0.1:8089/v1", false)]
    fn base_urls_without_a_path_are_reported(#[case] url: &str, #[case] bare: bool) {
        assert_eq!(has_no_path(url), bare);
    }
}
