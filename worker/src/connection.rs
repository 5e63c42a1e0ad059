//! A pool of HTTP/1.1 connections to the orchestrator's socket.
//!
//! Idle connections are kept without a time limit, so that the worker needs no new one while its commands flood the
//! socket. A response body is read piece by piece or as a whole; its connection becomes idle again once the body has
//! been read to its end. A request on a broken connection is retried once on a new one; there are no other retries.
//! Never interprets responses.

use std::{
    io,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{
    Request, Response,
    body::{Body, Frame, Incoming, SizeHint},
    client::conn::http1,
};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use protocol::limits::MAX_WORKER_RESPONSE_BYTES;
use tokio::{
    net::UnixStream,
    time::{sleep, timeout},
};
use tokio_util::task::TaskTracker;

/// The orchestrator serves this many requests of one job at a time.
const MAX_IDLE_CONNECTIONS: usize = 16;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Retry delay for a socket whose backlog is full.
const BACKLOG_RETRY: Duration = Duration::from_millis(5);

/// Why there is no response.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The socket did not accept a connection.
    #[error("cannot connect to the socket")]
    Connect(#[source] io::Error),
    /// The connection broke.
    #[error("the connection failed")]
    Http(#[from] hyper::Error),
    /// The response body is incomplete or too large.
    #[error("cannot read the response body")]
    Body(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// No response in time.
    #[error("no response within {} s", .0.as_secs())]
    Timeout(Duration),
}

type Connection = http1::SendRequest<Full<Bytes>>;

/// Open connections to one socket.
pub(crate) struct ConnectionPool {
    socket: PathBuf,
    idle: IdleConnections,
    /// Owns the tasks that drive the connections. Each task ends with its connection.
    drivers: TaskTracker,
}

impl ConnectionPool {
    /// An empty pool.
    pub(crate) fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned(), idle: IdleConnections::default(), drivers: TaskTracker::new() }
    }

    /// Sends a request and reads the whole response within `limit`.
    pub(crate) async fn send(
        &self,
        request: &Request<Full<Bytes>>,
        limit: Duration,
    ) -> Result<Response<Bytes>, TransportError> {
        let exchange = async { collect(self.open(request).await?).await };
        timeout(limit, exchange).await.map_err(|_| TransportError::Timeout(limit))?
    }

    /// Sends a request and returns when the response has begun. A request that fails on a pooled connection is sent
    /// again on a new one, so it must be idempotent. A body that is dropped before its end closes its connection.
    pub(crate) async fn open(&self, request: &Request<Full<Bytes>>) -> Result<Response<StreamedBody>, TransportError> {
        while let Some(mut connection) = self.idle.take() {
            if connection.ready().await.is_err() {
                continue;
            }
            match self.open_on(connection, request).await {
                Ok(response) => return Ok(response),
                Err(error) => tracing::debug!(error = &error as &dyn std::error::Error, "connection failed"),
            }
            break;
        }
        self.open_on(self.connect().await?, request).await
    }

    async fn open_on(
        &self,
        mut connection: Connection,
        request: &Request<Full<Bytes>>,
    ) -> Result<Response<StreamedBody>, TransportError> {
        let response = connection.send_request(request.clone()).await?;
        Ok(response.map(|body| StreamedBody { body, connection: Some(connection), idle: self.idle.clone() }))
    }

    /// Opens connections until `count` are idle, and sends `request` on each new one.
    pub(crate) async fn fill(&self, count: usize, request: &Request<Full<Bytes>>) -> Result<(), TransportError> {
        let opened = IdleConnections::default();
        let (mut result, mut is_refused) = (Ok(()), false);
        while result.is_ok() && !is_refused && self.idle.len() + opened.len() < count {
            result = async {
                let response = self.open_on(self.connect().await?, request).await?;
                // A socket that refuses has no more connections for the session.
                is_refused = !response.status().is_success();
                collect(response.map(|body| StreamedBody { idle: opened.clone(), ..body })).await.map(drop)
            }
            .await;
        }
        while let Some(connection) = opened.take() {
            self.idle.put(connection);
        }
        result
    }

    async fn connect(&self) -> Result<Connection, TransportError> {
        let stream = timeout(CONNECT_TIMEOUT, self.connect_with_retries())
            .await
            .map_err(|_| TransportError::Timeout(CONNECT_TIMEOUT))?
            .map_err(TransportError::Connect)?;
        let (connection, driver) = http1::handshake(TokioIo::new(stream)).await?;
        self.drivers.spawn(async move {
            // The pending request returns the same error.
            let _ = driver.await;
        });
        Ok(connection)
    }

    /// Connects, and retries while the backlog is full. A Unix socket refuses at once then, and processes of the job
    /// may keep the backlog full; slots become free many times a second.
    async fn connect_with_retries(&self) -> io::Result<UnixStream> {
        loop {
            match UnixStream::connect(&self.socket).await {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(BACKLOG_RETRY).await,
                connected => return connected,
            }
        }
    }
}

/// The connections that wait for a request.
#[derive(Clone, Default)]
struct IdleConnections(Arc<Mutex<Vec<Connection>>>);

impl IdleConnections {
    fn take(&self) -> Option<Connection> {
        self.with(Vec::pop)
    }

    fn put(&self, connection: Connection) {
        self.with(|idle| {
            if !connection.is_closed() && idle.len() < MAX_IDLE_CONNECTIONS {
                idle.push(connection);
            }
        });
    }

    fn len(&self) -> usize {
        self.with(|idle| idle.len())
    }

    fn with<T>(&self, use_it: impl FnOnce(&mut Vec<Connection>) -> T) -> T {
        use_it(&mut self.0.lock())
    }
}

/// A response body that is read as it arrives. Its connection becomes idle at the end of the body.
pub(crate) struct StreamedBody {
    body: Incoming,
    connection: Option<Connection>,
    idle: IdleConnections,
}

impl Body for StreamedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        let has_ended = frame.is_none() || self.body.is_end_stream();
        if let Some(connection) = self.connection.take_if(|_| has_ended) {
            self.idle.put(connection);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        // Only a reader who polls for the end releases the connection.
        self.connection.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

async fn collect(response: Response<StreamedBody>) -> Result<Response<Bytes>, TransportError> {
    let (head, body) = response.into_parts();
    let body = Limited::new(body, MAX_WORKER_RESPONSE_BYTES).collect().await.map_err(TransportError::Body)?;
    Ok(Response::from_parts(head, body.to_bytes()))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::UnixListener,
        sync::oneshot,
    };

    use super::*;

    const LIMIT: Duration = Duration::from_mins(1);
    const HEAD: &[u8] = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";

    async fn read_request(stream: &mut UnixStream) {
        let mut request = Vec::new();
        while !request.ends_with(b"\r\n\r\n") {
            request.push(stream.read_u8().await.unwrap());
        }
    }

    async fn piece(body: &mut StreamedBody) -> Option<Bytes> {
        let frame = timeout(LIMIT, body.frame()).await.expect("a piece of the body")?;
        Some(frame.unwrap().into_data().unwrap())
    }

    #[tokio::test]
    async fn a_body_is_read_as_it_arrives_and_its_connection_is_reused() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        let (first_was_read, send_second) = oneshot::channel();
        let server = TaskTracker::new().spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            read_request(&mut stream).await;
            stream.write_all(&[HEAD, b"5\r\nfirst\r\n"].concat()).await.unwrap();
            send_second.await.unwrap();
            stream.write_all(b"6\r\nsecond\r\n0\r\n\r\n").await.unwrap();
            // The only connection that is accepted.
            read_request(&mut stream).await;
            stream.write_all(&[HEAD, b"5\r\nwhole\r\n0\r\n\r\n"].concat()).await.unwrap();
        });
        let pool = ConnectionPool::new(&socket);
        let request = Request::new(Full::default());

        let mut body = pool.open(&request).await.unwrap().into_body();
        assert_eq!(piece(&mut body).await.as_deref(), Some(b"first".as_slice()));
        assert_eq!(pool.idle.len(), 0, "a connection with an unread body is not idle");
        first_was_read.send(()).unwrap();
        assert_eq!(piece(&mut body).await.as_deref(), Some(b"second".as_slice()));
        assert_eq!(piece(&mut body).await, None);
        assert_eq!(pool.idle.len(), 1);

        assert_eq!(pool.send(&request, LIMIT).await.unwrap().into_body().as_ref(), b"whole");
        server.await.unwrap();
    }

    /// The server closes a connection that it has answered on: before the next request is sent, or when it has read it.
    #[rstest]
    #[case::while_it_was_idle(false)]
    #[case::when_it_had_the_request(true)]
    #[tokio::test]
    async fn a_pooled_connection_that_the_server_closed_fails_no_request(#[case] reads_request: bool) {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        let (is_closed, closed) = oneshot::channel();
        let server = TaskTracker::new().spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            read_request(&mut stream).await;
            stream.write_all(&[HEAD, b"5\r\nfirst\r\n0\r\n\r\n"].concat()).await.unwrap();
            if reads_request {
                is_closed.send(()).unwrap();
                read_request(&mut stream).await;
                drop(stream);
            } else {
                drop(stream);
                is_closed.send(()).unwrap();
            }
            let (mut stream, _) = listener.accept().await.unwrap();
            read_request(&mut stream).await;
            stream.write_all(&[HEAD, b"6\r\nsecond\r\n0\r\n\r\n"].concat()).await.unwrap();
        });
        let pool = ConnectionPool::new(&socket);
        let request = Request::new(Full::default());
        assert_eq!(pool.send(&request, LIMIT).await.unwrap().into_body().as_ref(), b"first");
        closed.await.unwrap();
        assert_eq!(pool.send(&request, LIMIT).await.unwrap().into_body().as_ref(), b"second");
        server.await.unwrap();
    }

    #[tokio::test]
    async fn a_body_that_is_dropped_before_its_end_closes_its_connection() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        let server = TaskTracker::new().spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            read_request(&mut stream).await;
            stream.write_all(&[HEAD, b"5\r\nfirst\r\n"].concat()).await.unwrap();
            timeout(LIMIT, stream.read(&mut [0])).await.expect("the end of the connection").unwrap()
        });
        let pool = ConnectionPool::new(&socket);
        let mut body = pool.open(&Request::new(Full::default())).await.unwrap().into_body();
        piece(&mut body).await.unwrap();
        drop(body);
        assert_eq!(server.await.unwrap(), 0);
        assert_eq!(pool.idle.len(), 0);
    }
}
