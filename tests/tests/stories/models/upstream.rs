//! A model provider of the story's own: an OpenAI-compatible server whose answers the story decides, request by
//! request.
//!
//! Owns its listener and the wire format. Never checks a request by itself.

use std::sync::Arc;

use axum::{
    Json, Router,
    http::{StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
    routing::post,
};
use serde_json::{Value, json};
use tests::{World, WorldBuilder};
use tokio::{net::TcpListener, task::JoinSet};

/// How a request is answered.
pub(crate) enum Answer {
    /// Text alone.
    Text(String),
    /// Text, in pieces of this many characters.
    Pieces(String, usize),
    /// Tool calls: name and arguments.
    Calls(Vec<(&'static str, Value)>),
    /// A refusal with a status and a code, which its message repeats.
    Refusal(u16, String),
    /// This, as it is.
    Response(Response),
}

/// The server. It stops when it is dropped.
pub(crate) struct Upstream {
    base_url: String,
    _server: JoinSet<()>,
}

type Decide = dyn Fn(&Value) -> (Answer, Value) + Send + Sync;

impl Upstream {
    /// Serves on a free port. `decide` gets each request and returns the answer and the usage that is reported with it.
    pub(crate) async fn start(decide: impl Fn(&Value) -> (Answer, Value) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        // By its name no local server, so that messages are sent as they are.
        let base_url = format!("http://[::ffff:127.0.0.1]:{}/v1", listener.local_addr().unwrap().port());
        let decide: Arc<Decide> = Arc::new(decide);
        let answer = move |Json(request): Json<Value>| {
            let decide = Arc::clone(&decide);
            async move {
                let (answer, usage) = decide(&request);
                response(answer, &usage)
            }
        };
        let router = Router::new()
            .route("/v1/chat/completions", post(answer))
            .layer(axum::extract::DefaultBodyLimit::max(64 << 20));
        let mut server = JoinSet::new();
        server.spawn(async move { drop(axum::serve(listener, router).await) });
        Self { base_url, _server: server }
    }

    /// A world whose jobs ask this server.
    pub(crate) fn world(&self) -> WorldBuilder {
        World::builder()
            .set("GANTRY_LLM_SCRIPT", "")
            .set("GANTRY_LLM_PROVIDER", "openai")
            .set("GANTRY_LLM_BASE_URL", &self.base_url)
            .set("GANTRY_LLM_MODEL", "small-model")
    }
}

fn response(answer: Answer, usage: &Value) -> Response {
    let text = |text: &str| json!({"role": "assistant", "content": text});
    let (deltas, reason) = match answer {
        Answer::Text(whole) => (vec![text(&whole)], "stop"),
        Answer::Pieces(whole, chars) => {
            let characters: Vec<char> = whole.chars().collect();
            (characters.chunks(chars).map(|piece| text(&String::from_iter(piece))).collect(), "stop")
        }
        Answer::Calls(calls) => {
            let call = |(index, (name, arguments)): (usize, (&str, Value))| {
                let function = json!({"name": name, "arguments": arguments.to_string()});
                json!({"index": index, "id": format!("call_{index}"), "type": "function", "function": function})
            };
            let calls: Vec<Value> = calls.into_iter().enumerate().map(call).collect();
            (vec![json!({"role": "assistant", "content": null, "tool_calls": calls})], "tool_calls")
        }
        Answer::Refusal(status, code) => {
            let message = format!("refused by the story: {code}");
            let error = json!({"error": {"message": message, "type": "invalid_request_error", "code": code}});
            return (StatusCode::from_u16(status).unwrap(), Json(error)).into_response();
        }
        Answer::Response(response) => return response,
    };
    let chunk =
        |choices: Value, usage: &Value| json!({"object": "chat.completion.chunk", "choices": choices, "usage": usage});
    let mut chunks: Vec<Value> = deltas
        .into_iter()
        .map(|delta| chunk(json!([{"index": 0, "delta": delta, "finish_reason": null}]), &Value::Null))
        .collect();
    chunks.push(chunk(json!([{"index": 0, "delta": {}, "finish_reason": reason}]), usage));
    let events = chunks.iter().map(|chunk| format!("data: {chunk}\n\n"));
    let body: String = events.chain(["data: [DONE]\n\n".to_owned()]).collect();
    ([(CONTENT_TYPE, "text/event-stream")], body).into_response()
}
