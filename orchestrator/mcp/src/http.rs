//! The HTTP client of the protocol, on the egress client: every request is decided on and dialled as that of any tool.
//!
//! Guarantees that no redirect leaves the origin of the server's URL, that a body is cut at the connection's limit while it is read, and that the
//! server's event stream is opened again a limited number of times.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::{StreamExt as _, stream, stream::BoxStream};
use http::{HeaderName, HeaderValue};
use parking_lot::Mutex;
use rmcp::{
    model::ClientJsonRpcMessage,
    transport::{
        common::client_side_sse::SseRetryPolicy,
        streamable_http_client::{
            StreamableHttpClient, StreamableHttpClientTransport, StreamableHttpClientTransportConfig,
            StreamableHttpError, StreamableHttpPostResponse,
        },
    },
};
use secrecy::ExposeSecret as _;
use serde_json::Value;
use sse_stream::{Error as SseError, Sse};
use tokio::time::Instant;

use super::{
    credentials::Credentials,
    error::McpError,
    events::{event_of, events},
    message::read_messages,
    receive_limit::ReceiveLimit,
    reconnects::Reconnects,
    redaction::Redaction,
};
use egress::{EgressClient, OpenResponse, OutboundRequest};

const JSON: &str = "application/json";
const EVENT_STREAM: &str = "text/event-stream";
const SESSION: &str = "mcp-session-id";
/// How much of the body of an error is read.
const MAX_ERROR_BYTES: usize = 16 * 1024;
/// Longer session ids are refused: they come back with every request.
const MAX_SESSION_ID_BYTES: usize = 1_024;

/// Sends the requests of one connection.
#[derive(Clone)]
pub(super) struct EgressHttp {
    pub(super) egress: EgressClient,
    pub(super) credentials: Arc<Credentials>,
    pub(super) limit: ReceiveLimit,
    pub(super) failure: LastFailure,
    pub(super) reconnects: Reconnects,
    /// Of what it answers with an error.
    pub(super) redaction: Redaction,
    /// A new session counts as a change that the server reported: it may be another program.
    pub(super) changes: Arc<AtomicU64>,
}

/// The library's own waits between attempts to open a stream: none, because [`Reconnects`] decides on all of them.
#[derive(Debug)]
struct NoWait;

impl SseRetryPolicy for NoWait {
    fn retry(&self, _attempts: usize) -> Option<Duration> {
        Some(Duration::ZERO)
    }
}

/// Why a request failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    /// A human-readable text.
    pub(super) message: String,
    /// The server has refused the request, which had no effect.
    pub(super) is_refusal: bool,
}

/// Why the last request of a connection failed.
#[derive(Debug, Clone, Default)]
pub(super) struct LastFailure(Arc<Mutex<Option<Failure>>>);

impl LastFailure {
    pub(super) fn get(&self) -> Option<Failure> {
        self.0.lock().clone()
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct RequestFailed(String);

impl RequestFailed {
    pub(super) fn new(error: &dyn std::error::Error) -> Self {
        Self(error.to_string())
    }
}

type Failed = StreamableHttpError<RequestFailed>;

/// What is sent besides the headers of the connection.
struct Outgoing<'m> {
    method: &'static str,
    uri: &'m str,
    session: Option<&'m str>,
    headers: HashMap<HeaderName, HeaderValue>,
    body: Option<Vec<u8>>,
}

impl EgressHttp {
    pub(super) fn transport(self, url: &str) -> StreamableHttpClientTransport<Self> {
        let mut config = StreamableHttpClientTransportConfig::with_uri(url);
        config.retry_config = Arc::new(NoWait);
        StreamableHttpClientTransport::with_client(self, config)
    }

    fn failed(&self, message: impl Into<String>) -> Failed {
        self.fail(Failure { message: message.into(), is_refusal: false })
    }

    fn fail(&self, failure: Failure) -> Failed {
        let message = failure.message.clone();
        *self.failure.0.lock() = Some(failure);
        StreamableHttpError::Client(RequestFailed(message))
    }

