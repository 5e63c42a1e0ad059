//! Rotation of the master key by the command line, in place of a server.
//!
//! Holds the data directory's lock meanwhile, so that no server starts with a key that is about to be replaced.

use chrono::{DateTime, Utc};

use super::{DataDirLock, DatabaseError, LockError};
use base::mask_urls;
use config::Config;
use secrets::{KeySource, MasterKey, RotateError, Rotated, UnreadableSecrets, rotate};
use store::{AuditEntry, Store};

/// Why the master key was not rotated.
#[derive(Debug, thiserror::Error)]
pub enum RotateKeyError {
    /// A server runs, or the directory cannot be used.
    #[error(transparent)]
    Lock(#[from] LockError),
    /// The database cannot be opened.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    #[error(transparent)]
    Rotate(#[from] RotateError),
}

/// Seals every stored secret with `new_key`, or with a new key in the data directory.
pub async fn rotate_master_key(
    config: &Config,
    new_key: Option<MasterKey>,
    unreadable: UnreadableSecrets,
    now: DateTime<Utc>,
) -> Result<Rotated, RotateKeyError> {
    let _lock = DataDirLock::acquire(&config.data_dir, &config.run_dir)?;
    let at_url = |source| DatabaseError { url: mask_urls(&config.database_url), source };
    let store = Store::open(&config.database_url).await.map_err(at_url)?;
    let source = KeySource::new(config.master_key.as_ref(), &config.data_dir);
    let entry = AuditEntry::by_operator("secret.rotate_key", now);
    let rotated = rotate(&store, &source, new_key, unreadable, &entry).await;
    store.close().await;
    Ok(rotated?)
}
