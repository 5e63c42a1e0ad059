//! The gateway against scripts over HTTP: in each wire format in real time, and its decisions in virtual time.

use std::time::Duration;

use protocol::{CallId, CompletionRequest, Message, ToolChoice, ToolDefinition, ToolDomain};
use serde_json::json;
use tokio::{net::TcpListener, task::JoinSet};
use tokio_util::sync::CancellationToken;

use super::*;
use config::{LlmSettings, ModelPrice, ProviderKind, ProviderSettings};

use crate::{Script, serve};

mod decisions;
mod formats;
mod prices;
mod responses;
mod sent;

/// A script that is served while this lives.
struct Served {
    address: String,
    shutdown: CancellationToken,
    tasks: JoinSet<std::io::Result<()>>,
}

impl Served {
    async fn start(yaml: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let shutdown = CancellationToken::new();
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(listener, script(yaml), shutdown.clone()));
        Self { address, shutdown, tasks }
    }

    fn provider(&self, wire: Wire) -> ProviderSettings {
        let (kind, path) = match wire {
            Wire::OpenAi => (ProviderKind::OpenAi, "/v1"),
            Wire::Anthropic => (ProviderKind::Anthropic, ""),
            Wire::Ollama => (ProviderKind::Ollama, ""),
        };
        ProviderSettings {
            base_url: format!("{}{path}", self.address),
            api_key: Some("sk-test".into()),
            timeout_seconds: 5,
            ..ProviderSettings::new("served", kind, "model-a")
        }
    }

    /// Nothing may be left over: a request that still hangs ends here too.
    async fn stop(mut self) {
        self.shutdown.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap().unwrap();
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wire {
    OpenAi,
    Anthropic,
    Ollama,
}

fn script(yaml: &str) -> Script {
    Script::parse(yaml).unwrap()
}

/// A provider that plays `yaml`. The script is read when the gateway is built.
fn scripted(name: &str, yaml: &str) -> ProviderSettings {
    let path = tempfile::NamedTempFile::new().unwrap().into_temp_path().keep().unwrap();
    std::fs::write(&path, yaml).unwrap();
    ProviderSettings {
        script: Some(path),
        ..ProviderSettings::new(name, ProviderKind::Scripted, format!("model-of-{name}"))
    }
}

/// The first provider is the primary one. Each script's file is removed once the gateway is built.
fn build(
    mut providers: Vec<ProviderSettings>,
    prices: &[(&str, ModelPrice)],
    retry: RetrySettings,
) -> Result<Gateway, GatewayError> {
    let scripts: Vec<_> = providers.iter().filter_map(|provider| provider.script.clone()).collect();
    let primary = providers.remove(0);
    let settings = LlmSettings {
        failover: providers,
        prices: prices.iter().map(|(prefix, price)| ((*prefix).to_owned(), *price)).collect(),
        ..LlmSettings::of_provider(primary)
    };
    let gateway = Gateway::with_policies(&settings, retry, BreakerSettings::default());
    for script in scripts {
        std::fs::remove_file(script).unwrap();
    }
    gateway
}

/// Lets virtual time pass while sockets are used. A paused clock jumps to the next timer whenever all tasks wait, also
/// for a socket; with this one it jumps a step at a time, and what is ready to be read is read between two steps.
struct VirtualTime {
    _ticking: JoinSet<()>,
}

/// A step of virtual time. A call takes some ten of them, a test that waits an hour 360,000.
const TICK: Duration = Duration::from_millis(10);

impl VirtualTime {
    fn start() -> Self {
        let mut ticking = JoinSet::new();
        ticking.spawn(async {
            loop {
                tokio::time::sleep(TICK).await;
            }
        });
        Self { _ticking: ticking }
    }
}

/// Real time, so waits are short.
fn impatient(providers: Vec<ProviderSettings>) -> Gateway {
    let retry = RetrySettings { first_wait: Duration::from_millis(1), ..RetrySettings::default() };
    build(providers, &[], retry).unwrap()
}

fn user(content: &str) -> Message {
    Message::User { content: content.to_owned() }
}

fn request_of(content: &str) -> CompletionRequest {
    conversation(vec![user(content)])
}

fn conversation(messages: Vec<Message>) -> CompletionRequest {
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    let weather = ToolDefinition::new("weather", "the weather of a city", parameters, ToolDomain::Orchestrator);
    CompletionRequest {
        call_id: CallId::generate(),
        messages,
        tools: vec![weather],
        tool_choice: ToolChoice::Auto,
        max_tokens: None,
        temperature: Some(0.7),
    }
}

async fn ask(gateway: &Gateway, content: &str) -> Result<Answer, AskError> {
    gateway.ask(&request_of(content), &CallContext::default(), std::future::pending()).await
}

async fn failed(gateway: &Gateway, content: &str) -> AskError {
    ask(gateway, content).await.expect_err("no answer was expected")
}
