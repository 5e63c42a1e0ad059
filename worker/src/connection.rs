//! A pool of HTTP/1.1 connections to the orchestrator's socket.
//!
//! Idle connections are kept without a time limit, so that the worker needs no new one while its commands flood the socket.
//! A request on a broken connection is retried once on a new one; there are no other retries. Never interprets responses.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{Request, Response, client::conn::http1};
use hyper_util::rt::TokioIo;
use tokio::{
    net::UnixStream,
    time::{sleep, timeout},
};
use tokio_util::task::TaskTracker;

/// The orchestrator serves this many requests of one job at a time.
const MAX_IDLE_CONNECTIONS: usize = 16;
/// A model call's body may have 32 MiB, and a job assignment contains the transcript of such calls.
const MAX_RESPONSE_BYTES: usize = 64 * 1024 * 1024;
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
    idle: Mutex<Vec<Connection>>,
    /// Owns the tasks that drive the connections. Each task ends with its connection.
    drivers: TaskTracker,
}

impl ConnectionPool {
    /// An empty pool.
    pub(crate) fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned(), idle: Mutex::default(), drivers: TaskTracker::new() }
    }

    /// Sends a request and reads the whole response. A request that fails on a pooled connection is sent again on a new one,
    /// so it must be idempotent.
    pub(crate) async fn send(
        &self,
        request: &Request<Full<Bytes>>,
        limit: Duration,
    ) -> Result<Response<Bytes>, TransportError> {
        let exchange = async {
            while let Some(mut connection) = self.take_idle() {
                if connection.ready().await.is_err() {
                    continue;
                }
                match exchange(&mut connection, request.clone()).await {
                    Ok(response) => {
                        self.put_back(connection);
                        return Ok(response);
                    }
                    Err(error) => tracing::debug!(error = &error as &dyn std::error::Error, "connection failed"),
                }
                break;
            }
            let mut connection = self.connect().await?;
            let response = exchange(&mut connection, request.clone()).await?;
            self.put_back(connection);
            Ok(response)
        };
        timeout(limit, exchange).await.map_err(|_| TransportError::Timeout(limit))?
    }

    /// Opens connections until `count` are idle, and sends `request` on each new one.
    pub(crate) async fn fill(&self, count: usize, request: &Request<Full<Bytes>>) -> Result<(), TransportError> {
        let mut opened = Vec::new();
        let mut result = Ok(());
        while result.is_ok() && self.idle().len() + opened.len() < count {
            result = async {
                let mut connection = self.connect().await?;
                exchange(&mut connection, request.clone()).await?;
                opened.push(connection);
                Ok(())
            }
            .await;
        }
        for connection in opened {
            self.put_back(connection);
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

    /// Connects, and retries while the backlog is full. A Unix socket refuses at once then, and processes of the job may
    /// keep the backlog full; slots become free many times a second.
    async fn connect_with_retries(&self) -> io::Result<UnixStream> {
        loop {
            match UnixStream::connect(&self.socket).await {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(BACKLOG_RETRY).await,
                connected => return connected,
            }
        }
    }

    fn take_idle(&self) -> Option<Connection> {
        self.idle().pop()
    }

    fn put_back(&self, connection: Connection) {
        let mut idle = self.idle();
        if !connection.is_closed() && idle.len() < MAX_IDLE_CONNECTIONS {
            idle.push(connection);
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn exchange(
    connection: &mut Connection,
    request: Request<Full<Bytes>>,
) -> Result<Response<Bytes>, TransportError> {
    let (head, body) = connection.send_request(request).await?.into_parts();
    let body = Limited::new(body, MAX_RESPONSE_BYTES).collect().await.map_err(TransportError::Body)?;
    Ok(Response::from_parts(head, body.to_bytes()))
}
