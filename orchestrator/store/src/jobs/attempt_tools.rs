//! The tools that "all tools of a server" stands for in a job's attempt: stored once, so that a tool which is approved later is
//! not among them, whatever process asks.

use protocol::JobId;

use crate::{
    Store, StoreError,
    sqlite::rows::{RowRef, text},
};

impl Store {
    /// The names that were stored for the attempt; `None` if it has none yet.
    pub async fn attempt_tools(&self, job: JobId, attempt: u32) -> Result<Option<Vec<String>>, StoreError> {
        let stored: Option<Option<String>> =
            sqlx::query_scalar("SELECT attempt_tools FROM jobs WHERE id = $1 AND attempt = $2")
                .bind(job)
                .bind(i64::from(attempt))
                .fetch_optional(&self.read)
                .await?;
        stored.flatten().map(|names| parsed(job, &names)).transpose()
    }

    /// Stores the names, unless the attempt has some. Returns those that it has; none once it is over.
    pub async fn set_attempt_tools(
        &self,
        job: JobId,
        attempt: u32,
        names: &[String],
    ) -> Result<Vec<String>, StoreError> {
        let names = text(&names)?;
        let stored: Option<String> = self
            .write_one(transaction!(|tx| {
                Ok(sqlx::query_scalar(
                    "UPDATE jobs SET attempt_tools = COALESCE(attempt_tools, $1) \
                     WHERE id = $2 AND attempt = $3 AND state IN ('in_progress', 'stuck') RETURNING attempt_tools",
                )
                .bind(names)
                .bind(job)
                .bind(i64::from(attempt))
                .fetch_optional(&mut tx.db)
                .await?)
            }))
            .await?;
        stored.map_or_else(|| Ok(Vec::new()), |names| parsed(job, &names))
    }
}

fn parsed(job: JobId, names: &str) -> Result<Vec<String>, StoreError> {
    RowRef { table: "jobs", id: *job.as_uuid() }.json("attempt_tools", names)
}
