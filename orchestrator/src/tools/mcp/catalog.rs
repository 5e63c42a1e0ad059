//! The tools of each server as each user has them, kept between turns.
//!
//! Owns when a list is read again, and how long a turn waits for it: a server that does not answer costs a turn a few seconds once,
//! and nothing when an earlier list is there. Never decides who may use a tool.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use agent::RegisteredTool;
use tokio::{sync::watch, time::Instant};

use super::{
    definition::{CheckedDefinition, RefusedTool, check},
    schema::clean_text,
    tool::McpTool,
};
use crate::{
    clock::Clock,
    mcp::{ConfiguredServer, ListedTool, McpClient, McpError},
    store::{DefinitionStatus, SeenDefinition, Store, StoreError},
    telemetry::error_chain,
};

/// Age from which a list is read again, although the server has not reported a change.
const MAX_AGE: Duration = Duration::from_mins(5);
/// Least time between two attempts to read a list: bounds what a server's reports of changes cost.
const MIN_INTERVAL: Duration = Duration::from_secs(5);
/// How long a turn waits for lists that it has no earlier version of.
pub(super) const TURN_WAIT: Duration = Duration::from_secs(5);
/// How long a call waits for the list with its tool, as after a restart: a busy machine takes several seconds to start a container.
pub(super) const CALL_WAIT: Duration = Duration::from_secs(30);
/// Lists that are kept: pairs of a server and a user.
const MAX_LISTS: usize = 4_096;

/// Tools, compiled.
pub(super) type Tools = Arc<[Arc<RegisteredTool>]>;

/// The lists.
pub(super) struct Catalog {
    pub(super) client: Arc<McpClient>,
    store: Store,
    clock: Clock,
    lists: Mutex<HashMap<(String, String), Arc<List>>>,
    /// Incremented by each approval: withheld tools may be available then.
    approvals: AtomicU64,
    /// The tools that each server's last list had and that are refused.
    refused: Mutex<BTreeMap<String, Vec<RefusedTool>>>,
    /// Servers with refused tools, and those with withheld ones, that the log has.
    logged: Mutex<HashSet<(String, &'static str)>>,
}

/// The list of one server and user.
#[derive(Default)]
struct List(Mutex<ListState>);

#[derive(Default)]
struct ListState {
    tools: Option<Tools>,
    /// The version that `tools` have.
    version: Option<Version>,
    /// Monotonic time of the end of the last attempt.
    tried_at: Option<Duration>,
    /// The attempt in progress.
    reading: Option<Reading>,
}

/// An attempt to read a list.
#[derive(Clone)]
struct Reading {
    since: Instant,
    done: watch::Receiver<bool>,
}

/// What a list depends on besides time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Version {
    approvals: u64,
    /// Incremented when the server reports a change.
    changes: u64,
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

impl Catalog {
    pub(super) fn new(client: Arc<McpClient>, store: Store, clock: Clock) -> Self {
        Self {
            client,
            store,
            clock,
            lists: Mutex::default(),
            approvals: AtomicU64::new(0),
            refused: Mutex::default(),
            logged: Mutex::default(),
        }
    }

    /// The tools of a server that the user has now. Empty if they are not known within `wait`.
    pub(super) async fn tools(self: &Arc<Self>, server: &str, user: &str, wait: Duration) -> Tools {
        let list = self.list(server, user);
        let version = self.version(server, user);
        let (earlier, reading) = {
            let mut state = list.lock();
            if state.is_current(version, self.clock.monotonic()) {
                return state.tools();
            }
            // An old list is used while it is read again; one that is known to be outdated is not, if another is there in time.
            let is_outdated = state.version != Some(version);
            let reading = state.reading.get_or_insert_with(|| self.read(server, user, &list)).clone();
            (state.tools.clone().filter(|_| !is_outdated), reading)
        };
        if let Some(earlier) = earlier {
            return earlier;
        }
        let mut done = reading.done;
        // An error means that the attempt ended without a result.
        let _ended = tokio::time::timeout_at(reading.since + wait, done.wait_for(|done| *done)).await;
        list.lock().tools()
    }

