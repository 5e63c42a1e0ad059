//! A script served over HTTP in the providers' wire formats: OpenAI chat completions and responses, Anthropic messages,
//! Ollama chat. Owns the listening and the routes. Never calls a real provider and checks no key.
//!
//! A job's title reaches `when: {job_title: …}` in the header `x-gantry-job-title`. Signatures of tool calls are sent
//! in the Anthropic format only, as those of thinking blocks; the others have no place for them.

mod anthropic;
mod ollama;
mod openai;
mod private;
mod responses;
mod sending;

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use axum::{
    Router,
    extract::DefaultBodyLimit,
    http::HeaderMap,
    response::Response,
    routing::{get, post},
};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub(super) use self::private::ScriptServer;
use super::script::{
    Script,
    engine::{Question, ScriptEngine, ScriptedReply, ScriptedResponse},
};

/// The header that names the job of a call.
pub(super) const JOB_TITLE_HEADER: &str = "x-gantry-job-title";
/// A conversation of a million tokens is about 4 MB.
const MAX_REQUEST_BYTES: usize = 64 << 20;

/// Serves a script until `shutdown`; answers in progress are interrupted then.
pub async fn serve(listener: TcpListener, script: Script, shutdown: CancellationToken) -> io::Result<()> {
    let router = router(script, shutdown.clone());
    axum::serve(listener, router).with_graceful_shutdown(shutdown.cancelled_owned()).await
}

fn router(script: Script, shutdown: CancellationToken) -> Router {
    let state = ServerState { engine: ScriptEngine::new(script), answered: Arc::default(), shutdown };
    Router::new()
        .route("/v1/chat/completions", post(openai::chat))
        .route("/v1/responses", post(responses::responses))
        .route("/v1/models", get(list_models))
        .route("/v1/messages", post(anthropic::messages))
        .route("/v1/messages/count_tokens", post(anthropic::count_tokens))
        .route("/api/chat", post(ollama::chat))
        .route("/api/tags", get(ollama::tags))
        .layer(DefaultBodyLimit::max(MAX_REQUEST_BYTES))
        .with_state(state)
}

/// Shared by all requests.
#[derive(Clone)]
struct ServerState {
    engine: ScriptEngine,
    answered: Arc<AtomicU64>,
    shutdown: CancellationToken,
}

/// The response to send.
enum ServedResponse {
    Answer(Box<ScriptedReply>),
    Error(sending::ErrorResponse),
    InvalidResponse,
}

impl ServerState {
    /// Evaluates the script and waits before the first byte if it specifies a delay.
    async fn respond(&self, question: Question<'_>) -> ServedResponse {
        match self.engine.respond(question) {
            ScriptedResponse::Answer(reply) => {
                tokio::select! {
                    () = tokio::time::sleep(reply.delay) => ServedResponse::Answer(reply),
                    () = self.shutdown.cancelled() => ServedResponse::Error(sending::ErrorResponse::shutting_down()),
                }
            }
            ScriptedResponse::Error { status, message, retry_after } => {
                ServedResponse::Error(sending::ErrorResponse { status, message, retry_after })
            }
            ScriptedResponse::InvalidResponse => ServedResponse::InvalidResponse,
            ScriptedResponse::Hang => {
                self.shutdown.cancelled().await;
                ServedResponse::Error(sending::ErrorResponse::shutting_down())
            }
        }
    }

    /// Ids count up, so that the same requests get the same bytes.
    fn next_id(&self, prefix: &str) -> String {
        format!("{prefix}{:012}", self.answered.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

/// Two wire formats share this path; Anthropic's clients always send their version.
async fn list_models(state: axum::extract::State<ServerState>, headers: HeaderMap) -> Response {
    if headers.contains_key("anthropic-version") { anthropic::models(&state.0) } else { openai::models(&state.0) }
}

fn job_title(headers: &HeaderMap) -> Option<&str> {
    std::str::from_utf8(headers.get(JOB_TITLE_HEADER)?.as_bytes()).ok()
}

/// The text of a message's content: a string, or the texts among its parts.
fn text_of(content: &Value) -> String {
    match content {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let texts: Vec<_> = parts.iter().filter_map(|part| part["text"].as_str()).collect();
            texts.join("\n")
        }
        _ => String::new(),
    }
}

/// The model a request names, which an answer names again.
fn model_of<'a>(request: &'a Value, state: &'a ServerState) -> &'a str {
    request["model"].as_str().filter(|model| !model.is_empty()).unwrap_or(state.engine.model())
}
