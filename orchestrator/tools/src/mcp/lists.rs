//! The lists of tools in memory, one for each server and user.
//!
//! Owns how long they are kept and how much memory they take. Never reads one.

use std::{collections::HashMap, sync::Arc, time::Duration};

use agent::RegisteredTool;
use mcp::McpError;
use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};

use super::definition::RefusedTool;

/// Age from which a list is read again, although the server has not reported a change.
const MAX_AGE: Duration = Duration::from_mins(5);
/// Least time between two attempts to read a list: bounds what a server's reports of changes cost.
const MIN_INTERVAL: Duration = Duration::from_secs(5);
/// Time without a use after which a list is dropped.
const MAX_UNUSED: Duration = Duration::from_mins(15);
/// Lists that are kept: pairs of a server and a user.
const MAX_LISTS: usize = 4_096;
/// Size of the definitions of all lists that are kept. Compiled ones take several times as much.
const MAX_BYTES: usize = 32 * 1024 * 1024;

/// Tools, compiled.
pub(super) type Tools = Arc<[Arc<RegisteredTool>]>;

/// The lists, by server and user.
#[derive(Default)]
pub(super) struct Lists(Mutex<HashMap<(String, String), Arc<List>>>);

/// The list of one server and user.
pub(super) type List = Mutex<ListState>;

/// What is known of a list.
#[derive(Default)]
pub(super) struct ListState {
    /// None before it was read for the first time.
    pub(super) tools: Option<Tools>,
    /// The tools of the same list that are not used.
    pub(super) refused: Arc<[RefusedTool]>,
    /// The names of the tools of the same list whose definitions wait for an admin.
    pub(super) withheld: Arc<[String]>,
    /// Size of the definitions of `tools`.
    bytes: usize,
    /// The version that `tools` have.
    version: Option<Version>,
    /// Why the last attempt failed, if it did.
    pub(super) error: Option<McpError>,
    /// Monotonic time of the end of the last attempt.
    tried_at: Option<Duration>,
    /// Monotonic time of the last use.
    used_at: Duration,
    /// The attempt in progress.
    pub(super) reading: Option<Reading>,
}

/// An attempt to read a list.
#[derive(Clone)]
pub(super) struct Reading {
    pub(super) since: Instant,
    pub(super) done: watch::Receiver<bool>,
}

/// What a list depends on besides time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Version {
    pub(super) approvals: u64,
    /// Incremented when the server reports a change.
    pub(super) changes: u64,
}

pub(super) struct ReadList {
    pub(super) tools: Tools,
    pub(super) refused: Arc<[RefusedTool]>,
    /// The names of the tools whose definitions wait for an admin.
    pub(super) withheld: Arc<[String]>,
    /// Size of the definitions of `tools`.
    pub(super) bytes: usize,
    /// The number of changes that the server had reported before.
    pub(super) changes: u64,
}

impl Lists {
    /// The list of this server and user, which is in use now.
    pub(super) fn of(&self, server: &str, user: &str, now: Duration) -> Arc<List> {
        let key = (server.to_owned(), user.to_owned());
        let mut lists = self.0.lock();
        if lists.len() >= MAX_LISTS && !lists.contains_key(&key) {
            // Those that are not in use: they are read again when they are needed.
            lists.retain(|_, list| Arc::strong_count(list) > 1);
        }
        let list = Arc::clone(lists.entry(key).or_default());
        list.lock().used_at = now;
        list
    }

    /// The list of this server and user, if there is one in memory.
    pub(super) fn find(&self, server: &str, user: &str) -> Option<Arc<List>> {
        self.0.lock().get(&(server.to_owned(), user.to_owned())).cloned()
    }

    /// Drops the lists that were not used for a long time, and the least recently used ones that take too much memory.
    pub(super) fn trim(&self, now: Duration) {
        self.trim_to(MAX_BYTES, now);
    }

