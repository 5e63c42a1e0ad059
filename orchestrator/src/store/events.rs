//! Events: appended with gap-free numbers in the transaction of what they tell, read in order.

use chrono::{DateTime, Utc};
use protocol::{Event, EventData, EventKind, JobId, WorkerEvent};
use serde_json::Value;
use sqlx::QueryBuilder;

use super::{
    Connection, Store, StoreError,
    rows::{EventRow, Place, column, text},
};
use crate::failpoint;

/// Rows in one INSERT: six values each, far below what a statement may bind.
const ROWS_A_STATEMENT: usize = 100;

/// What became of a worker's batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Appended {
    /// Everything up to here is stored.
    Stored {
        /// The last `client_seq` that is.
        last_client_seq: u64,
    },
    /// A number was left out; nothing of the batch is stored.
    Gap {
        /// The `client_seq` that is due.
        expected: u64,
    },
    /// The attempt is over.
    Fenced,
}

/// Some of a job's events.
#[derive(Debug, Clone, PartialEq)]
pub struct EventPage {
    /// In order.
    pub items: Vec<Event>,
    /// The oldest that is there (the page's own first one when nothing is missing before it); none when there are none.
    pub oldest_seq: Option<i64>,
}

/// Appends to a job inside a transaction.
pub(super) async fn append(
    tx: &mut Connection,
    job: JobId,
    attempt: u32,
    now: DateTime<Utc>,
    events: &[EventData],
) -> Result<(), StoreError> {
    if events.is_empty() {
        return Ok(());
    }
    let last: i64 = sqlx::query_scalar("UPDATE jobs SET last_seq = last_seq + $1 WHERE id = $2 RETURNING last_seq")
        .bind(column(events.len() as u64))
        .bind(*job.as_uuid())
        .fetch_one(&mut *tx)
        .await?;
    insert(tx, (job, attempt, now), last, events).await
}

/// Writes events whose numbers the job's row has already given out, the last of them `last`.
pub(super) async fn insert(
    tx: &mut Connection,
    (job, attempt, now): (JobId, u32, DateTime<Utc>),
    last: i64,
    events: &[EventData],
) -> Result<(), StoreError> {
    let mut rows = Vec::with_capacity(events.len());
    for (seq, event) in (last - column(events.len() as u64) + 1..).zip(events) {
        let Value::Object(mut whole) = serde_json::to_value(event).unwrap_or_default() else {
            return Err(Place { table: "events", id: *job.as_uuid() }.wrong("data"));
        };
        let data = whole.remove("data").unwrap_or_default().to_string();
        rows.push((seq, event.kind().as_str(), data));
    }
    // A statement crosses to the database's thread and back: rows that go together cross together.
    for some in rows.chunks(ROWS_A_STATEMENT) {
        let mut insert = QueryBuilder::new("INSERT INTO events (job_id, seq, attempt, at, kind, data) ");
        insert.push_values(some, |mut row, (seq, kind, data)| {
            row.push_bind(*job.as_uuid())
                .push_bind(*seq)
                .push_bind(i64::from(attempt))
                .push_bind(now)
                .push_bind(*kind)
                .push_bind(data.as_str());
        });
        insert.build().execute(&mut *tx).await?;
    }
    Ok(())
}

impl Store {
    /// A worker's batch: in order, each number once, tool calls also as audit rows.
    pub async fn append_worker_events(
        &self,
        job: JobId,
        attempt: u32,
        now: DateTime<Utc>,
        events: &[WorkerEvent],
    ) -> Result<Appended, StoreError> {
        let mut tx = self.begin().await?;
        let known: Option<i64> = sqlx::query_scalar(
            "SELECT last_client_seq FROM jobs WHERE id = $1 AND attempt = $2 AND state IN ('in_progress', 'stuck')",
        )
        .bind(*job.as_uuid())
        .bind(i64::from(attempt))
        .fetch_optional(&mut *tx)
        .await?;
        let Some(known) = known.and_then(|seq| u64::try_from(seq).ok()) else { return Ok(Appended::Fenced) };
        let mut last = known;
        let mut fresh = Vec::with_capacity(events.len());
        for event in events.iter().filter(|event| event.client_seq > known) {
            if event.client_seq != last + 1 {
                return Ok(Appended::Gap { expected: last + 1 });
            }
            last = event.client_seq;
            fresh.push(event.data.clone());
        }
        if fresh.is_empty() {
            return Ok(Appended::Stored { last_client_seq: known });
        }
        let tool_calls = fresh.iter().filter(|event| event.kind() == EventKind::ToolUse).count();
        let last_seq: i64 = sqlx::query_scalar(
            "UPDATE jobs SET last_seq = last_seq + $1, last_client_seq = $2, last_activity_at = $3, \
             tool_calls = tool_calls + $4 WHERE id = $5 RETURNING last_seq",
        )
        .bind(column(fresh.len() as u64))
        .bind(column(last))
        .bind(now)
        .bind(column(tool_calls as u64))
        .bind(*job.as_uuid())
        .fetch_one(&mut *tx)
        .await?;
        insert(&mut tx, (job, attempt, now), last_seq, &fresh).await?;
        for event in &fresh {
            audit(&mut tx, (job, attempt, now), event).await?;
        }
        failpoint::reach("events.before_commit");
        tx.commit().await?;
        failpoint::reach("events.after_commit");
        self.feed.ring(job);
        Ok(Appended::Stored { last_client_seq: last })
    }

