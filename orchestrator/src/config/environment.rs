//! A snapshot of the process environment, taken once.
//!
//! Owns the only read of it. Never interprets a value.

use std::collections::BTreeMap;

/// The variables as they were at the start, and whether this is root's process.
#[derive(Clone, Default)]
pub struct Environment {
    vars: BTreeMap<String, String>,
    root: bool,
}

impl Environment {
    /// Of this process. Names and values that are not UTF-8 are left out.
    pub fn from_process() -> Self {
        let vars = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        Self { vars, root: rustix::process::geteuid().is_root() }
    }

    /// Made by hand, of a process that is not root's.
    pub fn from_pairs<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let vars = pairs.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Self { vars, root: false }
    }

    /// A variable. An empty one counts as not set: that is how compose files pass on what is not there.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.vars.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Whether this is root's process.
    pub const fn is_root(&self) -> bool {
        self.root
    }

    /// Names that start with `prefix` and are not empty.
    pub fn names_with(&self, prefix: &str) -> impl Iterator<Item = &str> {
        self.vars
            .iter()
            .filter(move |(name, value)| name.starts_with(prefix) && !value.is_empty())
            .map(|(n, _)| n.as_str())
    }
}
