//! The HTTP client of the protocol, on the egress client: every request is decided on and dialled as that of any tool.
//!
//! Guarantees that no redirect leaves the origin of the server's URL, that a body is cut at the connection's limit while it is read, and that the
//! server's event stream is opened again a limited number of times.

use std::{collections::HashMap, sync::Arc, time::Duration};

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
use sse_stream::{Error as SseError, Sse};
use tokio::time::Instant;

use super::{
    credentials::Credentials,
    events::{event_of, events},
    message::read_messages,
    receive_limit::ReceiveLimit,
    reconnects::Reconnects,
};
use egress::{EgressClient, OpenResponse, OutboundRequest};

const JSON: &str = "application/json";
const EVENT_STREAM: &str = "text/event-stream";
const SESSION: &str = "mcp-session-id";
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
}

/// The library's own waits between attempts to open a stream: none, because [`Reconnects`] decides on all of them.
#[derive(Debug)]
struct NoWait;

impl SseRetryPolicy for NoWait {
    fn retry(&self, _attempts: usize) -> Option<Duration> {
        Some(Duration::ZERO)
    }
}

/// Why the last request of a connection failed, as a readable text.
#[derive(Debug, Clone, Default)]
pub(super) struct LastFailure(Arc<Mutex<Option<String>>>);

impl LastFailure {
    fn set(&self, message: &str) {
        *self.0.lock() = Some(message.to_owned());
    }

    pub(super) fn get(&self) -> Option<String> {
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
        let message = message.into();
        self.failure.set(&message);
        StreamableHttpError::Client(RequestFailed(message))
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
            404 if session_id.is_some() => return Err(StreamableHttpError::SessionExpired),
            200..300 => {}
            _ => return Err(self.failed(format!("it answers with HTTP status {status}"))),
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
