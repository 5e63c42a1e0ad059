//! Transcripts: the conversation of a job's earlier attempts, rebuilt from its recorded answers and events.
//!
//! Bounded in bytes: the newest part of a long conversation is kept.

use futures_util::TryStreamExt as _;
use protocol::{Completion, EventData, JobId, Message, limits::MAX_TRANSCRIPT_BYTES};

use crate::{
    Store, StoreError,
    sqlite::rows::{EventRow, RowRef},
};
use domain::transcript;

impl Store {
    /// The conversation of a job's earlier attempts, its newest part when it is long; empty when there is none. One
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
        let events = self.conversation(job, MAX_TRANSCRIPT_BYTES).await?;
        Ok(transcript::rebuild(events, &answers))
    }

    /// A job's messages, tool calls and tool results in order, the newest `max_bytes` of them.
    pub(crate) async fn conversation(&self, job: JobId, max_bytes: usize) -> Result<Vec<EventData>, StoreError> {
        let mut reader = self.read.acquire().await?;
        let mut rows = sqlx::query_as::<_, EventRow>(
            "SELECT cursor, job_id, seq, attempt, at, kind, data FROM events \
             WHERE job_id = $1 AND kind IN ('message', 'tool_use', 'tool_result') ORDER BY seq DESC",
        )
        .bind(job)
        .fetch(reader.connection()?);
        let (mut events, mut bytes) = (Vec::new(), 0);
        while let Some(row) = rows.try_next().await? {
            let event = row.into_event()?;
            bytes += event.bytes();
            if bytes > max_bytes {
                // The conversation starts with a message, never with a result whose call was cut off.
                while events.last().is_some_and(|event| !matches!(event, EventData::Message { .. })) {
                    events.pop();
                }
                break;
            }
            events.push(event.parse()?);
        }
        events.reverse();
        Ok(events)
    }
}
