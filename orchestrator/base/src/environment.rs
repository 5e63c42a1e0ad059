//! A snapshot of the process environment.
//!
//! The only place that reads the environment. Never interprets a value.

use std::collections::{BTreeMap, BTreeSet};

/// The variables at the start of the process, and whether it runs as root.
#[derive(Clone, Default)]
pub struct Environment {
    vars: BTreeMap<String, String>,
    not_unicode: BTreeSet<String>,
    is_root: bool,
}

impl Environment {
    /// The environment of this process. Variables whose names are not UTF-8 are ignored.
    pub fn from_process() -> Self {
        let mut environment = Self { is_root: rustix::process::geteuid().is_root(), ..Self::default() };
        for (name, value) in std::env::vars_os() {
            let Ok(name) = name.into_string() else { continue };
            match value.into_string() {
                Ok(value) => drop(environment.vars.insert(name, value)),
                Err(_) => drop(environment.not_unicode.insert(name)),
            }
        }
        environment
    }

    /// The environment of a process that does not run as root, for tests.
    pub fn from_pairs<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let vars = pairs.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Self { vars, ..Self::default() }
    }

    /// The same environment with this variable, for options that take precedence over it.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.vars.insert(name.to_owned(), value.to_owned());
        self
    }

    /// The same environment without this variable.
    #[must_use]
    pub fn without(mut self, name: &str) -> Self {
        self.vars.remove(name);
        self
    }

    /// Adds a variable whose value is not UTF-8, for tests.
    #[cfg(feature = "test-util")]
    #[must_use]
    pub fn with_not_unicode(mut self, name: &str) -> Self {
        self.not_unicode.insert(name.to_owned());
        self
    }

    /// Whether a variable is set to a value that is not UTF-8.
    pub fn is_not_unicode(&self, name: &str) -> bool {
        self.not_unicode.contains(name)
    }

    /// The value of a variable. Empty variables count as not set: Compose passes on variables without a value as empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.vars.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Whether the process runs as root.
    pub const fn is_root(&self) -> bool {
        self.is_root
    }

    /// Names of variables that start with `prefix` and are not empty.
    pub fn names_with(&self, prefix: &str) -> impl Iterator<Item = &str> {
        self.vars
            .iter()
            .filter(move |(name, value)| name.starts_with(prefix) && !value.is_empty())
            .map(|(n, _)| n.as_str())
    }
}
