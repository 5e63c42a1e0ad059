//! Direct access to SQLite: the stack's database for filling and reading, and a copy of it for the baseline's writes.
//!
//! Owns the connection settings, which are the store's. Never writes unless a program asks it to.

use std::path::Path;

use sqlx::{
    ConnectOptions, SqliteConnection,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous},
};

use crate::Failure;

/// Opens the database at `path` with the store's settings.
pub(crate) async fn open(path: &Path) -> Result<SqliteConnection, Failure> {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Normal)
        .busy_timeout(std::time::Duration::from_secs(5))
        .foreign_keys(true);
    Ok(options.connect().await?)
}

/// Copies the database, with its schema and jobs, to `to`, and opens the copy.
pub(crate) async fn copy(from: &Path, to: &Path) -> Result<SqliteConnection, Failure> {
    let mut source = open(from).await?;
    sqlx::query("VACUUM INTO ?").bind(to.display().to_string()).execute(&mut source).await?;
    open(to).await
}
