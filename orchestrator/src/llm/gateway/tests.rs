//! The gateway's story: against a script over HTTP on each wire, and in process under paused time.

use std::time::Duration;

use protocol::{CallId, CompletionRequest, Message, ToolChoice, ToolDefinition, ToolDomain};
use serde_json::json;
use tokio::{net::TcpListener, task::JoinSet};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::llm::{ProviderKind, ProviderSettings, Script, serve};

mod in_process;
mod wires;

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
            base_url: Some(format!("{}{path}", self.address)),
            api_key: Some("sk-test".into()),
            timeout: Duration::from_secs(5),
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

fn scripted(name: &str, yaml: &str) -> ProviderSettings {
    ProviderSettings::new(name, ProviderKind::Scripted(script(yaml)), format!("model-of-{name}"))
}

/// Real sockets, so waits are short and real.
fn impatient(providers: Vec<ProviderSettings>) -> Gateway {
    let mut settings = GatewaySettings::new(providers);
    settings.retry.first_wait = Duration::from_millis(1);
    Gateway::new(settings).unwrap()
}

fn user(content: &str) -> Message {
    Message::User { content: content.to_owned() }
}

fn said(content: &str) -> CompletionRequest {
    conversation(vec![user(content)])
}

fn conversation(messages: Vec<Message>) -> CompletionRequest {
    let weather = ToolDefinition {
        name: "weather".to_owned(),
        description: "the weather of a city".to_owned(),
        parameters: json!({"type": "object", "properties": {"city": {"type": "string"}}}),
        domain: ToolDomain::Orchestrator,
    };
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
    gateway.ask(&said(content), &CallContext::default(), std::future::pending()).await
}

async fn failed(gateway: &Gateway, content: &str) -> AskError {
    ask(gateway, content).await.expect_err("no answer was expected")
}
