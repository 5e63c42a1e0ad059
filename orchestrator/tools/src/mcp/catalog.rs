//! The tools of each server as each user has them, kept between turns.
//!
//! Owns when a list is read again, and how long a turn waits for it: a server that does not answer costs a turn a few
//! seconds once, and nothing when an earlier list is there. Never decides who may use a tool.

use std::{
    collections::{BTreeMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use agent::RegisteredTool;
use parking_lot::Mutex;
use protocol::UnavailableMcpTools;
use tokio::{sync::watch, time::Instant};

use super::{
    definition::{CheckedDefinition, RefusedTool, check},
    lists::{List, Lists, ReadList, Reading, Tools, Version},
    schema::clean_text,
    tool::McpTool,
};
use base::{clock::Clock, error_chain};
use mcp::{ConfiguredServer, ListedTool, McpClient, McpError};
use store::{DefinitionStatus, SeenDefinition, Store, StoreError};

/// How long a turn waits for lists that it has no earlier version of.
pub(super) const TURN_WAIT: Duration = Duration::from_secs(5);
/// How long a call waits for the list with its tool, as after a restart: a busy machine takes several seconds to start
/// a container.
pub(super) const CALL_WAIT: Duration = Duration::from_secs(30);

/// The lists.
pub(super) struct Catalog {
    pub(super) client: Arc<McpClient>,
    store: Store,
    clock: Clock,
    lists: Lists,
    /// Incremented by each approval: withheld tools may be available then.
    approvals: AtomicU64,
    /// The tools that each server's last list had and that are refused.
    refused: Mutex<BTreeMap<String, Arc<[RefusedTool]>>>,
    /// Servers with refused tools, and those with withheld ones, that the log has.
    logged: Mutex<HashSet<(String, &'static str)>>,
}

/// A list that could not be read.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error(transparent)]
    Server(#[from] McpError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the definitions could not be checked")]
    Check(#[from] tokio::task::JoinError),
}

impl ReadError {
    /// The server's own error, which its user may know.
    fn of_server(self) -> Option<McpError> {
        match self {
            Self::Server(error) => Some(error),
            Self::Store(_) | Self::Check(_) => None,
        }
    }
}

impl Catalog {
    pub(super) fn new(client: Arc<McpClient>, store: Store, clock: Clock) -> Self {
        Self {
            client,
            store,
            clock,
            lists: Lists::default(),
            approvals: AtomicU64::new(0),
            refused: Mutex::default(),
            logged: Mutex::default(),
        }
    }

    /// The tools of a server that the user has now. Empty if they are not known within `wait`.
    pub(super) async fn tools(self: &Arc<Self>, server: &str, user: &str, wait: Duration) -> Tools {
        let list = self.lists.of(server, user, self.clock.monotonic());
        let version = self.version(server, user);
        let (earlier, reading) = {
            let mut state = list.lock();
            if state.is_current(version, self.clock.monotonic()) {
                return state.tools.clone().unwrap_or_default();
            }
            // An old list is used while it is read again; one that is known to be outdated is not, if another is there
            // in time.
            let earlier = state.tools.clone().filter(|_| state.has_version(version));
            let reading = state.reading.get_or_insert_with(|| self.read(server, user, &list)).clone();
            (earlier, reading)
        };
        if let Some(earlier) = earlier {
            return earlier;
        }
        let mut done = reading.done;
        // An error means that the attempt ended without a result.
        let _ended = tokio::time::timeout_at(reading.since + wait, done.wait_for(|done| *done)).await;
        list.lock().tools.clone().unwrap_or_default()
    }

    /// The tools that the user had when the list was read last, if that is in memory and no definition was approved
    /// since.
    pub(super) fn known(&self, server: &str, user: &str) -> Option<Tools> {
        let (list, version) = (self.lists.find(server, user)?, self.version(server, user));
        let state = list.lock();
        state.tools.clone().filter(|_| !state.lacks_approval(version))
    }

    /// Why the user does not have a server's tools now, or some of them, for this user.
    pub(super) fn unavailable(&self, server: &str, user: &str) -> Vec<UnavailableMcpTools> {
        let Some(list) = self.lists.find(server, user) else { return Vec::new() };
        let state = list.lock();
        let unavailable = |tool, reason| UnavailableMcpTools { server: server.to_owned(), tool, reason };
        let is_awaited = state.tools.is_none() && state.reading.is_some();
        let not_yet = || is_awaited.then(|| format!("the MCP server {server} has not answered yet"));
        if let Some(reason) = state.error.as_ref().map(ToString::to_string).or_else(not_yet) {
            return vec![unavailable(None, reason)];
        }
        state.refused.iter().map(|one| unavailable(Some(one.name.clone()), one.reason.clone())).collect()
    }

    /// Why a server's list could not be read for this user, if the last attempt failed.
    pub(super) fn error(&self, server: &str, user: &str) -> Option<McpError> {
        self.lists.find(server, user)?.lock().error.clone()
    }

    /// The names of a server's tools whose definitions wait for an admin.
    pub(super) fn withheld(&self, server: &str, user: &str) -> Arc<[String]> {
        self.lists.find(server, user).map_or_else(Arc::default, |list| Arc::clone(&list.lock().withheld))
    }

    /// The refused tools of a server's last list.
    pub(super) fn refused(&self, server: &str) -> Arc<[RefusedTool]> {
        self.refused.lock().get(server).cloned().unwrap_or_default()
    }

    /// Every list is read again when it is needed next.
    pub(super) fn approved(&self, server: &str) {
        self.approvals.fetch_add(1, Ordering::Relaxed);
        self.logged.lock().remove(&(server.to_owned(), "withheld"));
    }

    fn version(&self, server: &str, user: &str) -> Version {
        Version { approvals: self.approvals.load(Ordering::Relaxed), changes: self.client.changes((server, user)) }
    }

    /// Starts to read a list. It continues if the caller goes away.
    fn read(self: &Arc<Self>, server: &str, user: &str, list: &Arc<List>) -> Reading {
        let (report, done) = watch::channel(false);
        let (catalog, list) = (Arc::clone(self), Arc::clone(list));
        let (server, user) = (server.to_owned(), user.to_owned());
        self.client.spawn(async move {
            let approvals = catalog.approvals.load(Ordering::Relaxed);
            let read = catalog.read_now(&server, &user).await;
            let now = catalog.clock.monotonic();
            let outcome = read.map(|list| (list, approvals)).map_err(|error| {
                tracing::debug!(
                    mcp.server = server,
                    error = error_chain(&error),
                    "the tools of an MCP server cannot be listed"
                );
                error.of_server()
            });
            list.lock().tried(outcome, now);
            drop(list);
            catalog.lists.trim(now);
            // An error means that no caller waits.
            let _unused = report.send(true);
        });
        Reading { since: Instant::now(), done }
    }

    /// The definitions of a server that may be shown to every user, without a connection.
    pub(super) async fn shared(&self, server: &str) -> Result<Vec<CheckedDefinition>, StoreError> {
        let stored = self.store.shared_mcp_definitions(server).await?;
        let listed = stored.into_iter().filter_map(|(name, definition)| {
            Some(ListedTool { name, definition: Ok(serde_json::from_str(&definition).ok()?) })
        });
        Ok(check(server, &listed.collect::<Vec<_>>()).0)
    }

    async fn read_now(&self, server: &str, user: &str) -> Result<ReadList, ReadError> {
        let known = self.client.server(server).ok_or_else(|| McpError::UnknownServer(server.to_owned()))?;
        let listed = self.client.tools((server, user)).await?;
        let changes = listed.changes;
        let (name, client) = (server.to_owned(), Arc::clone(&self.client));
        // Thousands of schemas may have to be read.
        let checked = tokio::task::spawn_blocking(move || compile(&name, &known, &client, &listed.tools));
        let (compiled, mut refused) = checked.await?;
        let seen = compiled.iter().map(|(definition, _)| SeenDefinition {
            tool: definition.tool.clone(),
            digest: definition.digest.clone(),
            definition: definition.sent.clone(),
        });
        let statuses = self.store.see_mcp_definitions(server, seen.collect(), self.clock.now()).await?;
        let mut tools = Vec::with_capacity(compiled.len());
        let (mut withheld, mut bytes) = (Vec::new(), 0);
        for ((definition, tool), status) in compiled.into_iter().zip(statuses) {
            match status {
                DefinitionStatus::Approved => {
                    bytes += definition.sent.len();
                    tools.push(tool);
                }
                DefinitionStatus::Withheld => withheld.push(definition.definition.name),
                DefinitionStatus::TooMany => {
                    refused.push(RefusedTool::new(&definition.tool, "the server has listed too many different tools"));
                }
            }
        }
        self.log_once(server, "refused", refused.len());
        self.log_once(server, "withheld", withheld.len());
        let refused: Arc<[RefusedTool]> = refused.into();
        self.refused.lock().insert(server.to_owned(), Arc::clone(&refused));
        Ok(ReadList { tools: tools.into(), refused, withheld: withheld.into(), bytes, changes })
    }

    /// Reports that a server has tools which are not offered, once, and without anything that it sent.
    fn log_once(&self, server: &str, what: &'static str, count: usize) {
        if count > 0 && self.logged.lock().insert((server.to_owned(), what)) {
            tracing::warn!(
                mcp.server = server,
                count,
                "tools of an MCP server are {what}; see `gantry admin mcp list`"
            );
        }
    }
}

/// Checks and compiles the tools of a list. One that does not compile is refused before it is recorded.
fn compile(
    name: &str,
    server: &ConfiguredServer,
    client: &Arc<McpClient>,
    listed: &[ListedTool],
) -> (Vec<(CheckedDefinition, Arc<RegisteredTool>)>, Vec<RefusedTool>) {
    let (accepted, mut refused) = check(name, listed);
    let mut compiled = Vec::with_capacity(accepted.len());
    for definition in accepted {
        let tool = McpTool {
            client: Arc::clone(client),
            server: Arc::from(name),
            tool: definition.tool.clone(),
            definition: definition.definition.clone(),
            requirement: server.requirement,
            timeout: server.max_call_time(),
        };
        match RegisteredTool::new(Box::new(tool)) {
            Ok(tool) => compiled.push((definition, Arc::new(tool))),
            Err(error) => {
                let reason = clean_text(&error.to_string(), MAX_REASON_BYTES);
                refused.push(RefusedTool::new(&definition.tool, reason));
            }
        }
    }
    (compiled, refused)
}

/// Length of the compiler's message about a schema.
const MAX_REASON_BYTES: usize = 500;
