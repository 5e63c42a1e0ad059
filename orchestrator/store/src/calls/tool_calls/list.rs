//! Lists of tool calls.

use chrono::{DateTime, Utc};
use protocol::{CallId, ThreadActionRecord, ThreadId, ToolActionRecord, WorkId};
use sqlx::FromRow;

use crate::{
    CallPosition, Store, StoreError,
    sqlite::{
        inconsistent_rows::Row,
        rows::{RowRef, dollars},
    },
};

/// A page of the calls of some work. The first condition bounds the rows that are sorted.
const LIST: &str = "SELECT attempt, call_id, at, tool, input, reasoning, success, output, duration_ms, estimated_cost_micro_usd, \
     cost_micro_usd, json_extract(reply, '$.error.kind') AS error FROM tool_calls \
     WHERE work_id = $1 AND attempt >= $2 AND (attempt, at, call_id) > ($2, $3, $4) ORDER BY attempt, at, call_id LIMIT $5";

impl Store {
    /// The tool calls of a job or a run after a position, by attempt, oldest first, each with its position. One that
    /// cannot be read is `None`.
    pub async fn tool_calls(
        &self,
        work: impl Into<WorkId>,
        after: Option<&CallPosition>,
        limit: u32,
    ) -> Result<Vec<(CallPosition, Option<ToolActionRecord>)>, StoreError> {
        self.list_tool_calls(work.into(), (after, limit), ToolCallRow::into_record).await
    }

    /// The same of a thread, by turn.
    pub async fn thread_tool_calls(
        &self,
        thread: ThreadId,
        after: Option<&CallPosition>,
        limit: u32,
    ) -> Result<Vec<(CallPosition, Option<ThreadActionRecord>)>, StoreError> {
        self.list_tool_calls(thread.into(), (after, limit), ToolCallRow::into_thread_record).await
    }

    async fn list_tool_calls<T>(
        &self,
        work: WorkId,
        (after, limit): (Option<&CallPosition>, u32),
        into_record: impl Fn(ToolCallRow, RowRef) -> Result<T, StoreError>,
    ) -> Result<Vec<(CallPosition, Option<T>)>, StoreError> {
        let (attempt, at, call_id) = CallPosition::bounds(after);
        let rows: Vec<Row<ToolCallRow>> = sqlx::query_as(LIST)
            .bind(*work.as_uuid())
            .bind(attempt)
            .bind(at)
            .bind(call_id)
            .bind(i64::from(limit))
            .fetch_all(&self.read)
            .await?;
        let row_ref = RowRef { table: "tool_calls", id: *work.as_uuid() };
        self.inconsistent.read_each(rows, |row| {
            let position = CallPosition::of(row_ref, row.attempt, row.at, &row.call_id)?;
            Ok((position, self.inconsistent.skip(into_record(row, row_ref))?))
        })
    }
}

#[derive(FromRow)]
struct ToolCallRow {
    attempt: i64,
    call_id: String,
    at: DateTime<Utc>,
    tool: String,
    input: String,
    reasoning: Option<String>,
    success: Option<bool>,
    output: Option<String>,
    duration_ms: Option<i64>,
    estimated_cost_micro_usd: i64,
    cost_micro_usd: Option<i64>,
    /// The kind of the error, by its name.
    error: Option<String>,
}

impl ToolCallRow {
    fn into_record(self, row_ref: RowRef) -> Result<ToolActionRecord, StoreError> {
        Ok(ToolActionRecord {
            call_id: CallId(self.call_id),
            attempt: row_ref.number("attempt", self.attempt)?,
            tool: self.tool,
            input: row_ref.json("input", &self.input)?,
            reasoning: self.reasoning,
            success: self.success,
            output: self.output,
            duration_ms: self.duration_ms.map(|ms| row_ref.number("duration_ms", ms)).transpose()?,
            estimated_cost_usd: dollars(self.estimated_cost_micro_usd),
            cost_usd: self.cost_micro_usd.map(dollars),
            at: self.at,
        })
    }

    fn into_thread_record(mut self, row_ref: RowRef) -> Result<ThreadActionRecord, StoreError> {
        let kind = |name: String| serde_json::from_value(name.into()).map_err(|_| row_ref.invalid("reply"));
        let error = self.error.take().map(kind).transpose()?;
        let call = self.into_record(row_ref)?;
        Ok(ThreadActionRecord {
            call_id: call.call_id,
            turn: call.attempt,
            tool: call.tool,
            input: call.input,
            reasoning: call.reasoning,
            success: call.success,
            error,
            output: call.output,
            duration_ms: call.duration_ms,
            estimated_cost_usd: call.estimated_cost_usd,
            cost_usd: call.cost_usd,
            at: call.at,
        })
    }
}
