//! The servers, and the connections to them: one for each server and user, opened when it is needed.
//!
//! Owns how many there are, when an idle one ends, and how long a server that failed is left alone. A connection is never shared by
//! users, since its headers and its state are one user's.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use agent::BoxFuture;
use futures_util::future::join_all;
use protocol::{ApprovalRequirement, McpTransportKind};
use serde_json::Value;
use tokio::sync::OwnedMutexGuard;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    answer::{Answer, ListedTool},
    connection::{Connection, Opening},
    credentials::{Credentials, credentials},
    error::McpError,
    http::{EgressHttp, LastFailure},
    receive_limit::ReceiveLimit,
    stdio::Containers,
};
use crate::{
    clock::Clock,
    config::{McpServerSettings, McpTransport},
    dispatch::Sandbox,
    egress::{EgressClient, InvalidRequest, OutboundRequest},
    engine::Engine,
    secrets::Secrets,
};

/// Connections over HTTP in total. One user has at most one for each server.
const MAX_CONNECTIONS: usize = 256;
/// Containers in total: each may use 512 MB.
const MAX_CONTAINERS: usize = 32;
/// Containers of one user.
const MAX_CONTAINERS_PER_USER: usize = 8;
/// Pairs of a server and a user that are remembered.
const MAX_SLOTS: usize = 4_096;
/// Time without a call after which a connection ends.
const IDLE: Duration = Duration::from_mins(5);
/// Time between two searches for idle connections.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Searches for idle connections between two searches for containers without a connection.
const SWEEPS_PER_CLEANUP: u32 = 60;
/// Time limit of a handshake, with the start of a container.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Wait after the first failure; doubled with each further one.
const FIRST_BACKOFF: Duration = Duration::from_secs(1);
const MAX_BACKOFF: Duration = Duration::from_mins(1);
/// A connection that ends by itself earlier counts as a failure.
const STABLE: Duration = Duration::from_secs(10);
/// Time to end all connections when the process drains.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);

/// A server of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfiguredServer {
    /// Its name.
    pub name: String,
    /// How it is reached.
    pub kind: McpTransportKind,
    /// The URL without its query, or the image.
    pub address: String,
    /// The approval that a call of its tools needs.
    pub requirement: ApprovalRequirement,
    pub(super) transport: McpTransport,
}

/// A server whose URL cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InvalidServer {
    /// The URL is invalid.
    #[error("the MCP server {server}: {source}")]
    Url {
        /// The server.
        server: String,
        /// The cause.
        source: InvalidRequest,
    },
}

/// What an admin sees of a server's connections.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerStatus {
    /// Open connections.
    pub connections: u32,
    /// The last error, if no connection has succeeded since.
    pub error: Option<String>,
}

/// A list of tools, and the number of changes that the server had reported before it was read.
#[derive(Debug, Clone, PartialEq)]
pub struct Listed {
    /// The tools.
    pub tools: Vec<ListedTool>,
    /// See [`McpClient::changes`].
    pub changes: u64,
}

/// What connections are made with.
pub struct McpParts {
    /// Dials servers over HTTP.
    pub egress: EgressClient,
    /// The secrets that headers name.
    pub secrets: Arc<Secrets>,
    /// Runs servers in containers.
    pub engine: Arc<dyn Engine>,
    /// Whether containers can run.
    pub sandbox: Arc<Sandbox>,
    /// The clock.
    pub clock: Clock,
}

/// The servers and their connections.
pub struct McpClient {
    servers: BTreeMap<String, Arc<ConfiguredServer>>,
    egress: EgressClient,
    secrets: Arc<Secrets>,
    containers: Containers,
    clock: Clock,
    slots: Mutex<HashMap<(String, String), Arc<Slot>>>,
    errors: Mutex<HashMap<String, String>>,
    tasks: TaskTracker,
    drain: CancellationToken,
}

/// The place of one connection.
struct Slot {
    kind: McpTransportKind,
    user: String,
    state: Arc<tokio::sync::Mutex<SlotState>>,
    usage: Mutex<Usage>,
    /// Changes of the list of tools that the server has reported.
    changes: Arc<AtomicU64>,
}

#[derive(Default)]
struct SlotState {
    connection: Option<Arc<Connection>>,
    failures: u32,
    retry_at: Option<Duration>,
    last_error: Option<McpError>,
}

#[derive(Debug, Default)]
struct Usage {
    /// Whether it counts as a connection: it is open, or being opened.
    is_open: bool,
    calls: usize,
    last_used: Duration,
}

/// A connection in use, which does not end for idleness.
struct InUse {
    connection: Arc<Connection>,
    slot: Arc<Slot>,
    clock: Clock,
}

