//! Opens connections: one at a time for each server and user, within the limits of their number.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use agent::{BoxFuture, safety::LeakDetector};
use futures_util::FutureExt as _;
use protocol::McpTransportKind;
use tokio::time::Instant;

use super::{
    McpClient,
    capacity::{Capacity, MaxConnections, OpenConnection, capacity},
};
use config::McpTransport;

use crate::{
    connection::{Connection, Opening},
    credentials::{Credentials, credentials},
    error::McpError,
    http::{EgressHttp, LastFailure},
    receive_limit::ReceiveLimit,
    reconnects::Reconnects,
    redaction::Redaction,
    server::ConfiguredServer,
    slot::{ActiveCall, Slot},
};

/// Connections over HTTP in total. One user has at most one for each server.
const MAX_CONNECTIONS: usize = 256;
/// Containers in total: each may use 512 MB.
const MAX_CONTAINERS: usize = 32;
const MAX_CONTAINERS_PER_USER: usize = 8;
/// Pairs of a server and a user that are remembered.
const MAX_SLOTS: usize = 4_096;
/// Time limit of a handshake, with the start of a container.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// A connection in use.
pub(super) struct InUse {
    pub(super) connection: Arc<Connection>,
    pub(super) call: ActiveCall,
    /// Of what the server sends.
    pub(super) redaction: Redaction,
    /// Time for a call without a sign of life.
    pub(super) timeout: Duration,
}

impl McpClient {
    /// The connection of this server and user, opened if there is none.
    pub(super) async fn connection(self: &Arc<Self>, (server, user): (&str, &str)) -> Result<InUse, McpError> {
        let server = self.server(server).ok_or_else(|| McpError::UnknownServer(server.to_owned()))?;
        let detector = self.detectors.of(user).await.map_err(|error| {
            tracing::error!(
                user,
                error = &error as &dyn std::error::Error,
                "answers of MCP servers cannot be searched"
            );
            let (server, cause) = (server.name.clone(), "the secrets of its user cannot be read".to_owned());
            McpError::Unavailable { server, cause, retry_after: None }
        })?;
        let call = self.slot(&server, user).begin_call(&self.clock);
        let (this, slot) = (Arc::clone(self), Arc::clone(&call.slot));
        let (name, drain) = (server.name.clone(), self.drain.clone());
        // Continues if the caller goes away: another one may wait for the same connection, and a container is not left
        // behind.
        let opening = Arc::clone(&server);
        let own = Arc::clone(&detector);
        let opened = self.tasks.spawn(async move { drain.run_until_cancelled(this.open(&opening, &slot, own)).await });
        let ended = || McpError::Unavailable {
            server: name,
            cause: "the server is shutting down".to_owned(),
            retry_after: None,
        };
        let connection = opened.await.ok().flatten().unwrap_or_else(|| Err(ended()))?;
        let redaction = Redaction::new(server.name.clone(), Arc::clone(&connection.credentials), detector);
        Ok(InUse { connection, call, redaction, timeout: server.timeout })
    }

    fn slot(&self, server: &ConfiguredServer, user: &str) -> Arc<Slot> {
        let mut slots = self.slots.lock();
        let key = (server.name.clone(), user.to_owned());
        if slots.len() >= MAX_SLOTS && !slots.contains_key(&key) {
            slots.retain(|_, slot| slot.usage.lock().is_open || Arc::strong_count(slot) > 1);
        }
        Arc::clone(slots.entry(key).or_insert_with(|| Slot::new(server.kind, user)))
    }

    async fn open(
        self: &Arc<Self>,
        server: &Arc<ConfiguredServer>,
        slot: &Arc<Slot>,
        detector: Arc<LeakDetector>,
    ) -> Result<Arc<Connection>, McpError> {
        let mut state = Arc::clone(&slot.state).lock_owned().await;
        let credentials = credentials(server, &slot.user, &self.secrets).await;
        let credentials = credentials.inspect_err(|error| self.note(&server.name, Some(error)))?;
        if let Some(connection) = &state.connection {
            if connection.is_open() && connection.credentials.digest == credentials.digest {
                return Ok(Arc::clone(connection));
            }
            state = self.end(state, Arc::clone(slot)).await;
        }
        if let Some(error) = state.refusal(server, self.clock.monotonic()) {
            return Err(error);
        }
        self.reserve(slot)?;
        let opened = self.connect(Arc::clone(server), slot, credentials, detector).await;
        self.note(&server.name, opened.as_ref().err());
        match opened {
            Ok(connection) => {
                let connection = Arc::new(connection);
                // It may be another program than before: its list is read again.
                slot.changes.fetch_add(1, Ordering::Relaxed);
                state.opened(&connection);
                Ok(connection)
            }
            Err(error) => {
                slot.usage.lock().is_open = false;
                state.failed(&error, self.clock.monotonic());
                Err(error)
            }
        }
    }

