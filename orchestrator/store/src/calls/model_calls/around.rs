//! The events around a model call of a job, from which its request is rebuilt.
//!
//! Bounded in bytes: of a long conversation, the part before the call.

use chrono::{DateTime, Utc};
use domain::transcript::request::EventsAroundCall;
use protocol::{CallId, Completion, EventData, JobId};
use sqlx::FromRow;

use crate::{Store, StoreError, jobs::transcript::PartRow, sqlite::rows::RowRef};

/// Bytes of events that are read of a conversation.
const MAX_BYTES: usize = 2 * 1024 * 1024;
/// Events after a call that are read: a worker sends its events a little later than they happen.
const EVENTS_AFTER: i64 = 200;

/// A model call with the events around it.
#[derive(Debug)]
pub struct CallWithEvents {
    pub attempt: u32,
    pub provider: String,
    pub model: String,
    pub at: DateTime<Utc>,
    pub events: EventsAroundCall,
    /// Whether a part of the conversation was not read.
    pub is_cut: bool,
}

impl Store {
    /// A model call of a job, in its latest attempt that has one with this id, and the events around it.
    pub async fn model_call_with_events(
        &self,
        job: JobId,
        call: &CallId,
    ) -> Result<Option<CallWithEvents>, StoreError> {
        let row: Option<AskedRow> = sqlx::query_as(
            "SELECT attempt, provider, model, at, is_open, answer FROM model_calls \
             WHERE work_id = $1 AND call_id = $2 AND kind = 'job' ORDER BY attempt DESC LIMIT 1",
        )
        .bind(job)
        .bind(&call.0)
        .fetch_optional(&self.search)
        .await?;
        let Some(row) = row else { return Ok(None) };
        let row_ref = RowRef { table: "model_calls", id: *job.as_uuid() };
        let attempt: u32 = row_ref.number("attempt", row.attempt)?;
        let answer: Option<Completion> = row.answer.map(|answer| row_ref.json("answer", &answer)).transpose()?;
        let has_answer =
            answer.is_some_and(|answer| !answer.content.trim().is_empty() || !answer.tool_calls.is_empty());
        let position = if row.is_open { i64::MAX } else { self.position_of_call(job, row.attempt, row.at).await? };
        let (before, is_cut) = self.conversation(&self.search, job, (position, MAX_BYTES)).await?;
        let after = self.conversation_after(job, position, row.attempt).await?;
        let events = EventsAroundCall { before, after, has_answer };
        Ok(Some(CallWithEvents { attempt, provider: row.provider, model: row.model, at: row.at, events, is_cut }))
    }

    /// The number of the event that recorded a call with its end. A call that outlived its attempt has none, and stands
    /// behind what its attempt had recorded by then.
    async fn position_of_call(&self, job: JobId, attempt: i64, at: DateTime<Utc>) -> Result<i64, StoreError> {
        let recorded: Option<i64> = sqlx::query_scalar(
            "SELECT seq FROM events WHERE job_id = $1 AND kind = 'llm_call' AND attempt = $2 AND at = $3 \
             ORDER BY seq LIMIT 1",
        )
        .bind(job)
        .bind(attempt)
        .bind(at)
        .fetch_optional(&self.search)
        .await?;
        if let Some(seq) = recorded {
            return Ok(seq);
        }
        let last: Option<i64> =
            sqlx::query_scalar("SELECT MAX(seq) FROM events WHERE job_id = $1 AND attempt <= $2 AND at <= $3")
                .bind(job)
                .bind(attempt)
                .bind(at)
                .fetch_one(&self.search)
                .await?;
        Ok(last.map_or(0, |seq| seq.saturating_add(1)))
    }

    /// The first events of the conversation of an attempt after a position.
    async fn conversation_after(&self, job: JobId, position: i64, attempt: i64) -> Result<Vec<EventData>, StoreError> {
        let rows: Vec<PartRow> = sqlx::query_as(
            "SELECT attempt, kind, data FROM (SELECT attempt, kind, data FROM events WHERE job_id = $1 AND seq > $2 \
             ORDER BY seq LIMIT $4) WHERE attempt = $3 AND kind IN ('message', 'tool_use', 'tool_result')",
        )
        .bind(job)
        .bind(position)
        .bind(attempt)
        .bind(EVENTS_AFTER)
        .fetch_all(&self.search)
        .await?;
        rows.into_iter().map(|row| row.into_event(job).map(|(_, event)| event)).collect()
    }
}

#[derive(FromRow)]
struct AskedRow {
    attempt: i64,
    provider: String,
    model: String,
    at: DateTime<Utc>,
    is_open: bool,
    answer: Option<String>,
}