impl Drop for InUse {
    fn drop(&mut self) {
        let mut usage = lock(&self.slot.usage);
        usage.calls = usage.calls.saturating_sub(1);
        usage.last_used = self.clock.monotonic();
    }
}

impl McpClient {
    /// The client of these servers. Connects to none of them.
    pub fn new(settings: &[McpServerSettings], parts: McpParts) -> Result<Self, InvalidServer> {
        let servers = settings.iter().map(configured).collect::<Result<Vec<_>, _>>()?;
        let McpParts { egress, secrets, engine, sandbox, clock } = parts;
        Ok(Self {
            servers: servers.into_iter().map(|server| (server.name.clone(), Arc::new(server))).collect(),
            egress,
            secrets,
            containers: Containers::new(engine, sandbox, clock.clone()),
            clock,
            slots: Mutex::default(),
            errors: Mutex::default(),
            tasks: TaskTracker::new(),
            drain: CancellationToken::new(),
        })
    }

    /// The servers, ordered by name.
    pub fn servers(&self) -> impl Iterator<Item = &Arc<ConfiguredServer>> {
        self.servers.values()
    }

    /// The server of this name.
    pub fn server(&self, name: &str) -> Option<Arc<ConfiguredServer>> {
        self.servers.get(name).cloned()
    }

    /// How often the server has reported to this user that its list of tools has changed.
    pub fn changes(&self, (server, user): (&str, &str)) -> u64 {
        let slots = lock(&self.slots);
        slots.get(&(server.to_owned(), user.to_owned())).map_or(0, |slot| slot.changes.load(Ordering::Relaxed))
    }

    /// The state of a server's connections.
    pub fn status(&self, server: &str) -> ServerStatus {
        let slots = lock(&self.slots);
        let open = slots.iter().filter(|((name, _), slot)| name == server && lock(&slot.usage).is_open).count();
        let error = lock(&self.errors).get(server).cloned();
        ServerStatus { connections: u32::try_from(open).unwrap_or(u32::MAX), error }
    }

    /// Reads a server's list of tools.
    pub async fn tools(self: &Arc<Self>, key: (&str, &str)) -> Result<Listed, McpError> {
        let in_use = self.connection(key).await?;
        let changes = in_use.slot.changes.load(Ordering::Relaxed);
        let tools = in_use.connection.tools().await.inspect_err(|error| self.note(key.0, Some(error)))?;
        Ok(Listed { tools, changes })
    }

    /// Calls a tool as this user.
    pub async fn call(
        self: &Arc<Self>,
        key: (&str, &str),
        tool: &str,
        arguments: Value,
        stop: &CancellationToken,
    ) -> Result<Answer, McpError> {
        let in_use = tokio::select! {
            in_use = self.connection(key) => in_use?,
            () = stop.cancelled() => return Err(McpError::Stopped),
        };
        in_use.connection.call(tool, arguments, stop).await
    }