    fn trim_to(&self, max_bytes: usize, now: Duration) {
        let mut lists = self.0.lock();
        let is_in_use = |list: &Arc<List>| Arc::strong_count(list) > 1;
        lists.retain(|_, list| is_in_use(list) || now.saturating_sub(list.lock().used_at) < MAX_UNUSED);
        let mut bytes: usize = lists.values().map(|list| list.lock().bytes).sum();
        let unused = lists.iter().filter(|(_, list)| !is_in_use(list));
        let mut unused: Vec<_> = unused.map(|(key, list)| (list.lock().used_at, key.clone())).collect();
        unused.sort();
        for (_, key) in unused {
            if bytes <= max_bytes {
                break;
            }
            bytes -= lists.remove(&key).map_or(0, |list| list.lock().bytes);
        }
    }
}

impl ListState {
    /// Whether the list need not be read again now.
    pub(super) fn is_current(&self, version: Version, now: Duration) -> bool {
        // Whether it is stored now is known without the server.
        if matches!(self.error, Some(McpError::MissingSecret { .. })) {
            return false;
        }
        let age = self.tried_at.map(|at| now.saturating_sub(at));
        let is_up_to_date = self.has_version(version) && age.is_some_and(|age| age < MAX_AGE);
        is_up_to_date
            || (self.reading.is_none() && age.is_some_and(|age| age < MIN_INTERVAL) && !self.lacks_approval(version))
    }

    /// Whether the tools are those of this version.
    pub(super) fn has_version(&self, version: Version) -> bool {
        self.version == Some(version)
    }

    /// Whether an admin has approved a definition since. It is never waited with: nothing that a server does causes it.
    pub(super) fn lacks_approval(&self, version: Version) -> bool {
        self.version.is_some_and(|own| own.approvals != version.approvals)
    }

    /// An attempt has ended.
    pub(super) fn tried(&mut self, outcome: Result<(ReadList, u64), Option<McpError>>, now: Duration) {
        self.reading = None;
        self.tried_at = Some(now);
        match outcome {
            Ok((ReadList { tools, refused, withheld, bytes, changes }, approvals)) => {
                (self.tools, self.refused, self.withheld) = (Some(tools), refused, withheld);
                (self.bytes, self.error) = (bytes, None);
                self.version = Some(Version { approvals, changes });
            }
            Err(error) => self.error = error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn add(lists: &Lists, user: &str, bytes: usize, now: Duration) {
        let list = lists.of("srv", user, now);
        let (tools, refused, withheld) = (Vec::new().into(), [].into(), [].into());
        list.lock().tried(Ok((ReadList { tools, refused, withheld, bytes, changes: 0 }, 0)), now);
    }

    fn users(lists: &Lists) -> Vec<String> {
        let mut users: Vec<_> = lists.0.lock().keys().map(|(_, user)| user.clone()).collect();
        users.sort();
        users
    }

    #[test]
    fn lists_that_are_not_used_are_dropped() {
        let lists = Lists::default();
        for user in ["ada", "bob", "eve"] {
            add(&lists, user, 1, SECOND);
        }
        let in_use = lists.of("srv", "eve", SECOND);
        lists.of("srv", "bob", 2 * SECOND);
        lists.trim(MAX_UNUSED);
        assert_eq!(users(&lists), ["ada", "bob", "eve"]);
        lists.trim(MAX_UNUSED + SECOND);
        assert_eq!(users(&lists), ["bob", "eve"], "one that is in use is kept");
        drop(in_use);
        lists.trim(MAX_UNUSED + 2 * SECOND);
        assert!(users(&lists).is_empty());
    }

    #[test]
    fn the_least_recently_used_lists_make_room() {
        let lists = Lists::default();
        for (index, user) in (1..).zip(["ada", "bob", "eve"]) {
            add(&lists, user, 10, index * SECOND);
        }
        lists.trim_to(30, 4 * SECOND);
        assert_eq!(users(&lists).len(), 3);
        lists.of("srv", "ada", 4 * SECOND);
        lists.trim_to(29, 5 * SECOND);
        assert_eq!(users(&lists), ["ada", "eve"]);
        let in_use = lists.of("srv", "ada", 5 * SECOND);
        lists.trim_to(0, 5 * SECOND);
        assert_eq!(users(&lists), ["ada"]);
        drop(in_use);
    }
}
