//! The servers, and the connections to them: one for each server and user, opened when it is needed.
//!
//! A connection is never shared by users, since its headers and its state are one user's.

mod capacity;
mod end;
mod open;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::future::join_all;
use parking_lot::Mutex;
use protocol::McpTransportKind;
use serde_json::Value;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub(super) use self::open::CONNECT_TIMEOUT;
use self::open::InUse;
use super::{
    answer::Answer,
    error::McpError,
    listed_tool::ListedTool,
    server::{ConfiguredServer, InvalidServer},
    slot::Slot,
    stdio::Containers,
};
use base::clock::Clock;
use config::McpServerSettings;
use dispatch::Sandbox;
use egress::EgressClient;
use engine::Engine;
use secrets::{LeakDetectors, Secrets};

/// Time between two searches for idle connections.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Searches for idle connections between two searches for containers without a connection.
const SWEEPS_PER_CLEANUP: u32 = 60;
/// Time to end all connections when the process drains.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(3);

/// What an admin sees of a server's connections.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServerStatus {
    pub connections: u32,
    /// The last error, if no connection has succeeded since.
    pub error: Option<String>,
    /// What its program printed to its standard error last, without secrets, if it does not start.
    pub stderr: Option<String>,
}

/// A list of tools, and the number of changes that the server had reported before it was read.
#[derive(Debug, Clone, PartialEq)]
pub struct Listed {
    pub tools: Vec<ListedTool>,
    /// See [`McpClient::changes`].
    pub changes: u64,
}

/// What connections are made with.
pub struct McpParts {
    /// Dials servers over HTTP. Their URLs are allowed to this client only.
    pub egress: EgressClient,
    /// The secrets that headers name.
    pub secrets: Arc<Secrets>,
    /// Find users' secrets in what servers send.
    pub detectors: LeakDetectors,
    /// Runs servers in containers.
    pub engine: Arc<dyn Engine>,
    /// Whether containers can run.
    pub sandbox: Arc<Sandbox>,
    pub clock: Clock,
}

/// The servers and their connections.
pub struct McpClient {
    servers: BTreeMap<String, Arc<ConfiguredServer>>,
    egress: EgressClient,
    secrets: Arc<Secrets>,
    detectors: LeakDetectors,
    containers: Arc<Containers>,
    clock: Clock,
    slots: Mutex<HashMap<(String, String), Arc<Slot>>>,
    errors: Mutex<HashMap<String, String>>,
    /// What servers that do not start have printed.
    stderr: Mutex<HashMap<String, String>>,
    tasks: TaskTracker,
    drain: CancellationToken,
}

impl McpClient {
    /// The client of these servers. Connects to none of them.
    pub fn new(settings: &[McpServerSettings], parts: McpParts) -> Result<Self, InvalidServer> {
        let servers = settings.iter().map(ConfiguredServer::new).collect::<Result<Vec<_>, _>>()?;
        let McpParts { egress, secrets, detectors, engine, sandbox, clock } = parts;
        let egress = egress.allowing(servers.iter().filter_map(|server| server.destination.clone()));
        let tasks = TaskTracker::new();
        Ok(Self {
            servers: servers.into_iter().map(|server| (server.name.clone(), Arc::new(server))).collect(),
            egress,
            secrets,
            detectors,
            containers: Arc::new(Containers::new(engine, sandbox, clock.clone(), tasks.clone())),
            clock,
            slots: Mutex::default(),
            errors: Mutex::default(),
            stderr: Mutex::default(),
            tasks,
            drain: CancellationToken::new(),
        })
    }

    /// The servers, ordered by name.
    pub fn servers(&self) -> impl Iterator<Item = &Arc<ConfiguredServer>> {
        self.servers.values()
    }

    pub fn server(&self, name: &str) -> Option<Arc<ConfiguredServer>> {
        self.servers.get(name).cloned()
    }

    /// How often the server has reported to this user that its list of tools has changed.
    pub fn changes(&self, (server, user): (&str, &str)) -> u64 {
        let slots = self.slots.lock();
        slots.get(&(server.to_owned(), user.to_owned())).map_or(0, |slot| slot.changes.load(Ordering::Relaxed))
    }

    /// The state of a server's connections.
    pub fn status(&self, server: &str) -> ServerStatus {
        let slots = self.slots.lock();
        let open = slots.iter().filter(|((name, _), slot)| name == server && slot.usage.lock().is_open).count();
        let error = self.errors.lock().get(server).cloned();
        let stderr = self.stderr.lock().get(server).cloned();
        ServerStatus { connections: u32::try_from(open).unwrap_or(u32::MAX), error, stderr }
    }

    /// Reads a server's list of tools.
    pub async fn tools(self: &Arc<Self>, key: (&str, &str)) -> Result<Listed, McpError> {
        let in_use = self.connection(key).await?;
        let changes = in_use.call.slot.changes.load(Ordering::Relaxed);
        let tools =
            in_use.connection.tools(&in_use.redaction).await.inspect_err(|error| self.note(key.0, Some(error)))?;
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
        let InUse { connection, redaction, .. } = &in_use;
        match connection.call((tool, in_use.timeout), arguments, stop, redaction).await {
            Err(error @ McpError::Closed { cause: None, .. }) => {
                let error = error.with_cause(connection.end_cause(redaction).await);
                tracing::warn!(mcp.server = key.0, %error, "an MCP server has ended");
                Err(error)
            }
            Err(McpError::TimedOut { server, limit, .. }) => {
                // A program that is stuck would let every later call wait, too.
                let is_closed = connection.close_unless_alive().await;
                let error = McpError::TimedOut { server, limit, is_closed };
                if is_closed {
                    self.note(key.0, Some(&error));
                    tracing::warn!(mcp.server = key.0, %error, "an MCP server is stuck");
                }
                Err(error)
            }
            answer => answer,
        }
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
        let slots: Vec<Arc<Slot>> = self.slots.lock().values().cloned().collect();
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

    /// Remembers the last error of a server for the admin, or that there is none.
    fn note(&self, server: &str, error: Option<&McpError>) {
        let mut errors = self.errors.lock();
        if let Some(error) = error {
            errors.insert(server.to_owned(), error.for_admin());
        } else {
            errors.remove(server);
            self.stderr.lock().remove(server);
        }
    }
}