    /// The error of an answer that is one, with its own words.
    async fn refused(&self, mut response: OpenResponse, session: Option<&Arc<str>>) -> Failed {
        let status = response.status();
        let mut body = Vec::new();
        while body.len() < MAX_ERROR_BYTES
            && let Ok(Some(chunk)) = response.chunk().await
        {
            body.extend_from_slice(&chunk);
        }
        // A part of a secret would not be found at the end of a body that was cut.
        let words = error_message(&body).filter(|_| body.len() < MAX_ERROR_BYTES);
        let words = words.map(|text| McpError::message(&text, &self.redaction));
        let hint = match status {
            401 => " (the token in its headers is missing or wrong)",
            404 | 405 if session.is_none() => " (its URL is wrong, or it speaks the older transport with /sse)",
            _ => "",
        };
        let words = words.map(|text| format!(": {text}")).unwrap_or_default();
        let is_refusal = (400..500).contains(&status);
        let failed =
            self.fail(Failure { message: format!("it answers with HTTP status {status}{hint}{words}"), is_refusal });
        if status == 400 && session.is_some() && knows_no_session(&body) { self.session_ended() } else { failed }
    }

    /// The library makes another handshake and sends the request again.
    fn session_ended(&self) -> Failed {
        self.changes.fetch_add(1, Ordering::Relaxed);
        StreamableHttpError::SessionExpired
    }

    async fn send(&self, outgoing: Outgoing<'_>) -> Result<OpenResponse, Failed> {
        let failed = |error: &dyn std::fmt::Display| self.failed(error.to_string());
        let mut request = OutboundRequest::new(outgoing.method, outgoing.uri).map_err(|error| failed(&error))?;
        let mut add = |name: &str, value: &str| request.header(name, value).map_err(|error| failed(&error));
        add("accept", if outgoing.method == "GET" { EVENT_STREAM } else { "application/json, text/event-stream" })?;
        for (name, value) in &self.credentials.headers {
            add(name, value.expose_secret())?;
        }
        if let Some(session) = outgoing.session {
            add(SESSION, session)?;
        }
        for (name, value) in &outgoing.headers {
            add(name.as_str(), value.to_str().unwrap_or_default())?;
        }
        if let Some(body) = outgoing.body {
            request.set_body(body, JSON);
        }
        let opened = self.egress.open_within_origin(&self.egress.policy().rules(), request).await;
        let response = opened.map_err(|error| failed(&error))?;
        match response.status() {
            300..400 => {
                Err(self.failed("it answers with a redirect to another origin or method, which is not followed"))
            }
            _ => Ok(response),
        }
    }

    /// Reads a whole body within the limits.
    async fn body(&self, mut response: OpenResponse) -> Result<Vec<u8>, Failed> {
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(|error| self.failed(error.to_string()))? {
            let checked =
                self.limit.take(chunk.len()).and_then(|()| self.limit.check_message(body.len() + chunk.len()));
            checked.map_err(|error| self.failed(error.to_string()))?;
            body.extend_from_slice(&chunk);
        }
        Ok(body)
    }

    /// The events of a body, within the limits.
    fn events(&self, response: OpenResponse) -> BoxStream<'static, Result<Sse, SseError>> {
        events(response, self.limit.clone(), self.reconnects.clone())
    }
}

/// Whether an error is about the session and no request: some servers answer so where the protocol has 404.
fn knows_no_session(body: &[u8]) -> bool {
    let error: Value = serde_json::from_slice(body).unwrap_or_default();
    let message = error.pointer("/error/message").and_then(Value::as_str).unwrap_or_default();
    error["id"].is_null() && message.to_lowercase().contains("session")
}

/// What the body of an error says: the message of the protocol or of usual APIs, or a short text.
fn error_message(body: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(body);
    let Ok(json) = serde_json::from_str::<Value>(&text) else {
        let is_page = text.trim_start().starts_with('<');
        return Some(text.trim().to_owned()).filter(|text| !text.is_empty() && !is_page);
    };
    let found = ["/error/message", "/error_description", "/message", "/detail", "/error"];
    found.into_iter().find_map(|path| json.pointer(path)?.as_str()).map(str::to_owned)
}

