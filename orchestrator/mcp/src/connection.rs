//! One connection to a server for one user: the handshake, the list of tools, and calls.
//!
//! Guarantees that a server asks this side for nothing: requests for a model call, for directories and for input are
//! refused.

use std::{
    collections::HashSet,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use rmcp::{
    ErrorData, RoleClient, Service, ServiceError,
    model::{
        CallToolRequest, CallToolRequestParams, ClientCapabilities, ClientConfig, ClientRequest, ClientResult,
        ErrorCode, Implementation, ListToolsRequest, PaginatedRequestParams, PingRequest, ProtocolVersion,
        ServerNotification, ServerRequest, ServerResult,
    },
    service::{
        ClientInitializeError, NotificationContext, PeerRequestOptions, RequestContext, RequestHandle, RunningService,
        serve_client_with_ct,
    },
    transport::IntoTransport,
};
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::{
    answer::Answer,
    credentials::Credentials,
    error::McpError,
    http::{Failure, LastFailure},
    listed_tool::{ListedTool, Page},
    message::result_object,
    progress::Progress,
    receive_limit::ReceiveLimit,
    redaction::Redaction,
    stdio::OwnedContainer,
};

/// Calls of one connection that are in progress at once; further ones wait.
const MAX_CALLS: usize = 8;
/// Time limit of one page of the list of tools.
const PAGE_TIMEOUT: Duration = Duration::from_secs(15);
/// Pages that are read of a list: a server that has more of them never ends.
const MAX_PAGES: usize = 32;
/// Tools that are read of a list. More than are used, so that an admin sees which ones are not.
const MAX_TOOLS: usize = 1_000;
/// Time for the answer to a ping after a call that was not answered.
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for a cancellation to be sent.
const CANCEL_TIMEOUT: Duration = Duration::from_millis(500);

/// A live connection.
pub(super) struct Connection {
    pub(super) server: String,
    /// The session: its requests, and the task that reads.
    service: RunningService<RoleClient, Handler>,
    closing: CancellationToken,
    limit: ReceiveLimit,
    failure: LastFailure,
    calls: Semaphore,
    progress: Progress,
    is_broken: AtomicBool,
    pub(super) credentials: Arc<Credentials>,
    /// Monotonic time of the end of the handshake.
    pub(super) opened_at: Duration,
    /// The container, if it has one.
    pub(super) container: Option<OwnedContainer>,
}

pub(super) struct Opening {
    pub(super) server: String,
    pub(super) limit: ReceiveLimit,
    pub(super) failure: LastFailure,
    pub(super) credentials: Arc<Credentials>,
    /// Of the error that it answers with.
    pub(super) redaction: Redaction,
    pub(super) changes: Arc<AtomicU64>,
    pub(super) opened_at: Duration,
}

/// Receives what a server sends by itself.
struct Handler {
    changes: Arc<AtomicU64>,
    progress: Progress,
}

/// Not the library's trait for clients, which answers some requests by default.
impl Service<RoleClient> for Handler {
    async fn handle_request(
        &self,
        request: ServerRequest,
        _context: RequestContext<RoleClient>,
    ) -> Result<ClientResult, ErrorData> {
        match request {
            ServerRequest::PingRequest(_) => Ok(ClientResult::empty(())),
            _ => Err(ErrorData::new(ErrorCode::METHOD_NOT_FOUND, "this client accepts no such request", None)),
        }
    }

    async fn handle_notification(
        &self,
        notification: ServerNotification,
        _context: NotificationContext<RoleClient>,
    ) -> Result<(), ErrorData> {
        match notification {
            ServerNotification::ToolListChangedNotification(_) => {
                self.changes.fetch_add(1, Ordering::Relaxed);
            }
            ServerNotification::ProgressNotification(progress) => self.progress.report(&progress.params.progress_token),
            _ => {}
        }
        Ok(())
    }

    fn get_info(&self) -> ClientConfig {
        let implementation = Implementation::new("gantry", env!("CARGO_PKG_VERSION"));
        // Later versions have no handshake, and servers refuse it with their names.
        ClientConfig::new(ClientCapabilities::default(), implementation)
            .with_protocol_version(ProtocolVersion::LATEST_WITH_INITIALIZE)
    }
}

impl Connection {
    /// Makes the handshake.
    pub(super) async fn open<T, E, A>(transport: T, opening: Opening) -> Result<Self, McpError>
    where
        T: IntoTransport<RoleClient, E, A>,
        E: std::error::Error + Send + Sync + 'static,
    {
        let Opening { server, limit, failure, credentials, redaction, changes, opened_at } = opening;
        let (closing, progress) = (CancellationToken::new(), Progress::default());
        limit.allow_answer();
        let handshake =
            serve_client_with_ct(Handler { changes, progress: progress.clone() }, transport, closing.clone());
        let service = tokio::select! {
            service = handshake => service.map_err(|error| answered(&error, &redaction)),
            () = limit.exceeded_limit() => Err(None),
        };
        let service = service.map_err(|answered| {
            let cause = limit.cause().map(str::to_owned).or(answered);
            let cause = cause.or_else(|| failure.get().map(|failure| failure.message));
            let cause = cause.unwrap_or_else(|| "it does not speak the protocol, or has ended".to_owned());
            McpError::Unavailable { server: server.clone(), cause, retry_after: None }
        })?;
        Ok(Self {
            server,
            service,
            closing,
            limit,
            failure,
            calls: Semaphore::new(MAX_CALLS),
            progress,
            is_broken: AtomicBool::new(false),
            credentials,
            opened_at,
            container: None,
        })
    }

    /// Whether it can be used.
    pub(super) fn is_open(&self) -> bool {
        !self.is_broken.load(Ordering::Relaxed)
            && self.limit.cause().is_none()
            && !self.service.is_closed()
            && !self.service.is_transport_closed()
    }

    /// The error of a connection that was closed because the server sent too much, also without a request.
    pub(super) fn limit_error(&self) -> Option<McpError> {
        let (server, cause) = (self.server.clone(), self.limit.cause()?.to_owned());
        Some(McpError::Unavailable { server, cause, retry_after: None })
    }

    /// Why its program has ended, if it has one that has.
    pub(super) async fn end_cause(&self, redaction: &Redaction) -> Option<String> {
        self.container.as_ref()?.end(redaction).await.cause()
    }

    /// Ends the session. The transport reports it to the server.
    pub(super) fn close(&self) {
        self.is_broken.store(true, Ordering::Relaxed);
        self.closing.cancel();
    }

    /// Reads the whole list of tools, within its limits.
    pub(super) async fn tools(&self, redaction: &Redaction) -> Result<Vec<ListedTool>, McpError> {
        let mut tools = Vec::new();
        let mut cursors = HashSet::new();
        let mut cursor = None;
        for _ in 0..MAX_PAGES {
            let params = PaginatedRequestParams::default().with_cursor(cursor.take());
            let request = ClientRequest::ListToolsRequest(ListToolsRequest::with_param(params));
            let never = CancellationToken::new();
            let page = self.request(request, PAGE_TIMEOUT, &never, redaction).await;
            let page = page.inspect_err(|_| self.close())?;
            let places = tools.len()..MAX_TOOLS;
            let page = redaction.read(move |redaction| Page::of(&page, places, redaction)).await?;
            let page = page.ok_or_else(|| self.invalid_answer())?;
            tools.extend(page.tools);
            // Some servers end their list with an empty cursor, or with one that they have sent before.
            cursor = page.next_cursor.filter(|next| !next.is_empty() && cursors.insert(next.clone()));
            if cursor.is_none() || tools.len() == MAX_TOOLS {
                break;
            }
        }
        Ok(tools)
    }

    /// Calls a tool. A call that is stopped, or whose server gives no sign of life for `limit`, is cancelled at the
    /// server, too.
    pub(super) async fn call(
        &self,
        (tool, limit): (&str, Duration),
        arguments: Value,
        stop: &CancellationToken,
        redaction: &Redaction,
    ) -> Result<Answer, McpError> {
        let _permit = tokio::select! {
            permit = self.calls.acquire() => permit.map_err(|_| self.closed())?,
            () = stop.cancelled() => return Err(McpError::Stopped),
            () = tokio::time::sleep(limit) => {
                return Err(McpError::TimedOut { server: self.server.clone(), limit, is_closed: false });
            }
        };
        let mut params = CallToolRequestParams::new(tool.to_owned());
        if let Value::Object(arguments) = arguments {
            params = params.with_arguments(arguments);
        }
        let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
        let result = self.request(request, limit, stop, redaction).await?;
        let answer = redaction.read(move |redaction| Answer::of(&result, redaction)).await?;
        answer.ok_or_else(|| self.invalid_answer())
    }

    /// Closes a connection whose server does not answer a ping either; whether it does not.
    pub(super) async fn close_unless_alive(&self) -> bool {
        let ping = ClientRequest::PingRequest(PingRequest::default());
        let answer = self.send(ping, PING_TIMEOUT, &CancellationToken::new()).await;
        // An error is an answer, too.
        let is_alive = matches!(answer, Ok(Ok(_) | Err(ServiceError::McpError(_))));
        if !is_alive {
            self.close();
        }
        !is_alive
    }

    /// The result as the server sent it.
    async fn request(
        &self,
        request: ClientRequest,
        limit: Duration,
        stop: &CancellationToken,
        redaction: &Redaction,
    ) -> Result<String, McpError> {
        match self.send(request, limit, stop).await? {
            Ok(result) => result_object(result).ok_or_else(|| self.invalid_answer()),
            // It has not been searched for secrets.
            Err(ServiceError::McpError(ErrorData { code, message, .. })) => {
                let (server, code) = (self.server.clone(), i64::from(code.0));
                let read = move |redaction: &Redaction| McpError::answered(&server, code, &message, redaction);
                Err(redaction.read(read).await.unwrap_or_else(|error| error))
            }
            Err(error) => Err(self.failed(&error)),
        }
    }

    async fn send(
        &self,
        request: ClientRequest,
        limit: Duration,
        stop: &CancellationToken,
    ) -> Result<Result<ServerResult, ServiceError>, McpError> {
        self.limit.allow_answer();
        let options = PeerRequestOptions::no_options();
        let mut handle = match self.service.send_cancellable_request(request, options).await {
            Ok(handle) => handle,
            Err(error) => return Ok(Err(error)),
        };
        let time = self.progress.begin(handle.progress_token.clone(), limit);
        tokio::select! {
            answer = &mut handle.rx => answer.map_err(|_| self.closed()),
            () = self.limit.exceeded_limit() => {
                self.close();
                Err(self.closed())
            }
            () = stop.cancelled() => {
                self.cancel(handle).await;
                Err(McpError::Stopped)
            }
            () = time.over() => {
                self.cancel(handle).await;
                Err(McpError::TimedOut { server: self.server.clone(), limit, is_closed: false })
            }
        }
    }

    async fn cancel(&self, handle: RequestHandle<RoleClient>) {
        let sent = tokio::time::timeout(CANCEL_TIMEOUT, handle.cancel(None)).await;
        if !matches!(sent, Ok(Ok(()))) {
            tracing::debug!(mcp.server = self.server, "a cancellation could not be sent to an MCP server");
        }
    }

    fn failed(&self, error: &ServiceError) -> McpError {
        match error {
            ServiceError::TransportSend(_) => {
                self.close();
                match self.failure.get() {
                    Some(Failure { message: cause, is_refusal: true }) if self.limit.cause().is_none() => {
                        McpError::Unavailable { server: self.server.clone(), cause, retry_after: None }
                    }
                    _ => self.closed(),
                }
            }
            ServiceError::TransportClosed => {
                self.close();
                self.closed()
            }
            ServiceError::Cancelled { .. } => McpError::Stopped,
            _ => self.invalid_answer(),
        }
    }

    fn closed(&self) -> McpError {
        let cause = self.limit.cause().map(str::to_owned);
        let cause = cause.or_else(|| self.failure.get().map(|failure| failure.message));
        McpError::Closed { server: self.server.clone(), cause }
    }

    fn invalid_answer(&self) -> McpError {
        McpError::InvalidAnswer { server: self.server.clone() }
    }
}

/// The error that a server has answered the handshake with, if it has.
fn answered(error: &ClientInitializeError, redaction: &Redaction) -> Option<String> {
    let ClientInitializeError::JsonRpcError(ErrorData { code, message, .. }) = error else { return None };
    let message = McpError::message(message, redaction);
    Some(format!("it answered the handshake with error {}: {message}", code.0))
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.closing.cancel();
    }
}
