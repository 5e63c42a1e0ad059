//! A copy of the database while it is in use: one consistent moment, checked before it gets its name.
//!
//! Never writes to the database itself, and never leaves a file that is no whole copy.

use std::{
    fs::{self, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    str::FromStr,
};

use sqlx::{ConnectOptions, Connection as _, sqlite::SqliteConnectOptions};

use crate::{BUSY_TIMEOUT, StoreError};

/// Why there is no copy.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The database cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The copy cannot be written.
    #[error("cannot write {file}")]
    Io {
        file: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The copy failed its integrity check.
    #[error("the copy is damaged ({0}); the database may be, too")]
    Damaged(String),
}

/// Copies the database at `url` to `file`, replacing an existing one. Returns the size in bytes.
pub async fn backup(url: &str, file: &Path) -> Result<u64, BackupError> {
    let partial = file.with_file_name(format!(
        ".{}.partial",
        file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    ));
    let io_error = |source| BackupError::Io { file: file.to_owned(), source };
    let made = copy(url, &partial).await;
    if made.is_err() {
        // Best effort: the error of the copy matters more.
        let _ = fs::remove_file(&partial);
    }
    made?;
    fs::rename(&partial, file).map_err(io_error)?;
    fs::metadata(file).map(|metadata| metadata.len()).map_err(io_error)
}

async fn copy(url: &str, partial: &Path) -> Result<(), BackupError> {
    let io_error = |source| BackupError::Io { file: partial.to_owned(), source };
    // Never written through an existing file, whose link target, owner or mode another user may have chosen.
    match fs::remove_file(partial) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io_error(error)),
        _ => {}
    }
    // SQLite accepts an empty file; created here, only its owner can read it.
    let target = OpenOptions::new().write(true).create_new(true).mode(0o600).open(partial);
    let target = target.map_err(io_error)?;
    let from = SqliteConnectOptions::from_str(url).map_err(StoreError::from)?;
    let mut from = from.read_only(true).busy_timeout(BUSY_TIMEOUT).connect().await.map_err(StoreError::from)?;
    let copied = sqlx::query("VACUUM INTO $1").bind(partial.to_string_lossy()).execute(&mut from).await;
    from.close().await.map_err(StoreError::from)?;
    copied.map_err(StoreError::from)?;
    let copy = SqliteConnectOptions::new().filename(partial).read_only(true);
    let mut copy = copy.connect().await.map_err(StoreError::from)?;
    let verdict: String =
        sqlx::query_scalar("PRAGMA integrity_check(1)").fetch_one(&mut copy).await.map_err(StoreError::from)?;
    copy.close().await.map_err(StoreError::from)?;
    if verdict != "ok" {
        return Err(BackupError::Damaged(verdict));
    }
    target.sync_all().map_err(io_error)
}