fn has_type(response: &OpenResponse, wanted: &str) -> bool {
    response.header("content-type").is_some_and(|kind| kind.to_ascii_lowercase().starts_with(wanted))
}

impl StreamableHttpClient for EgressHttp {
    type Error = RequestFailed;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Failed> {
        let is_request = matches!(message, ClientJsonRpcMessage::Request(_));
        let body = serde_json::to_vec(&message)?;
        let outgoing = Outgoing {
            method: "POST",
            uri: &uri,
            session: session_id.as_deref(),
            headers: custom_headers,
            body: Some(body),
        };
        let response = self.send(outgoing).await?;
        let status = response.status();
        let session = response.header(SESSION).filter(|id| id.len() <= MAX_SESSION_ID_BYTES).map(str::to_owned);
        match status {
            202 | 204 => return Ok(StreamableHttpPostResponse::Accepted),
            404 if session_id.is_some() => return Err(self.session_ended()),
            200..300 => {}
            _ => return Err(self.refused(response, session_id.as_ref()).await),
        }
        if has_type(&response, EVENT_STREAM) {
            return Ok(StreamableHttpPostResponse::Sse(self.events(response), session));
        }
        let body = self.body(response).await?;
        if !is_request {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        // Some servers send another content type, or none.
        let mut messages = read_messages(&body);
        match messages.pop() {
            Some(message) if messages.is_empty() => Ok(StreamableHttpPostResponse::Json(message, session)),
            Some(last) => {
                let batch = stream::iter(messages.into_iter().chain([last]).map(|message| Ok(event_of(&message))));
                Ok(StreamableHttpPostResponse::Sse(batch.boxed(), session))
            }
            None => Err(self.failed("its answer is not a message of the protocol")),
        }
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        _auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), Failed> {
        let outgoing =
            Outgoing { method: "DELETE", uri: &uri, session: Some(&session_id), headers: custom_headers, body: None };
        self.send(outgoing).await.map(drop)
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        _auth_header: Option<String>,
        mut custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Failed> {
        // Ends the stream: the connection goes on without, until it is closed.
        let refused = || Err(StreamableHttpError::ServerDoesNotSupportSse);
        let Some(wait) = self.reconnects.next(Instant::now()) else { return refused() };
        tokio::time::sleep(wait).await;
        if self.limit.cause().is_some() {
            return refused();
        }
        if let Some(id) = last_event_id.and_then(|id| HeaderValue::from_str(&id).ok()) {
            custom_headers.insert(HeaderName::from_static("last-event-id"), id);
        }
        let outgoing =
            Outgoing { method: "GET", uri: &uri, session: session_id.as_deref(), headers: custom_headers, body: None };
        let response = self.send(outgoing).await?;
        if response.status() == 200 && has_type(&response, EVENT_STREAM) {
            return Ok(self.events(response));
        }
        // The stream is optional: a server without one answers with 405.
        refused()
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::protocol(
        r#"{"jsonrpc":"2.0","error":{"code":-32000,"message":"No valid session ID"},"id":null}"#,
        Some("No valid session ID")
    )]
    #[case::oauth(r#"{"error":"invalid_token","error_description":"it is expired"}"#, Some("it is expired"))]
    #[case::detail(r#"{"detail":"Not found"}"#, Some("Not found"))]
    #[case::word(r#"{"error":"forbidden"}"#, Some("forbidden"))]
    #[case::other(r#"{"a":1}"#, None)]
    #[case::text("Access is only allowed at localhost:7407\n", Some("Access is only allowed at localhost:7407"))]
    #[case::page("<html><body>nginx</body></html>", None)]
    #[case::nothing("", None)]
    fn the_body_of_an_error_says_why(#[case] body: &str, #[case] expected: Option<&str>) {
        assert_eq!(error_message(body.as_bytes()).as_deref(), expected);
    }
}
