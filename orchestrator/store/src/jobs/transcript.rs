//! Transcripts: the conversation of a job's earlier attempts, rebuilt from its recorded answers and events.
//!
//! Bounded in bytes: of a long conversation, the prompt and the newest part are kept.

use futures_util::TryStreamExt as _;
use protocol::{Completion, EventData, JobId, Message, MessageRole, limits::MAX_TRANSCRIPT_BYTES};
use serde_json::{json, value::RawValue};
use sqlx::FromRow;

use crate::{
    Store, StoreError,
    sqlite::{readers::Readers, rows::RowRef},
};
use domain::transcript;

impl Store {
    /// The conversation of a job's earlier attempts, its prompt and its newest part when it is long; empty when there is none. One
    /// transcript is rebuilt at a time, because it is the largest read of the store.
    pub async fn transcript(&self, job: JobId) -> Result<Vec<Message>, StoreError> {
        let _turn = self.transcripts.lock().await;
        // By insertion, not by time: the wall clock may be set back between two answers.
        let mut reader = self.read.acquire().await?;
        let mut rows = sqlx::query_scalar::<_, String>(
            "SELECT answer FROM model_calls WHERE work_id = $1 AND answer IS NOT NULL ORDER BY rowid DESC",
        )
        .bind(job)
        .fetch(reader.connection()?);
        let row_ref = RowRef { table: "model_calls", id: *job.as_uuid() };
        let (mut answers, mut bytes) = (Vec::<Completion>::new(), 0);
        while let Some(answer) = rows.try_next().await? {
            bytes += answer.len();
            if bytes > MAX_TRANSCRIPT_BYTES {
                break;
            }
            answers.push(row_ref.json("answer", &answer)?);
        }
        drop(rows);
        drop(reader);
        answers.reverse();
        let (events, _) = self.conversation(&self.read, job, (i64::MAX, MAX_TRANSCRIPT_BYTES)).await?;
        Ok(transcript::rebuild(events.into_iter().map(|(_, event)| event), &answers))
    }

    /// The messages, tool calls and tool results of a job before an event, each with its attempt, and whether some are left out: of
    /// a long conversation it is the prompt and the newest part, at most `max_bytes`.
    pub(crate) async fn conversation(
        &self,
        readers: &Readers,
        job: JobId,
        (before, max_bytes): (i64, usize),
    ) -> Result<(Vec<(u32, EventData)>, bool), StoreError> {
        let mut reader = readers.acquire().await?;
        let mut rows = sqlx::query_as::<_, PartRow>(
            "SELECT attempt, kind, data FROM events WHERE job_id = $1 AND seq < $2 \
             AND kind IN ('message', 'tool_use', 'tool_result') ORDER BY seq DESC",
        )
        .bind(job)
        .bind(before)
        .fetch(reader.connection()?);
        let (mut events, mut bytes, mut is_cut) = (vec![], 0, false);
        while let Some(row) = rows.try_next().await? {
            bytes += row.data.len();
            if bytes > max_bytes {
                is_cut = true;
                break;
            }
            events.push(row.into_event(job)?);
        }
        drop(rows);
        if is_cut {
            // The newest part begins with a message, never with a result whose call was cut off.
            while events.last().is_some_and(|(_, event)| !matches!(event, EventData::Message { .. })) {
                events.pop();
            }
            let first: PartRow = sqlx::query_as(
                "SELECT attempt, kind, data FROM events WHERE job_id = $1 \
                 AND kind IN ('message', 'tool_use', 'tool_result') ORDER BY seq LIMIT 1",
            )
            .bind(job)
            .fetch_one(reader.connection()?)
            .await?;
            let first = first.into_event(job)?;
            if matches!(first.1, EventData::Message { role: MessageRole::User, .. }) {
                events.push(first);
            }
        }
        events.reverse();
        Ok((events, is_cut))
    }
}

/// An event of a conversation.
#[derive(FromRow)]
pub(crate) struct PartRow {
    attempt: i64,
    kind: String,
    data: String,
}

impl PartRow {
    pub(crate) fn into_event(self, job: JobId) -> Result<(u32, EventData), StoreError> {
        let row_ref = RowRef { table: "events", id: *job.as_uuid() };
        let data = RawValue::from_string(self.data).map_err(|_| row_ref.invalid("data"))?;
        let event = serde_json::from_value(json!({"kind": self.kind, "data": data}));
        Ok((row_ref.number("attempt", self.attempt)?, event.map_err(|_| row_ref.invalid("data"))?))
    }
}
