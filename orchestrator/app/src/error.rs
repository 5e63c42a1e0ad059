//! Why the daemon does not start, or has stopped.

use std::io;

use super::LockError;
use auth::KeyError;
use egress::{InvalidPattern, InvalidPreset};
use hooks::InvalidHook;
use http_api::server::TooFewDescriptors;
use llm::GatewayError;
use mcp::InvalidServer;
use secrets::{DetectorError, MasterKeyError};
use store::StoreError;

/// The database cannot be opened or read.
#[derive(Debug, thiserror::Error)]
#[error("cannot use the database at {url}")]
pub struct DatabaseError {
    /// The URL, without credentials.
    pub url: String,
    pub source: StoreError,
}

/// The daemon could not start, or stopped other than by a drain.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A directory cannot be locked.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The database cannot be used.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// The signing key cannot be loaded.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The master key cannot be loaded, or does not open the stored secrets.
    #[error(transparent)]
    MasterKey(#[from] MasterKeyError),
    /// The leak detector of users without secrets cannot be built.
    #[error(transparent)]
    LeakDetector(#[from] DetectorError),
    /// The settings of a model are invalid.
    #[error(transparent)]
    Model(#[from] GatewayError),
    /// A preset of the configuration is invalid.
    #[error("egress.presets{0}")]
    Preset(#[from] InvalidPreset),
    /// An entry of a list of hosts is invalid.
    #[error("{setting}: '{entry}': {source}")]
    HostPattern {
        /// The setting with the list.
        setting: &'static str,
        /// The entry, without credentials.
        entry: String,
        source: InvalidPattern,
    },
    /// The URL of an MCP server is invalid.
    #[error("mcp: {0}")]
    Mcp(#[from] InvalidServer),
    /// The URL of a hook is invalid.
    #[error("hooks: {0}")]
    Hook(#[from] InvalidHook),
    /// A built-in tool cannot be registered.
    #[error(transparent)]
    Tool(#[from] agent::RegisterError),
    /// The address cannot be bound.
    #[error("cannot listen on {address} (in use by another program?); set {setting} to choose another address")]
    Listen {
        address: String,
        /// The setting that chooses it.
        setting: &'static str,
        #[source]
        source: io::Error,
    },
    /// The limit on open files is too low for the jobs that may run at once.
    #[error(transparent)]
    Descriptors(#[from] TooFewDescriptors),
    /// The database of an earlier version cannot be migrated.
    #[error(
        "migrating the database needs {needed_mb} MB of free space and {free_mb} MB are free; free some and start again"
    )]
    MigrationSpace { needed_mb: u64, free_mb: u64 },
    /// Any other I/O error.
    #[error("{action}")]
    Io {
        action: &'static str,
        #[source]
        source: io::Error,
    },
    /// A task ended before the drain.
    #[error("the task \"{task}\" ended unexpectedly: {reason}")]
    TaskEnded { task: &'static str, reason: String },
}