    /// One event of the orchestrator's own about a live attempt. Nothing when the attempt is over.
    pub async fn tell(&self, job: JobId, attempt: u32, now: DateTime<Utc>, event: EventData) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        let live: Option<i64> = sqlx::query_scalar(
            "SELECT attempt FROM jobs WHERE id = $1 AND attempt = $2 AND state IN ('in_progress', 'stuck')",
        )
        .bind(*job.as_uuid())
        .bind(i64::from(attempt))
        .fetch_optional(&mut *tx)
        .await?;
        if live.is_some() {
            append(&mut tx, job, attempt, now, &[event]).await?;
            tx.commit().await?;
            self.feed.ring(job);
        }
        Ok(())
    }

    /// The number of a job's newest event; 0 when there is no such job.
    pub async fn last_seq(&self, job: JobId) -> Result<i64, StoreError> {
        let last: Option<i64> = sqlx::query_scalar("SELECT last_seq FROM jobs WHERE id = $1")
            .bind(*job.as_uuid())
            .fetch_optional(&self.read)
            .await?;
        Ok(last.unwrap_or(0))
    }

    /// Events after `after`, at most `limit`, of one kind or all.
    pub async fn events(
        &self,
        job: JobId,
        after: i64,
        limit: u32,
        kind: Option<EventKind>,
    ) -> Result<EventPage, StoreError> {
        let rows: Vec<EventRow> = sqlx::query_as(
            "SELECT cursor, job_id, seq, attempt, at, kind, data FROM events \
             WHERE job_id = $1 AND seq > $2 AND ($3 IS NULL OR kind = $3) ORDER BY seq LIMIT $4",
        )
        .bind(*job.as_uuid())
        .bind(after)
        .bind(kind.map(EventKind::as_str))
        .bind(i64::from(limit))
        .fetch_all(&self.read)
        .await?;
        // Numbers have no gaps, so a page that begins where it should has lost nothing.
        let oldest_seq: Option<i64> = match rows.first() {
            Some(first) if kind.is_none() && first.seq == after + 1 => Some(first.seq),
            _ => {
                sqlx::query_scalar("SELECT MIN(seq) FROM events WHERE job_id = $1")
                    .bind(*job.as_uuid())
                    .fetch_one(&self.read)
                    .await?
            }
        };
        let items = rows.into_iter().map(EventRow::into_event).collect::<Result<_, _>>()?;
        Ok(EventPage { items, oldest_seq })
    }
}

/// What the job's model was told in a person's name, but for the job's own prompt, in order.
pub(super) async fn heard(tx: &mut Connection, job: JobId) -> Result<Vec<String>, StoreError> {
    let said: Vec<String> = sqlx::query_scalar(
        "SELECT data ->> 'content' FROM events WHERE job_id = $1 AND kind = 'message' AND data ->> 'role' = 'user' ORDER BY seq",
    )
    .bind(*job.as_uuid())
    .fetch_all(tx)
    .await?;
    Ok(said.into_iter().skip(1).collect())
}

/// The audit row of a tool call, from the worker's two events about it.
async fn audit(
    tx: &mut Connection,
    (job, attempt, now): (JobId, u32, DateTime<Utc>),
    event: &EventData,
) -> Result<(), StoreError> {
    match event {
        EventData::ToolUse { call_id, tool, input, .. } => {
            sqlx::query(
                "INSERT INTO job_actions (job_id, attempt, call_id, at, tool, input) VALUES ($1, $2, $3, $4, $5, $6) \
                 ON CONFLICT (job_id, attempt, call_id) DO UPDATE SET input = excluded.input",
            )
            .bind(*job.as_uuid())
            .bind(i64::from(attempt))
            .bind(call_id)
            .bind(now)
            .bind(tool)
            .bind(text(input)?)
            .execute(tx)
            .await?;
        }
        EventData::ToolResult { call_id, tool, success, output, duration_ms, .. } => {
            sqlx::query(
                "INSERT INTO job_actions (job_id, attempt, call_id, at, tool, input, success, output, duration_ms) \
                 VALUES ($1, $2, $3, $4, $5, 'null', $6, $7, $8) ON CONFLICT (job_id, attempt, call_id) DO UPDATE \
                 SET success = excluded.success, output = excluded.output, duration_ms = excluded.duration_ms",
            )
            .bind(*job.as_uuid())
            .bind(i64::from(attempt))
            .bind(call_id)
            .bind(now)
            .bind(tool)
            .bind(*success)
            .bind(output)
            .bind(column(*duration_ms))
            .execute(tx)
            .await?;
        }
        _ => {}
    }
    Ok(())
}
