//! A model provider of the benchmark's own: an OpenAI-compatible server that answers at once.
//!
//! Owns its listener. A job whose prompt is "bench: sleep" is deliveries to sleep in a shell call; everything else gets the same
//! short answer, as a stream or as one document. Never measures.

use axum::{
    Json, Router,
    http::header::CONTENT_TYPE,
    response::{IntoResponse, Response},
    routing::post,
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinSet};

use crate::Failure;

/// The model that it serves.
pub(crate) const MODEL: &str = "bench";
const ANSWER: &str = "The tests of the parser pass now; the next step is the printer.";
const SLEEP: &str = r#"{"command":"sleep 600","timeout_seconds":600}"#;

/// The server. It stops when it is dropped.
pub(crate) struct Upstream {
    base_url: String,
    _server: JoinSet<()>,
}

impl Upstream {
    /// Starts one on a free port of the loopback interface.
    pub(crate) async fn start() -> Result<Self, Failure> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let base_url = format!("http://{}/v1", listener.local_addr()?);
        let router = Router::new().route("/v1/chat/completions", post(complete));
        let mut server = JoinSet::new();
        server.spawn(async move {
            // It serves until it is dropped; a failure shows in every call.
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self { base_url, _server: server })
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

async fn complete(Json(request): Json<Value>) -> Response {
    let last = request["messages"].as_array().and_then(|messages| messages.last());
    let sleeps = last.is_some_and(|last| last["role"] == "user" && last["content"] == "bench: sleep");
    let (message, finish_reason) = if sleeps {
        let function = json!({"name": "shell", "arguments": SLEEP});
        let call = json!({"index": 0, "id": "call_sleep", "type": "function", "function": function});
        (json!({"role": "assistant", "content": null, "tool_calls": [call]}), "tool_calls")
    } else {
        (json!({"role": "assistant", "content": ANSWER}), "stop")
    };
    let usage = json!({"prompt_tokens": 1_000, "completion_tokens": 16, "total_tokens": 1_016});
    if request["stream"] != json!(true) {
        let choice = json!({"index": 0, "message": message, "finish_reason": finish_reason});
        return Json(json!({"id": "bench", "object": "chat.completion", "created": 1, "model": MODEL,
            "choices": [choice], "usage": usage}))
        .into_response();
    }
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
