//! The conversations of lightweight runs, a row for each start of an attempt. Deleted with their run.
//!
//! Never decides what a conversation has.

use protocol::{RunId, RunMessage};

use crate::{
    Store, StoreError,
    sqlite::rows::{RowRef, text},
    users::user_storage,
};

impl Store {
    /// Adds what a start of an attempt has recorded. Not stored if the run does not exist any more, or if its owner's
    /// account is full: the run itself needs none of it.
    pub async fn add_conversation(&self, run: RunId, messages: &[RunMessage]) -> Result<(), StoreError> {
        let messages = text(&messages)?;
        self.write_one(transaction!(|tx| {
            let user: Option<String> = sqlx::query_scalar("SELECT user_id FROM routine_runs WHERE id = $1")
                .bind(run)
                .fetch_optional(&mut tx.db)
                .await?;
            let Some(user) = user else { return Ok(()) };
            if user_storage::is_full(tx, &user).await? {
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
