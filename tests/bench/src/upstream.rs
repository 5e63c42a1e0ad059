//! A model provider of the benchmark's own: an OpenAI-compatible server that answers at once.
//!
//! Owns its listener. A job whose prompt is "bench: loop N" gets N calls of `echo` and then one of a shell that sleeps;
//! everything else gets the same short answer. Answers are streams. It can be told to hold its answers. Never measures.

use axum::{
    Router,
    extract::State,
    http::header::CONTENT_TYPE,
    response::{IntoResponse, Response},
    routing::post,
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::watch, task::JoinSet};

use crate::Failure;

/// The model that it serves.
pub(crate) const MODEL: &str = "bench";
const ANSWER: &str = "The tests of the parser pass now; the next step is the printer.";
const SLEEP: &str = r#"{"command":"sleep 600","timeout_seconds":600}"#;

/// The server. It stops when it is dropped.
pub(crate) struct Upstream {
    base_url: String,
    is_held: watch::Sender<bool>,
    _server: JoinSet<()>,
}

impl Upstream {
    /// Starts one on a free port of the loopback interface.
    pub(crate) async fn start() -> Result<Self, Failure> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let base_url = format!("http://{}/v1", listener.local_addr()?);
        let is_held = watch::Sender::new(false);
        let router = Router::new().route("/v1/chat/completions", post(complete)).with_state(is_held.clone());
        let mut server = JoinSet::new();
        server.spawn(async move {
            // It serves until it is dropped; a failure shows in every call.
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self { base_url, is_held, _server: server })
    }

    /// Holds all answers, or gives them.
    pub(crate) fn hold(&self, is_held: bool) {
        self.is_held.send_replace(is_held);
    }

    /// Its base URL, for the provider's settings.
    pub(crate) fn base_url(&self) -> &str {
        &self.base_url
    }

    /// The endpoint itself, for calls without a gateway.
    pub(crate) fn completions_url(&self) -> String {
        format!("{}/chat/completions", self.base_url)
    }
}

async fn complete(State(is_held): State<watch::Sender<bool>>, request: String) -> Response {
    // An error says that the server has ended.
    let _ = is_held.subscribe().wait_for(|is_held| !is_held).await;
    let (message, finish_reason) = match call(&request) {
        Some((name, arguments)) => {
            let function = json!({"name": name, "arguments": arguments});
            let call = json!({"index": 0, "id": "call_0", "type": "function", "function": function});
            (json!({"role": "assistant", "content": null, "tool_calls": [call]}), "tool_calls")
        }
        None => (json!({"role": "assistant", "content": ANSWER}), "stop"),
    };
    let usage = json!({"prompt_tokens": 1_000, "completion_tokens": 16, "total_tokens": 1_016});
    let chunk = |choices: Value, usage: Value| {
        json!({"id": "bench", "object": "chat.completion.chunk", "created": 1, "model": MODEL,
            "choices": choices, "usage": usage})
    };
    let chunks = [
        chunk(json!([{"index": 0, "delta": message, "finish_reason": null}]), Value::Null),
        chunk(json!([{"index": 0, "delta": {}, "finish_reason": finish_reason}]), Value::Null),
        chunk(json!([]), usage),
    ];
    let body: String =
        chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).chain(["data: [DONE]\n\n".into()]).collect();
    ([(CONTENT_TYPE, "text/event-stream")], body).into_response()
}

/// The tool call that a request is answered with. The request is searched and not parsed: what a provider needs for its
/// answer is no part of what is measured.
fn call(request: &str) -> Option<(&'static str, String)> {
    let (_, turns) = request.split_once("bench: loop ")?;
    let turns: usize = turns[..turns.find(|char: char| !char.is_ascii_digit())?].parse().ok()?;
    let turn = request.matches(r#""role":"tool""#).count() + 1;
    if turn > turns {
        Some(("shell", SLEEP.to_owned()))
    } else {
        Some(("echo", format!(r#"{{"message":"turn {turn}"}}"#)))
    }
}
