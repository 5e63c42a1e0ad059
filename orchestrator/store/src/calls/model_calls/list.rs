//! Lists of the model calls of a job, a chat thread or a run.

use chrono::{DateTime, Utc};
use protocol::{CallId, LlmCallRecord, ThreadId, TokenUsage, WorkId};
use sqlx::FromRow;

use crate::{
    CallPosition, Store, StoreError,
    sqlite::{
        inconsistent_rows::Row,
        rows::{RowRef, dollars},
    },
};

impl Store {
    /// The model calls of a job, a run or a thread after a position, oldest first, each with its position. One that cannot
    /// be read is `None`.
    pub async fn model_calls(
        &self,
        work: impl Into<WorkId>,
        after: Option<&CallPosition>,
        limit: u32,
    ) -> Result<Vec<(CallPosition, Option<LlmCallRecord>)>, StoreError> {
        let work = *work.into().as_uuid();
        let (attempt, at, call_id) = CallPosition::bounds(after);
        let rows: Vec<Row<CallListRow>> = sqlx::query_as(CALLS_OF_WORK)
            .bind(work)
            .bind(attempt)
            .bind(at)
            .bind(call_id)
            .bind(i64::from(limit))
            .fetch_all(&self.read)
            .await?;
        let row_ref = RowRef { table: "model_calls", id: work };
        self.inconsistent.read_each(rows, |row| {
            let position = CallPosition::of(row_ref, row.attempt, row.at, &row.call_id)?;
            Ok((position, self.inconsistent.skip(row.into_record(row_ref))?))
        })
    }

    /// The owner of a thread that has made model calls, also once it is deleted.
    pub async fn owner_of_thread_model_calls(&self, thread: ThreadId) -> Result<Option<String>, StoreError> {
        let owner =
            sqlx::query_scalar("SELECT user_id FROM model_calls WHERE work_id = $1 AND kind = 'thread' LIMIT 1");
        Ok(owner.bind(thread).fetch_optional(&self.read).await?)
    }
}

const CALLS_OF_WORK: &str = "SELECT attempt, call_id, at, provider, model, input_tokens, output_tokens, cache_read_tokens, \
     cache_write_tokens, cost_micro_usd, duration_ms, finish_reason, error FROM model_calls \
     WHERE work_id = $1 AND (attempt, at, call_id) > ($2, $3, $4) ORDER BY attempt, at, call_id LIMIT $5";

#[derive(FromRow)]
struct CallListRow {
    attempt: i64,
    call_id: String,
    at: DateTime<Utc>,
    provider: String,
    model: String,
    input_tokens: i64,
    output_tokens: i64,
    cache_read_tokens: i64,
    cache_write_tokens: i64,
    cost_micro_usd: Option<i64>,
    duration_ms: i64,
    finish_reason: Option<String>,
    error: Option<String>,
}

impl CallListRow {
    fn into_record(self, row_ref: RowRef) -> Result<LlmCallRecord, StoreError> {
        Ok(LlmCallRecord {
            call_id: CallId(self.call_id),
            attempt: row_ref.number("attempt", self.attempt)?,
            provider: self.provider,
            model: self.model,
            usage: TokenUsage {
                input_tokens: row_ref.number("input_tokens", self.input_tokens)?,
                output_tokens: row_ref.number("output_tokens", self.output_tokens)?,
                cache_read_tokens: row_ref.number("cache_read_tokens", self.cache_read_tokens)?,
                cache_write_tokens: row_ref.number("cache_write_tokens", self.cache_write_tokens)?,
            },
            cost_usd: self.cost_micro_usd.map(dollars),
            duration_ms: row_ref.number("duration_ms", self.duration_ms)?,
            finish_reason: self.finish_reason,
            error: self.error,
            at: self.at,
        })
    }
}