    /// The refused tools of a server's last list.
    pub(super) fn refused(&self, server: &str) -> Vec<RefusedTool> {
        lock(&self.refused).get(server).cloned().unwrap_or_default()
    }

    /// Every list is read again when it is needed next.
    pub(super) fn approved(&self, server: &str) {
        self.approvals.fetch_add(1, Ordering::Relaxed);
        lock(&self.logged).remove(&(server.to_owned(), "withheld"));
    }

    fn version(&self, server: &str, user: &str) -> Version {
        Version { approvals: self.approvals.load(Ordering::Relaxed), changes: self.client.changes((server, user)) }
    }

    fn list(&self, server: &str, user: &str) -> Arc<List> {
        let key = (server.to_owned(), user.to_owned());
        let mut lists = lock(&self.lists);
        if lists.len() >= MAX_LISTS && !lists.contains_key(&key) {
            // Those that are not in use: they are read again when they are needed.
            lists.retain(|_, list| Arc::strong_count(list) > 1);
        }
        Arc::clone(lists.entry(key).or_default())
    }

    /// Starts to read a list. It continues if the caller goes away.
    fn read(self: &Arc<Self>, server: &str, user: &str, list: &Arc<List>) -> Reading {
        let (report, done) = watch::channel(false);
        let (catalog, list) = (Arc::clone(self), Arc::clone(list));
        let (server, user) = (server.to_owned(), user.to_owned());
        self.client.spawn(async move {
            let approvals = catalog.approvals.load(Ordering::Relaxed);
            let read = catalog.read_now(&server, &user).await;
            let mut state = list.lock();
            state.reading = None;
            state.tried_at = Some(catalog.clock.monotonic());
            match read {
                Ok((tools, changes)) => {
                    state.tools = Some(tools);
                    state.version = Some(Version { approvals, changes });
                }
                Err(error) => {
                    tracing::debug!(
                        mcp.server = server,
                        error = error_chain(&error),
                        "the tools of an MCP server cannot be listed"
                    );
                }
            }
            drop(state);
            // An error means that no caller waits.
            let _unused = report.send(true);
        });
        Reading { since: Instant::now(), done }
    }

    /// The list, and the number of changes that the server had reported before it was read.
    async fn read_now(&self, server: &str, user: &str) -> Result<(Tools, u64), ReadError> {
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
        let mut withheld = 0;
        for ((definition, tool), status) in compiled.into_iter().zip(statuses) {
            match status {
                DefinitionStatus::Approved => tools.push(tool),
                DefinitionStatus::Withheld => withheld += 1,
                DefinitionStatus::TooMany => {
                    refused.push(RefusedTool::new(&definition.tool, "the server has listed too many different tools"));
                }
            }
        }
        self.log_once(server, "refused", refused.len());
        self.log_once(server, "withheld", withheld);
        lock(&self.refused).insert(server.to_owned(), refused);
        Ok((tools.into(), changes))
    }

    /// Reports that a server has tools which are not offered, once, and without anything that it sent.
    fn log_once(&self, server: &str, what: &'static str, count: usize) {
        if count > 0 && lock(&self.logged).insert((server.to_owned(), what)) {
            tracing::warn!(
                mcp.server = server,
                count,
                "tools of an MCP server are {what}; see `gantry admin mcp list`"
            );
        }
    }
}

impl List {
    fn lock(&self) -> MutexGuard<'_, ListState> {
        lock(&self.0)
    }
}

impl ListState {
    fn is_current(&self, version: Version, now: Duration) -> bool {
        let age = self.tried_at.map(|at| now.saturating_sub(at));
        let is_up_to_date = self.version == Some(version) && age.is_some_and(|age| age < MAX_AGE);
        is_up_to_date
            || (self.reading.is_none() && age.is_some_and(|age| age < MIN_INTERVAL) && !self.lacks_approval(version))
    }

    /// Whether an admin has approved a definition since. It is never waited with: nothing that a server does causes it.
    fn lacks_approval(&self, version: Version) -> bool {
        self.version.is_some_and(|own| own.approvals != version.approvals)
    }

    fn tools(&self) -> Tools {
        self.tools.clone().unwrap_or_default()
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No change of what is guarded can panic half-way.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
