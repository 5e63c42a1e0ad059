//! Sends answers: in chunks, paced, complete or cut off. Owns the chunking; knows no provider's shape.

use std::{io, time::Duration};

use axum::{
    body::Body,
    http::{HeaderValue, StatusCode, header},
    response::Response,
};
use futures_util::{StreamExt, stream};
use serde_json::Value;

use super::{ScriptedReply, ServerState};

/// Delay before a cut, so that written bytes are sent before the connection drops; otherwise a cut would look like no
/// answer.
const FLUSH_BEFORE_CUT: Duration = Duration::from_millis(20);

/// An error response.
pub(super) struct ErrorResponse {
    pub(super) status: u16,
    pub(super) message: String,
    pub(super) retry_after: Option<Duration>,
}

impl ErrorResponse {
    pub(super) fn shutting_down() -> Self {
        Self { status: 503, message: "shutting down".to_owned(), retry_after: None }
    }

    pub(super) fn bad_request(message: impl Into<String>) -> Self {
        Self { status: 400, message: message.into(), retry_after: None }
    }

    /// The response, with a body in the provider's shape.
    pub(super) fn response(&self, body: &Value) -> Response {
        let mut response = json(self.status, body.to_string());
        if let Some(wait) = self.retry_after {
            let headers = response.headers_mut();
            let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
            headers.insert("retry-after-ms", HeaderValue::from(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)));
        }
        response
    }
}

/// A part of a streamed answer.
pub(super) enum Piece {
    Reasoning(String),
    Text(String),
    Call(usize),
    Arguments(usize, String),
}

/// The end of an answer.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ending {
    Whole,
    Cut,
}

/// Splits an answer into chunks and cuts it off where the script specifies a cut.
pub(super) fn pieces(reply: &ScriptedReply) -> (Vec<Piece>, Ending) {
    let mut cutter = Cutter { left: reply.cut_after_chars, chunk_chars: reply.chunk_chars, pieces: Vec::new() };
    cutter.put(reply.reasoning.as_deref().unwrap_or_default(), Piece::Reasoning);
    cutter.put(&reply.text, Piece::Text);
    for (index, call) in reply.calls.iter().enumerate() {
        if cutter.left == Some(0) {
            break;
        }
        cutter.pieces.push(Piece::Call(index));
        cutter.put(&call.arguments, |part| Piece::Arguments(index, part));
    }
    // A script that asks for a cut gets one, however short the answer is.
    let ending = if reply.cut_after_chars.is_some() { Ending::Cut } else { Ending::Whole };
    (cutter.pieces, ending)
}

struct Cutter {
    left: Option<usize>,
    chunk_chars: usize,
    pieces: Vec<Piece>,
}

impl Cutter {
    fn put(&mut self, text: &str, piece: impl Fn(String) -> Piece) {
        let chars: Vec<char> = text.chars().take(self.left.unwrap_or(usize::MAX)).collect();
        if let Some(left) = &mut self.left {
            *left -= chars.len();
        }
        self.pieces.extend(chars.chunks(self.chunk_chars).map(|chunk| piece(chunk.iter().collect())));
    }
}

/// Sends frames with the script's pauses between them, then ends the body or drops the connection.
pub(super) fn stream_frames(state: &ServerState, reply: &ScriptedReply, frames: Vec<String>, ending: Ending) -> Body {
    let pause = reply.chunk_pause;
    let written = stream::iter(frames.into_iter().enumerate()).then(move |(index, frame)| async move {
        if index > 0 && !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        Ok(frame)
    });
    let cut = stream::iter((ending == Ending::Cut).then_some(())).then(|()| async {
        tokio::time::sleep(FLUSH_BEFORE_CUT).await;
        Err(io::Error::new(io::ErrorKind::ConnectionAborted, "cut by the script"))
    });
    Body::from_stream(written.chain(cut).take_until(state.shutdown.clone().cancelled_owned()))
}

pub(super) fn streamed(content_type: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    response
}

/// A complete response, or half of one.
pub(super) fn at_once(state: &ServerState, reply: &ScriptedReply, body: &Value) -> Response {
    let text = body.to_string();
    if reply.cut_after_chars.is_none() {
        return json(200, text);
    }
    let half = text.chars().take(text.chars().count() / 2).collect();
    streamed("application/json", stream_frames(state, reply, vec![half], Ending::Cut))
}

/// Bytes that are not an answer.
pub(super) fn invalid_response(content_type: &'static str) -> Response {
    let body = if content_type == "text/event-stream" { "data: }{ no answer\n\n" } else { "}{ no answer\n" };
    streamed(content_type, Body::from(body))
}

/// The same in a format whose events have names.
pub(super) fn invalid_named_event(content_type: &'static str) -> Response {
    if content_type != "text/event-stream" {
        return invalid_response(content_type);
    }
    let body = "event: content_block_delta\ndata: }{ no answer\n\n";
    streamed(content_type, Body::from(body))
}

pub(super) fn json(status: u16, text: String) -> Response {
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