    /// Runs a task until it ends or the process drains.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let drain = self.drain.clone();
        self.tasks.spawn(async move { drain.run_until_cancelled(task).await });
    }

    /// Ends idle connections and removes leftover containers until the process drains, then ends all connections.
    pub async fn run(self: Arc<Self>, drain: CancellationToken) {
        let has_containers = self.servers().any(|server| server.kind == McpTransportKind::Stdio);
        if has_containers {
            drain.run_until_cancelled(self.containers.remove_leftovers()).await;
        }
        let mut sweeps: u32 = 0;
        while drain.run_until_cancelled(tokio::time::sleep(SWEEP_INTERVAL)).await.is_some() {
            self.end_idle();
            sweeps = (sweeps + 1) % SWEEPS_PER_CLEANUP;
            if has_containers && sweeps == 0 {
                drain.run_until_cancelled(self.containers.remove_leftovers()).await;
            }
        }
        self.drain.cancel();
        let slots: Vec<Arc<Slot>> = lock(&self.slots).values().cloned().collect();
        let ends = slots.into_iter().map(|slot| {
            let this = Arc::clone(&self);
            async move { this.end(Arc::clone(&slot.state).lock_owned().await, slot).await }
        });
        if tokio::time::timeout(CLOSE_TIMEOUT, join_all(ends)).await.is_err() {
            tracing::warn!("drain timeout: connections to MCP servers were still being closed");
        }
        self.tasks.close();
        let _ended = tokio::time::timeout(CLOSE_TIMEOUT, self.tasks.wait()).await;
    }

    /// The connection of this server and user, opened if there is none.
    async fn connection(self: &Arc<Self>, (server, user): (&str, &str)) -> Result<InUse, McpError> {
        let server = self.server(server).ok_or_else(|| McpError::UnknownServer(server.to_owned()))?;
        let slot = self.slot(&server, user);
        lock(&slot.usage).calls += 1;
        let (this, own) = (Arc::clone(self), Arc::clone(&slot));
        let (name, drain) = (server.name.clone(), self.drain.clone());
        // Continues if the caller goes away: another one may wait for the same connection, and a container is not left behind.
        let opened = self.tasks.spawn(async move { drain.run_until_cancelled(this.open(&server, &own)).await });
        let ended = || McpError::Unavailable {
            server: name.clone(),
            cause: "the server is shutting down".to_owned(),
            retry_after: None,
        };
        let opened = opened.await.ok().flatten().unwrap_or_else(|| Err(ended()));
        match opened {
            Ok(connection) => Ok(InUse { connection, slot, clock: self.clock.clone() }),
            Err(error) => {
                let mut usage = lock(&slot.usage);
                usage.calls = usage.calls.saturating_sub(1);
                Err(error)
            }
        }
    }

    fn slot(&self, server: &ConfiguredServer, user: &str) -> Arc<Slot> {
        let mut slots = lock(&self.slots);
        let key = (server.name.clone(), user.to_owned());
        if slots.len() >= MAX_SLOTS && !slots.contains_key(&key) {
            slots.retain(|_, slot| lock(&slot.usage).is_open || Arc::strong_count(slot) > 1);
        }
        let slot = slots.entry(key).or_insert_with(|| {
            Arc::new(Slot {
                kind: server.kind,
                user: user.to_owned(),
                state: Arc::default(),
                usage: Mutex::default(),
                changes: Arc::default(),
            })
        });
        Arc::clone(slot)
    }

    async fn open(
        self: &Arc<Self>,
        server: &Arc<ConfiguredServer>,
        slot: &Arc<Slot>,
    ) -> Result<Arc<Connection>, McpError> {
        let mut state = Arc::clone(&slot.state).lock_owned().await;
        let credentials = credentials(server, &slot.user, &self.secrets).await?;
        if let Some(connection) = &state.connection {
            if connection.is_open() && connection.credentials.digest == credentials.digest {
                return Ok(Arc::clone(connection));
            }
            let was_short = self.clock.monotonic().saturating_sub(connection.opened_at) < STABLE;
            if !connection.is_open() && was_short {
                self.back_off(&mut state, None);
            }
            state = self.end(state, Arc::clone(slot)).await;
        }
        let now = self.clock.monotonic();
        if let Some(at) = state.retry_at.filter(|at| *at > now) {
            return Err(waiting(server, state.last_error.as_ref(), at.saturating_sub(now)));
        }
        self.reserve(slot)?;
        let opening = tokio::time::timeout(CONNECT_TIMEOUT, self.connect(Arc::clone(server), slot, credentials));
        let opened = opening.await.unwrap_or_else(|_| {
            let (server, limit) = (server.name.clone(), CONNECT_TIMEOUT);
            Err(McpError::TimedOut { server, limit })
        });
        self.note(&server.name, opened.as_ref().err());
        match opened {
            Ok(connection) => {
                let connection = Arc::new(connection);
                state.connection = Some(Arc::clone(&connection));
                (state.failures, state.retry_at, state.last_error) = (state.failures / 2, None, None);
                Ok(connection)
            }
            Err(error) => {
                lock(&slot.usage).is_open = false;
                self.back_off(&mut state, Some(error.clone()));
                Err(error)
            }
        }
    }

    /// Starts the server's container, if it has one, and makes the handshake. The future is boxed because the compiler cannot see
    /// that the protocol library's is `Send` for every lifetime.
    fn connect(
        self: &Arc<Self>,
        server: Arc<ConfiguredServer>,
        slot: &Slot,
        credentials: Credentials,
    ) -> BoxFuture<'static, Result<Connection, McpError>> {
        let (limit, failure) = (ReceiveLimit::new(), LastFailure::default());
        let credentials = Arc::new(credentials);
        let opening = Opening {
            server: server.name.clone(),
            limit: limit.clone(),
            failure: failure.clone(),
            credentials: Arc::clone(&credentials),
            changes: Arc::clone(&slot.changes),
            container: None,
        };
        let (this, user, now) = (Arc::clone(self), slot.user.clone(), self.clock.monotonic());
        Box::pin(async move {
            match &server.transport {
                McpTransport::Http { url, .. } => {
                    let http = EgressHttp { egress: this.egress.clone(), credentials, limit, failure };
                    Connection::open_http(http, url, opening, now).await
                }
                McpTransport::Stdio { image, command } => {
                    let started = this.containers.start((&server.name, &user), (image, command), &limit).await?;
                    let container = started.container.clone();
                    let opening = Opening { container: Some(container.clone()), ..opening };
                    let opened = Connection::open_stdio(started, opening, now).await;
                    if opened.is_err() {
                        this.containers.remove(&container).await;
                    }
                    opened
                }
            }
        })
    }

    /// Makes room for one more connection, by ending one that is not in use if there are too many.
    fn reserve(self: &Arc<Self>, slot: &Arc<Slot>) -> Result<(), McpError> {
        let slots = lock(&self.slots);
        let open: Vec<&Arc<Slot>> = slots
            .values()
            .filter(|one| one.kind == slot.kind && !Arc::ptr_eq(one, slot) && lock(&one.usage).is_open)
            .collect();
        let own: Vec<&Arc<Slot>> = open.iter().copied().filter(|one| one.user == slot.user).collect();
        let (max, max_own) = match slot.kind {
            McpTransportKind::Http => (MAX_CONNECTIONS, usize::MAX),
            McpTransportKind::Stdio => (MAX_CONTAINERS, MAX_CONTAINERS_PER_USER),
        };
        let candidates = if own.len() >= max_own { &own } else { &open };
        if own.len() >= max_own || open.len() >= max {
            let idle = candidates.iter().filter(|one| lock(&one.usage).calls == 0);
            let oldest = idle.min_by_key(|one| lock(&one.usage).last_used).ok_or(McpError::TooManyConnections)?;
            self.end_later(oldest);
        }
        let mut usage = lock(&slot.usage);
        usage.is_open = true;
        usage.last_used = self.clock.monotonic();
        Ok(())
    }

    fn end_idle(self: &Arc<Self>) {
        let now = self.clock.monotonic();
        let slots: Vec<Arc<Slot>> = lock(&self.slots).values().cloned().collect();
        for slot in slots {
            let usage = lock(&slot.usage);
            let is_idle = usage.is_open && usage.calls == 0 && now.saturating_sub(usage.last_used) >= IDLE;
            drop(usage);
            if is_idle {
                self.end_later(&slot);
            }
        }
    }

    fn end_later(self: &Arc<Self>, slot: &Arc<Slot>) {
        // No longer counted from now on.
        lock(&slot.usage).is_open = false;
        let (this, slot) = (Arc::clone(self), Arc::clone(slot));
        self.tasks.spawn(async move {
            let state = Arc::clone(&slot.state).lock_owned().await;
            let is_used = lock(&slot.usage).calls > 0;
            if is_used && state.connection.is_some() {
                // A call has begun in the meantime.
                lock(&slot.usage).is_open = true;
            } else {
                this.end(state, slot).await;
            }
        });
    }

    /// Ends the connection of a slot, if it has one.
    async fn end(&self, mut state: OwnedMutexGuard<SlotState>, slot: Arc<Slot>) -> OwnedMutexGuard<SlotState> {
        if let Some(connection) = state.connection.take() {
            connection.close();
            if let Some(container) = &connection.container {
                self.containers.remove(container).await;
            }
        }
        lock(&slot.usage).is_open = false;
        state
    }

    fn back_off(&self, state: &mut SlotState, error: Option<McpError>) {
        let wait = FIRST_BACKOFF.saturating_mul(1 << state.failures.min(10)).min(MAX_BACKOFF);
        state.failures = state.failures.saturating_add(1);
        state.retry_at = Some(self.clock.monotonic() + wait);
        state.last_error = error;
    }

    /// Remembers the last error of a server for the admin, or that there is none.
    fn note(&self, server: &str, error: Option<&McpError>) {
        let mut errors = lock(&self.errors);
        match error {
            Some(error) => drop(errors.insert(server.to_owned(), error.to_string())),
            None => drop(errors.remove(server)),
        }
    }
}

