//! Tool calls of chat threads and of runs of routines: listed, found after their thread was deleted, trimmed.
//!
//! Guarantees that such a call keeps no text once its thread is deleted.

use chrono::{DateTime, Utc};
use protocol::{CallId, RunId, ThreadActionRecord, ThreadId, ToolActionRecord};
use sqlx::FromRow;

use super::{
    super::{CallPosition, Store, StoreError, TurnKey, rows::RowRef, write_tx::WriteTx},
    ActionListRow,
};

/// Rows that one transaction of the retention sweep deletes, so that other writes do not wait long.
const ROWS_PER_BATCH: i64 = 1_000;

/// A page of a thread's or run's calls. The first condition bounds the rows that are sorted.
const LIST: &str = "SELECT turn AS attempt, call_id, at, tool, input, success, output, duration_ms, estimated_cost_micro_usd, \
     cost_micro_usd, json_extract(reply, '$.error.kind') AS error FROM thread_actions \
     WHERE thread_id = $1 AND turn >= $2 AND (turn, at, call_id) > ($2, $3, $4) ORDER BY turn, at, call_id LIMIT $5";

/// The values of a row without what the call was about: for UPDATE. The kind of an error stays.
macro_rules! without_texts {
    () => {
        "input = 'null', output = NULL, request_digest = '', \
         reply = json_replace(reply, '$.output', NULL, '$.error.message', '')"
    };
}

impl Store {
    /// A thread's tool calls after a position, by turn, oldest first, each with its position.
    pub async fn thread_actions(
        &self,
        thread: ThreadId,
        after: Option<&CallPosition>,
        limit: u32,
    ) -> Result<Vec<(CallPosition, ThreadActionRecord)>, StoreError> {
        let (turn, at, call_id) = CallPosition::bounds(after);
        let rows: Vec<ThreadActionRow> = sqlx::query_as(LIST)
            .bind(thread)
            .bind(turn)
            .bind(at)
            .bind(call_id)
            .bind(i64::from(limit))
            .fetch_all(&self.read)
            .await?;
        let row_ref = RowRef { table: "thread_actions", id: *thread.as_uuid() };
        rows.into_iter().map(|row| row.into_record(row_ref)).collect()
    }

    /// The tool calls of a run after a position, by attempt, oldest first, each with its position.
    pub async fn run_actions(
        &self,
        run: RunId,
        after: Option<&CallPosition>,
        limit: u32,
    ) -> Result<Vec<(CallPosition, ToolActionRecord)>, StoreError> {
        let (attempt, at, call_id) = CallPosition::bounds(after);
        let rows: Vec<ThreadActionRow> = sqlx::query_as(LIST)
            .bind(run)
            .bind(attempt)
            .bind(at)
            .bind(call_id)
            .bind(i64::from(limit))
            .fetch_all(&self.read)
            .await?;
        let row_ref = RowRef { table: "thread_actions", id: *run.as_uuid() };
        rows.into_iter().map(|row| row.action.into_record(row_ref)).collect()
    }

    /// The owner of a thread's tool calls, which outlive the thread.
    pub async fn owner_of_thread_actions(&self, thread: ThreadId) -> Result<Option<String>, StoreError> {
        let owner = sqlx::query_scalar("SELECT user_id FROM thread_actions WHERE thread_id = $1 LIMIT 1");
        Ok(owner.bind(thread).fetch_optional(&self.read).await?)
    }

    /// Deletes the records of tool calls of chats that ended before a time. Returns how many.
    pub(crate) async fn trim_thread_actions(&self, before: DateTime<Utc>) -> Result<u64, StoreError> {
        self.write_one(transaction!(|tx| {
            let rows = sqlx::query(
                "DELETE FROM thread_actions WHERE rowid IN (SELECT rowid FROM thread_actions \
                 WHERE at < $1 AND reply IS NOT NULL ORDER BY at LIMIT $2)",
            )
            .bind(before)
            .bind(ROWS_PER_BATCH);
            Ok(rows.execute(&mut tx.db).await?.rows_affected())
        }))
        .await
    }
}

/// Removes the texts of a thread's tool calls. A call in flight loses its result when it is closed.
pub(crate) async fn forget_texts(tx: &mut WriteTx, thread: ThreadId) -> Result<(), StoreError> {
    sqlx::query(concat!("UPDATE thread_actions SET ", without_texts!(), " WHERE thread_id = $1"))
        .bind(thread)
        .execute(&mut tx.db)
        .await?;
    Ok(())
}

/// The same for one call, if its thread was deleted while it ran.
pub(super) async fn forget_text_without_thread(
    tx: &mut WriteTx,
    TurnKey { thread, turn }: TurnKey,
    call_id: &CallId,
) -> Result<(), StoreError> {
    sqlx::query(concat!(
        "UPDATE thread_actions SET ",
        without_texts!(),
        " WHERE thread_id = $1 AND turn = $2 AND call_id = $3 AND $1 NOT IN (SELECT id FROM chat_threads)"
    ))
    .bind(thread)
    .bind(i64::from(turn))
    .bind(&call_id.0)
    .execute(&mut tx.db)
    .await?;
    Ok(())
}

#[derive(FromRow)]
struct ThreadActionRow {
    #[sqlx(flatten)]
    action: ActionListRow,
    /// The kind of the error, by its name.
    error: Option<String>,
}

impl ThreadActionRow {
    fn into_record(self, row_ref: RowRef) -> Result<(CallPosition, ThreadActionRecord), StoreError> {
        let kind = |name: String| serde_json::from_value(name.into()).map_err(|_| row_ref.invalid("reply"));
        let error = self.error.map(kind).transpose()?;
        let (position, action) = self.action.into_record(row_ref)?;
        let record = ThreadActionRecord {
            call_id: action.call_id,
            turn: action.attempt,
            tool: action.tool,
            input: action.input,
            success: action.success,
            error,
            output: action.output,
            duration_ms: action.duration_ms,
            estimated_cost_usd: action.estimated_cost_usd,
            cost_usd: action.cost_usd,
            at: action.at,
        };
        Ok((position, record))
    }
}