    /// Starts the server's container, if it has one, and makes the handshake. The future is boxed because the compiler
    /// cannot see that the protocol library's is `Send` for every lifetime.
    fn connect(
        self: &Arc<Self>,
        server: Arc<ConfiguredServer>,
        slot: &Slot,
        credentials: Credentials,
        detector: Arc<LeakDetector>,
    ) -> BoxFuture<'static, Result<Connection, McpError>> {
        let (limit, failure) = (ReceiveLimit::new(), LastFailure::default());
        let credentials = Arc::new(credentials);
        let redaction = Redaction::new(server.name.clone(), Arc::clone(&credentials), detector);
        let opening = Opening {
            server: server.name.clone(),
            limit: limit.clone(),
            failure: failure.clone(),
            credentials: Arc::clone(&credentials),
            redaction: redaction.clone(),
            changes: Arc::clone(&slot.changes),
            opened_at: self.clock.monotonic(),
        };
        let (this, user) = (Arc::clone(self), slot.user.clone());
        Box::pin(async move {
            let deadline = Instant::now() + CONNECT_TIMEOUT;
            match &server.transport {
                McpTransport::Http { url, .. } => {
                    let (egress, reconnects) = (this.egress.keeping_connections(), Reconnects::default());
                    let (redaction, changes) = (redaction.clone(), Arc::clone(&opening.changes));
                    let http = EgressHttp { egress, credentials, limit, failure, reconnects, redaction, changes };
                    by(deadline, &server, Connection::open(http.transport(url), opening).boxed()).await
                }
                McpTransport::Stdio { image, command } => {
                    let starting = this.containers.start((&server.name, &user), (image, command), &limit);
                    let (container, streams) = by(deadline, &server, starting).await?;
                    let opened = by(deadline, &server, Connection::open(streams.transport(), opening).boxed()).await;
                    match opened {
                        Ok(mut connection) => {
                            connection.container = Some(container);
                            Ok(connection)
                        }
                        Err(error) => {
                            let end = container.end(&redaction).await;
                            let error = error.with_cause(end.cause());
                            tracing::warn!(mcp.server = server.name, %error, stderr = end.stderr, "an MCP server does not start");
                            this.stderr.lock().insert(server.name.clone(), end.stderr);
                            // It counts as a connection until it is gone.
                            container.remove().await;
                            Err(error)
                        }
                    }
                }
            }
        })
    }

    /// Makes room for one more connection, by ending one that is not in use if there are too many.
    fn reserve(self: &Arc<Self>, slot: &Arc<Slot>) -> Result<(), McpError> {
        let slots = self.slots.lock();
        let others = slots.values().filter(|one| one.kind == slot.kind && !Arc::ptr_eq(one, slot));
        let (mut open, mut connections) = (Vec::new(), Vec::new());
        for one in others {
            let usage = one.usage.lock();
            if usage.is_open {
                open.push(one);
                let (is_idle, last_used) = (usage.calls == 0, usage.last_used);
                connections.push(OpenConnection { user: &one.user, is_idle, last_used });
            }
        }
        let max = match slot.kind {
            McpTransportKind::Http => MaxConnections { total: MAX_CONNECTIONS, of_user: MAX_CONNECTIONS },
            McpTransportKind::Stdio => MaxConnections { total: MAX_CONTAINERS, of_user: MAX_CONTAINERS_PER_USER },
        };
        let now = self.clock.monotonic();
        match capacity(&connections, &slot.user, max, now) {
            Capacity::Free => {}
            Capacity::After(index) => self.end_later(open[index]),
            Capacity::None => return Err(McpError::TooManyConnections),
        }
        let mut usage = slot.usage.lock();
        usage.is_open = true;
        usage.last_used = now;
        Ok(())
    }
}

/// Opens a connection until the deadline.
async fn by<T>(
    deadline: Instant,
    server: &ConfiguredServer,
    opening: impl Future<Output = Result<T, McpError>>,
) -> Result<T, McpError> {
    tokio::time::timeout_at(deadline, opening).await.unwrap_or_else(|_| {
        let (server, limit) = (server.name.clone(), CONNECT_TIMEOUT);
        Err(McpError::TimedOut { server, limit, is_closed: false })
    })
}
