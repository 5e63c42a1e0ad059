//! Events: appended with gap-free numbers in the transaction of what they tell, read in order.

use chrono::{DateTime, Utc};
use futures_util::TryStreamExt as _;
use protocol::{EventData, EventKind, JobId};
use sqlx::QueryBuilder;

use super::{
    Connection, Store, StoreError, StoredEvent,
    rows::{EventRow, Place, column, count, text},
};

/// Rows in one INSERT: six values each, far below what a statement may bind.
const ROWS_A_STATEMENT: usize = 100;

/// What is read at once has about so much in it, for each reader that is not done with it.
const PAGE_BYTES: usize = 1024 * 1024;

/// Some of a job's events.
#[derive(Debug, Clone)]
pub struct EventPage {
    /// In order.
    pub items: Vec<StoredEvent>,
    /// Others follow.
    pub more: bool,
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
    of: (JobId, u32, DateTime<Utc>),
    last: i64,
    events: &[EventData],
) -> Result<(), StoreError> {
    let mut rows = Vec::with_capacity(events.len());
    number(&mut rows, of, last, &events.iter().collect::<Vec<_>>())?;
    insert_rows(tx, &rows).await
}

/// An event to be written.
pub(super) struct NewRow {
    job: JobId,
    seq: i64,
    attempt: u32,
    at: DateTime<Utc>,
    kind: EventKind,
    data: String,
}

/// Adds the rows of events whose numbers the job's row has already given out, the last of them `last`.
pub(super) fn number(
    rows: &mut Vec<NewRow>,
    (job, attempt, at): (JobId, u32, DateTime<Utc>),
    last: i64,
    events: &[&EventData],
) -> Result<(), StoreError> {
    let place = Place { table: "events", id: *job.as_uuid() };
    for (seq, event) in (last - column(events.len() as u64) + 1..).zip(events) {
        let data = data_of(event)?.ok_or_else(|| place.wrong("data"))?;
        rows.push(NewRow { job, seq, attempt, at, kind: event.kind(), data });
    }
    Ok(())
}

/// An event without its kind. All of it is written once, and what is around the data taken off.
fn data_of(event: &EventData) -> Result<Option<String>, StoreError> {
    let whole = text(event)?;
    let before = format!(r#"{{"kind":"{}","data":"#, event.kind().as_str());
    Ok(whole.strip_prefix(&before).and_then(|rest| rest.strip_suffix('}')).map(str::to_owned))
}

/// Writes them. A statement crosses to the database's thread and back: rows that go together cross together.
pub(super) async fn insert_rows(tx: &mut Connection, rows: &[NewRow]) -> Result<(), StoreError> {
    for some in rows.chunks(ROWS_A_STATEMENT) {
        let mut insert = QueryBuilder::new("INSERT INTO events (job_id, seq, attempt, at, kind, data) ");
        insert.push_values(some, |mut row, new| {
            row.push_bind(*new.job.as_uuid())
                .push_bind(new.seq)
                .push_bind(i64::from(new.attempt))
                .push_bind(new.at)
                .push_bind(new.kind.as_str())
                .push_bind(new.data.as_str());
        });
        insert.build().execute(&mut *tx).await?;
    }
    Ok(())
}

impl Store {
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

    /// Events after `after`, at most `limit` and as many as fit into a page, of one kind or all, in order.
    pub async fn events(
        &self,
        job: JobId,
        after: i64,
        limit: u32,
        kind: Option<EventKind>,
    ) -> Result<EventPage, StoreError> {
        let mut rows = sqlx::query_as::<_, EventRow>(
            "SELECT cursor, job_id, seq, attempt, at, kind, data FROM events \
             WHERE job_id = $1 AND seq > $2 AND ($3 IS NULL OR kind = $3) ORDER BY seq LIMIT $4",
        )
        .bind(*job.as_uuid())
        .bind(after)
        .bind(kind.map(EventKind::as_str))
        // One more, to know whether there is a next page.
        .bind(i64::from(limit) + 1)
        .fetch(&self.read);
        let (mut items, mut bytes) = (Vec::new(), 0);
        while let Some(row) = rows.try_next().await? {
            if items.len() == limit as usize || bytes >= PAGE_BYTES {
                return Ok(EventPage { items, more: true });
            }
            bytes += row.bytes();
            items.push(row.into_event()?);
        }
        Ok(EventPage { items, more: false })
    }
}

impl Store {
    /// What was said and done in a job, the newest `max_bytes` of it, in order: what a conversation is rebuilt from.
    pub(super) async fn conversation(&self, job: JobId, max_bytes: usize) -> Result<Vec<EventData>, StoreError> {
        let mut rows = sqlx::query_as::<_, EventRow>(
            "SELECT cursor, job_id, seq, attempt, at, kind, data FROM events \
             WHERE job_id = $1 AND kind IN ('message', 'tool_use', 'tool_result') ORDER BY seq DESC",
        )
        .bind(*job.as_uuid())
        .fetch(&self.read);
        let (mut events, mut bytes) = (Vec::new(), 0);
        while let Some(row) = rows.try_next().await? {
            bytes += row.bytes();
            if bytes > max_bytes {
                // What was said last before the cut is a beginning; a result without its call is none.
                while events.last().is_some_and(|event| !matches!(event, EventData::Message { .. })) {
                    events.pop();
                }
                break;
            }
            events.push(row.into_event()?.parse()?);
        }
        events.reverse();
        Ok(events)
    }

    /// The bytes of what a job's events say.
    pub async fn event_bytes(&self, job: JobId) -> Result<u64, StoreError> {
        let bytes: i64 =
            sqlx::query_scalar("SELECT COALESCE(SUM(octet_length(data)), 0) FROM events WHERE job_id = $1")
                .bind(*job.as_uuid())
                .fetch_one(&self.read)
                .await?;
        Ok(count(bytes))
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
