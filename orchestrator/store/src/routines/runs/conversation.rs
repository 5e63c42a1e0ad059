//! The conversations of lightweight runs, a row for each start of an attempt. Deleted with their run.
//!
//! Never decides what a conversation has.

use protocol::{RoutineId, RunId, RunMessage};

use crate::{
    Store, StoreError,
    sqlite::rows::{RowRef, text},
    users::user_storage,
};

/// Runs of a routine whose conversations are kept.
const MAX_RUNS: i64 = 100;

impl Store {
    /// Adds what a start of an attempt has recorded, and deletes those of older runs of the routine. Not stored if the run
    /// does not exist any more, or if its owner's account is half full: the run itself needs none of it.
    pub async fn add_conversation(&self, run: RunId, messages: &[RunMessage]) -> Result<(), StoreError> {
        let messages = text(&messages)?;
        self.write_one(transaction!(|tx| {
            let found: Option<(String, RoutineId)> =
                sqlx::query_as("SELECT user_id, routine_id FROM routine_runs WHERE id = $1")
                    .bind(run)
                    .fetch_optional(&mut tx.db)
                    .await?;
            let Some((user, routine)) = found else { return Ok(()) };
            sqlx::query(
                "DELETE FROM run_conversations WHERE run_id IN \
                 (SELECT id FROM routine_runs WHERE routine_id = $1 ORDER BY id DESC LIMIT 20 OFFSET $2)",
            )
            .bind(routine)
            .bind(MAX_RUNS)
            .execute(&mut tx.db)
            .await?;
            if user_storage::is_half_full(tx, &user).await? {
                return Ok(());
            }
            sqlx::query("INSERT INTO run_conversations (run_id, user_id, messages) VALUES ($1, $2, $3)")
                .bind(run)
                .bind(user)
                .bind(messages)
                .execute(&mut tx.db)
                .await?;
            Ok(())
        }))
        .await
    }

    /// The messages of a run in their order, numbered from 1.
    pub async fn run_messages(&self, run: RunId) -> Result<Vec<RunMessage>, StoreError> {
        let rows: Vec<String> =
            sqlx::query_scalar("SELECT messages FROM run_conversations WHERE run_id = $1 ORDER BY id")
                .bind(run)
                .fetch_all(&self.read)
                .await?;
        let row_ref = RowRef { table: "run_conversations", id: *run.as_uuid() };
        let mut all = Vec::new();
        for row in rows {
            let messages: Result<Vec<RunMessage>, StoreError> = row_ref.json("messages", &row);
            all.extend(self.inconsistent.skip(messages)?.unwrap_or_default());
        }
        for (seq, message) in (1..).zip(&mut all) {
            message.seq = seq;
        }
        Ok(all)
    }
}
