//! A script over HTTP on the providers' own wires: OpenAI chat completions, Anthropic messages, Ollama chat. Owns the
//! listening and the routes. Never calls a real provider and checks no key: it stands where a provider would.
//!
//! A job's title reaches `when: {job_title: …}` through the header `x-gantry-job-title`. Signatures of calls travel on
//! the Anthropic wire only, as those of thinking blocks; the other wires have no place for them.

mod anthropic;
mod ollama;
mod openai;
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

use super::{
    script::Script,
    scripted::{Play, Played, Player, Question},
};

const MAX_REQUEST_BYTES: usize = 64 << 20;

/// Serves a script until `shutdown`; answers under way are broken off then.
pub async fn serve(listener: TcpListener, script: Script, shutdown: CancellationToken) -> io::Result<()> {
    let desk = Desk { player: Player::new(script), answered: Arc::default(), shutdown: shutdown.clone() };
    let router = Router::new()
        .route("/v1/chat/completions", post(openai::chat))
        .route("/v1/models", get(list_models))
        .route("/v1/messages", post(anthropic::messages))
        .route("/v1/messages/count_tokens", post(anthropic::count_tokens))
        .route("/api/chat", post(ollama::chat))
        .route("/api/tags", get(ollama::tags))
        .layer(DefaultBodyLimit::max(MAX_REQUEST_BYTES))
        .with_state(desk);
    axum::serve(listener, router).with_graceful_shutdown(shutdown.cancelled_owned()).await
}

/// What every request needs.
#[derive(Clone)]
struct Desk {
    player: Player,
    answered: Arc<AtomicU64>,
    shutdown: CancellationToken,
}

/// What a wire does next.
enum Turn {
    Answer(Box<Played>),
    Refusal(sending::Refusal),
    Garbage,
}

impl Desk {
    /// Plays, and waits where the script says so.
    async fn turn(&self, question: Question<'_>) -> Turn {
        match self.player.play(question) {
            Play::Answer(played) => {
                tokio::select! {
                    () = tokio::time::sleep(played.delay) => Turn::Answer(played),
                    () = self.shutdown.cancelled() => Turn::Refusal(sending::Refusal::shutting_down()),
                }
            }
            Play::Error { status, message, retry_after } => {
                Turn::Refusal(sending::Refusal { status, message, retry_after })
            }
            Play::Garbage => Turn::Garbage,
            Play::Hang => {
                self.shutdown.cancelled().await;
                Turn::Refusal(sending::Refusal::shutting_down())
            }
        }
    }

    /// Ids count up, so that the same requests get the same bytes.
    fn next_id(&self, prefix: &str) -> String {
        format!("{prefix}{:012}", self.answered.fetch_add(1, Ordering::Relaxed) + 1)
    }
}

/// Two wires share this path; Anthropic's clients always send their version.
async fn list_models(state: axum::extract::State<Desk>, headers: HeaderMap) -> Response {
    if headers.contains_key("anthropic-version") { anthropic::models(&state.0) } else { openai::models(&state.0) }
}

fn job_title(headers: &HeaderMap) -> Option<&str> {
    headers.get("x-gantry-job-title")?.to_str().ok()
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
fn model_of<'a>(request: &'a Value, desk: &'a Desk) -> &'a str {
    request["model"].as_str().filter(|model| !model.is_empty()).unwrap_or(desk.player.model())
}
