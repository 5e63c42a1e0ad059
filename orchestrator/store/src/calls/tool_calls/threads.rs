//! Tool calls of chat threads and of runs of routines: found after their thread was deleted, trimmed.
//!
//! Guarantees that such a call keeps no text once its thread is deleted.

use chrono::{DateTime, Utc};
use protocol::ThreadId;

use crate::{Store, StoreError, sqlite::write_tx::WriteTx};

/// Removes what calls were about. The kind of an error stays.
macro_rules! forget_texts {
    ($which:literal) => {
        concat!(
            "UPDATE tool_calls SET input = 'null', reasoning = NULL, output = NULL, request_digest = '', \
             reply = json_replace(reply, '$.output', NULL, '$.error.message', '') WHERE work_id = $1 AND kind = 'thread'",
            $which
        )
    };
}

/// Removes the texts of a call ($1, $2, $3) whose thread was deleted while it ran.
pub(super) const FORGET_TEXTS_WITHOUT_THREAD: &str =
    forget_texts!(" AND attempt = $2 AND call_id = $3 AND $1 NOT IN (SELECT id FROM chat_threads)");

impl Store {
    /// The owner of a thread's tool calls, which outlive the thread.
    pub async fn owner_of_thread_tool_calls(&self, thread: ThreadId) -> Result<Option<String>, StoreError> {
        let owner = sqlx::query_scalar("SELECT user_id FROM tool_calls WHERE work_id = $1 AND kind <> 'job' LIMIT 1");
        Ok(owner.bind(thread).fetch_optional(&self.read).await?)
    }

    /// Deletes the records of tool calls of chats and runs that ended before a time. Returns how many.
    pub(crate) async fn trim_thread_tool_calls(&self, before: DateTime<Utc>) -> Result<u64, StoreError> {
        let calls = "DELETE FROM tool_calls WHERE rowid IN (SELECT rowid FROM tool_calls \
             WHERE kind <> 'job' AND at < $1 AND reply IS NOT NULL ORDER BY at LIMIT $2)";
        self.delete_batch(calls, before).await
    }
}

/// Removes the texts of a thread's tool calls. A call in flight loses its result when it is closed.
pub(crate) async fn forget_texts(tx: &mut WriteTx, thread: ThreadId) -> Result<(), StoreError> {
    sqlx::query(forget_texts!("")).bind(thread).execute(&mut tx.db).await?;
    Ok(())
}
