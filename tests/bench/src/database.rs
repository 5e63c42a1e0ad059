//! SQLite without a Gantry in front of it: the stack's database for filling and reading, and a copy of it for the other
//! side's writes.
//!
//! Owns the connection's settings, which are the store's. Never writes where a program has not said so.

use std::path::Path;

use sqlx::{
    ConnectOptions, SqliteConnection,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous},
};

use crate::Failure;

/// The database at `path`, as the store opens it.
pub(crate) async fn open(path: &Path) -> Result<SqliteConnection, Failure> {
    let options = SqliteConnectOptions::new()
        .filename(path)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Normal)
        .busy_timeout(std::time::Duration::from_secs(5))
        .foreign_keys(true);
    Ok(options.connect().await?)
}

/// A copy with the same schema and the same jobs, at `to`, which is open and which nobody else uses.
pub(crate) async fn copy(from: &Path, to: &Path) -> Result<SqliteConnection, Failure> {
    let mut source = open(from).await?;
    sqlx::query("VACUUM INTO ?").bind(to.display().to_string()).execute(&mut source).await?;
    open(to).await
}