fn waiting(server: &ConfiguredServer, last: Option<&McpError>, wait: Duration) -> McpError {
    let (server, retry_after) = (server.name.clone(), Some(wait));
    match last {
        Some(McpError::Sandbox { cause, .. }) => McpError::Sandbox { server, cause: cause.clone() },
        Some(McpError::Unavailable { cause, .. }) => {
            McpError::Unavailable { server, cause: cause.clone(), retry_after }
        }
        Some(error) => McpError::Unavailable { server, cause: error.to_string(), retry_after },
        None => McpError::Unavailable { server, cause: "it ended by itself".to_owned(), retry_after },
    }
}

fn configured(settings: &McpServerSettings) -> Result<ConfiguredServer, InvalidServer> {
    let McpServerSettings { name, transport, requirement } = settings.clone();
    let (kind, address) = match &transport {
        McpTransport::Http { url, .. } => {
            OutboundRequest::new("POST", url).map_err(|source| InvalidServer::Url { server: name.clone(), source })?;
            (McpTransportKind::Http, url.split(['?', '#']).next().unwrap_or_default().to_owned())
        }
        McpTransport::Stdio { image, .. } => (McpTransportKind::Stdio, image.clone()),
    };
    Ok(ConfiguredServer { name, kind, address, requirement, transport })
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No change of what is guarded can panic half-way.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
