//! Statistics of tables, which SQLite's planner chooses indexes by.
//!
//! Only the server refreshes them, not each program that closes a connection. Each table is a separate transaction that
//! reads a bounded number of index entries (`ANALYSIS_LIMIT`), a few milliseconds however large it is.

use sqlx::AssertSqlSafe;

use crate::{Store, StoreError};

/// Returns an `ANALYZE` for each table that has an index without statistics, or whose size has changed tenfold. Without
/// the lowest bit SQLite would run all of them in one transaction.
const DUE: &str = "PRAGMA optimize = 0x10003";

impl Store {
    /// Updates the statistics that are out of date, and makes all connections read them. Returns for how many tables.
    pub async fn refresh_statistics(&self) -> Result<usize, StoreError> {
        // To ask takes the lock of writers for a moment.
        let due: Vec<String> =
            self.write_one(transaction!(|tx| Ok(sqlx::query_scalar(DUE).fetch_all(&mut tx.db).await?))).await?;
        let tables = due.len();
        for analyze in due {
            self.write_one(transaction!(|tx| {
                sqlx::query(AssertSqlSafe(analyze)).execute(&mut tx.db).await?;
                Ok(())
            }))
            .await?;
        }
        if tables > 0 {
            self.read.renew().await?;
            self.control.renew().await?;
            self.search.renew().await?;
        }
        Ok(tables)
    }
}
