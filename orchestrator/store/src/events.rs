//! Events: appended with gap-free numbers in the transaction of the change they describe, and read in order.

pub(crate) mod batch;
pub(crate) mod egress;
pub(crate) mod instance_events;
pub(crate) mod notifier;

use std::borrow::Cow;

use chrono::{DateTime, Utc};
use futures_util::{Stream, TryStreamExt as _};
use protocol::{CallId, EventData, EventKind, FinishReason, JobId};
use sqlx::{FromRow, QueryBuilder, Sqlite};

use domain::job::activity_since;

use super::{
    Connection, Store, StoreError, StoredEvent,
    sqlite::{
        inconsistent_rows::{InconsistentRows, Row},
        rows::{EventRow, RowRef, column, count, tagged_data},
        write_tx::{StatementBatch, WriteTx},
    },
};

/// Rows in one INSERT: six values each, far below SQLite's limit of bound values.
const ROWS_PER_STATEMENT: usize = 100;

/// Maximum size of a page in bytes, exceeded by at most one event. Each slow reader holds one page in memory.
const PAGE_BYTES: usize = 1024 * 1024;

/// A page of a job's events.
#[derive(Debug, Clone)]
pub struct EventPage {
    /// Ordered by `seq`.
    pub items: Vec<StoredEvent>,
    /// Whether there are more events, behind the page or, of a query with an end, before it.
    pub more: bool,
}

/// Which events of a job to read.
#[derive(Debug, Clone, Default)]
pub struct EventQuery {
    /// Events after this one.
    pub after: i64,
    /// The newest ones before this one.
    pub before: Option<i64>,
    pub limit: u32,
    pub filter: EventFilter,
    /// Longer texts are cut to so many characters.
    pub max_text: Option<usize>,
}

/// The events to read, by what they are about.
#[derive(Debug, Clone, Default)]
pub struct EventFilter {
    /// Of these kinds; all kinds if empty.
    pub kinds: Vec<EventKind>,
    /// Of this tool call.
    pub call: Option<CallId>,
    /// Only failures.
    pub failed: bool,
}

/// The attempt that events belong to, and their time.
#[derive(Debug, Clone, Copy)]
pub(super) struct EventStamp {
    pub(super) job: JobId,
    pub(super) attempt: u32,
    pub(super) at: DateTime<Utc>,
}

/// Appends events to a job inside a transaction and notifies its subscribers after the commit.
pub(super) async fn append(tx: &mut WriteTx, stamp: EventStamp, events: &[EventData]) -> Result<(), StoreError> {
    if events.is_empty() {
        return Ok(());
    }
    let numbered: Numbered =
        sqlx::query_as("UPDATE jobs SET last_seq = last_seq + $1 WHERE id = $2 RETURNING last_seq, user_id")
            .bind(column(events.len() as u64))
            .bind(stamp.job)
            .fetch_one(&mut tx.db)
            .await?;
    insert(tx, stamp, &numbered, events).await
}

/// The numbers that a job's row has assigned to new events, and the job's owner.
#[derive(FromRow)]
struct Numbered {
    last_seq: i64,
    user_id: String,
}

/// Writes events whose numbers the job's row has already assigned.
async fn insert(
    tx: &mut WriteTx,
    stamp: EventStamp,
    numbered: &Numbered,
    events: &[EventData],
) -> Result<(), StoreError> {
    let mut rows = Vec::with_capacity(events.len());
    for (seq, event) in (numbered.last_seq - column(events.len() as u64) + 1..).zip(events) {
        rows.push(NewRow { stamp, seq, kind: event.kind(), data: data_json(event, stamp.job)?.into() });
    }
    tx.notify_job(stamp.job, &numbered.user_id);
    let mut statements = QueryBuilder::new("");
    push_rows(&mut statements, &rows);
    tx.run(StatementBatch::built(&mut statements)).await?;
    Ok(())
}

/// An event to be written.
pub(super) struct NewRow<'a> {
    pub(super) stamp: EventStamp,
    pub(super) seq: i64,
    pub(super) kind: EventKind,
    /// See [`data_json`].
    pub(super) data: Cow<'a, str>,
}

/// An event's data as JSON, without its kind.
pub(super) fn data_json(event: &EventData, job: JobId) -> Result<String, StoreError> {
    tagged_data(event, event.kind().as_str())?
        .ok_or_else(|| RowRef { table: "events", id: *job.as_uuid() }.invalid("data"))
}

/// Adds the statements that write rows, as few as possible.
pub(super) fn push_rows<'a>(statements: &mut QueryBuilder<Sqlite>, rows: &'a [NewRow<'a>]) {
    for chunk in rows.chunks(ROWS_PER_STATEMENT) {
        if !statements.sql().as_str().is_empty() {
            statements.push("; ");
        }
        statements.push("INSERT INTO events (job_id, seq, attempt, at, kind, data) ");
        statements.push_values(chunk, |mut row, new| {
            row.push_bind(new.stamp.job)
                .push_bind(new.seq)
                .push_bind(i64::from(new.stamp.attempt))
                .push_bind(new.stamp.at)
                .push_bind(new.kind.as_str())
                .push_bind(new.data.to_string());
        });
    }
}

impl Store {
    /// Appends events of the orchestrator to a live attempt, all or none. Does nothing when the attempt is over.
    pub async fn append_if_live(
        &self,
        job: JobId,
        attempt: u32,
        now: DateTime<Utc>,
        events: Vec<EventData>,
    ) -> Result<(), StoreError> {
        if events.is_empty() {
            return Ok(());
        }
        let stamp = EventStamp { job, attempt, at: now };
        self.write(transaction!(|tx| {
            let numbered: Option<Numbered> = sqlx::query_as(
                "UPDATE jobs SET last_seq = last_seq + $4, \
                 activity = CASE WHEN $3 IS NULL THEN activity ELSE NULLIF($3, '') END \
                 WHERE id = $1 AND attempt = $2 AND state IN ('in_progress', 'stuck') RETURNING last_seq, user_id",
            )
            .bind(job)
            .bind(i64::from(attempt))
            .bind(events.iter().rev().find_map(activity_since))
            .bind(column(events.len() as u64))
            .fetch_optional(&mut tx.db)
            .await?;
            match numbered {
                Some(numbered) => insert(tx, stamp, &numbered, &events).await,
                None => Ok(()),
            }
        }))
        .await
    }

    /// Appends events of the orchestrator to the attempt that runs. Does nothing when the job does not run.
    pub async fn append_if_running(
        &self,
        job: JobId,
        now: DateTime<Utc>,
        events: Vec<EventData>,
    ) -> Result<(), StoreError> {
        if events.is_empty() {
            return Ok(());
        }
        self.write(transaction!(|tx| {
            let attempt: Option<i64> =
                sqlx::query_scalar("SELECT attempt FROM jobs WHERE id = $1 AND state IN ('in_progress', 'stuck')")
                    .bind(job)
                    .fetch_optional(&mut tx.db)
                    .await?;
            let Some(attempt) = attempt else { return Ok(()) };
            let attempt = RowRef { table: "jobs", id: *job.as_uuid() }.number("attempt", attempt)?;
            append(tx, EventStamp { job, attempt, at: now }, &events).await
        }))
        .await
    }

    /// The number of a job's newest event; 0 when there is no such job.
    pub async fn last_seq(&self, job: JobId) -> Result<i64, StoreError> {
        let last: Option<i64> =
            sqlx::query_scalar("SELECT last_seq FROM jobs WHERE id = $1").bind(job).fetch_optional(&self.read).await?;
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
        let filter = EventFilter { kinds: kind.into_iter().collect(), ..EventFilter::default() };
        self.event_page(job, EventQuery { after, limit, filter, ..EventQuery::default() }).await
    }

    /// A page of a job's events, at most `limit` and as many as fit into a page.
    pub async fn event_page(&self, job: JobId, query: EventQuery) -> Result<EventPage, StoreError> {
        let mut statement = query.statement(job);
        let rows = statement.build_query_as::<Row<EventRow>>();
        let mut reader = self.read.acquire().await?;
        let limits = PageLimits { items: query.limit as usize, max_text: query.max_text };
        let mut page = EventPage::read(rows.fetch(reader.connection()?), &self.inconsistent, limits).await?;
        if query.before.is_some() {
            page.items.reverse();
        }
        if !page.more {
            reader.release(None);
        }
        Ok(page)
    }

    /// One event of a job.
    pub async fn event(&self, job: JobId, seq: i64) -> Result<Option<StoredEvent>, StoreError> {
        let Some(after) = seq.checked_sub(1) else { return Ok(None) };
        let page = self.events(job, after, 1, None).await?;
        Ok(page.items.into_iter().find(|event| event.seq == seq))
    }
}

impl EventQuery {
    /// One event more than the limit, to know whether there are more. Those before another one are the newest first.
    fn statement(&self, job: JobId) -> QueryBuilder<Sqlite> {
        let Self { after, before, limit, filter, .. } = self;
        let mut statement =
            QueryBuilder::new("SELECT cursor, job_id, seq, attempt, at, kind, data FROM events WHERE job_id = ");
        statement.push_bind(job).push(" AND seq > ").push_bind(*after);
        if let Some(before) = before {
            statement.push(" AND seq < ").push_bind(*before);
        }
        filter.push(&mut statement);
        statement.push(if before.is_some() { " ORDER BY seq DESC" } else { " ORDER BY seq" });
        statement.push(" LIMIT ").push_bind(i64::from(*limit) + 1);
        statement
    }
}

impl EventFilter {
    fn push(&self, statement: &mut QueryBuilder<Sqlite>) {
        push_names(statement, "kind", self.kinds.iter().map(|kind| kind.as_str()));
        if let Some(call) = &self.call {
            // The data of other kinds need not be read.
            push_names(statement, "kind", KINDS_OF_CALLS.iter().map(|kind| kind.as_str()));
            statement.push(" AND data ->> 'call_id' = ").push_bind(call.as_str().to_owned());
        }
        if self.failed {
            statement.push(FAILED);
            push_names(
                statement,
                "data ->> 'finish_reason' NOT",
                FinishReason::ALL.iter().map(|reason| reason.as_str()),
            );
            statement.push(")");
        }
    }
}

/// The kinds of events that belong to a tool call.
const KINDS_OF_CALLS: [EventKind; 3] = [EventKind::ToolUse, EventKind::Log, EventKind::ToolResult];
/// Events of failures: of the job, a limit, a tool call, a connection, or, as the statement continues, a model call.
const FAILED: &str = " AND (CASE kind WHEN 'state' THEN data ->> 'to' IN ('failed', 'stuck') WHEN 'limit' THEN TRUE \
     WHEN 'tool_result' THEN NOT data ->> 'success' WHEN 'egress' THEN data ->> 'decision' <> 'allowed' ELSE FALSE END \
     OR kind = 'llm_call'";

/// Adds that a column has one of these values, if there are any.
pub(super) fn push_names(
    statement: &mut QueryBuilder<Sqlite>,
    column: &'static str,
    names: impl ExactSizeIterator<Item = &'static str>,
) {
    if names.len() == 0 {
        return;
    }
    statement.push(" AND ").push(column).push(" IN (");
    let mut values = statement.separated(", ");
    for name in names {
        values.push_bind(name);
    }
    statement.push(")");
}

/// Where a page ends, besides its size, and what is cut.
#[derive(Clone, Copy)]
struct PageLimits {
    items: usize,
    max_text: Option<usize>,
}

impl EventPage {
    /// Reads rows up to the end of the page.
    async fn read(
        mut rows: impl Stream<Item = Result<Row<EventRow>, sqlx::Error>> + Unpin,
        inconsistent: &InconsistentRows,
        PageLimits { items: limit, max_text }: PageLimits,
    ) -> Result<Self, StoreError> {
        let (mut items, mut bytes, mut found) = (Vec::new(), 0, 0);
        while let Some(row) = rows.try_next().await? {
            if items.len() == limit || bytes >= PAGE_BYTES {
                return Ok(Self { items, more: true });
            }
            found += 1;
            let event = row.get().and_then(|row| {
                let event = match max_text {
                    Some(max_text) => row.into_event()?.with_texts_cut_to(max_text),
                    None => row.into_event()?,
                };
                bytes += event.bytes();
                Ok(event)
            });
            items.extend(inconsistent.skip(event)?);
        }
        // Some that were left out may have been in the place of the one more.
        Ok(Self { more: found > limit && !items.is_empty(), items })
    }
}

impl Store {
    /// The total size of a job's event data in bytes.
    pub async fn event_bytes(&self, job: JobId) -> Result<u64, StoreError> {
        let bytes: i64 =
            sqlx::query_scalar("SELECT COALESCE(SUM(octet_length(data)), 0) FROM events WHERE job_id = $1")
                .bind(job)
                .fetch_one(&self.read)
                .await?;
        Ok(count(bytes))
    }
}

/// The user messages that were sent to the job's model in order, without the job's prompt.
pub(super) async fn user_messages_sent(tx: &mut Connection, job: JobId) -> Result<Vec<String>, StoreError> {
    let messages: Vec<String> = sqlx::query_scalar(
        "SELECT data ->> 'content' FROM events WHERE job_id = $1 AND kind = 'message' AND data ->> 'role' = 'user' ORDER BY seq",
    )
    .bind(job)
    .fetch_all(tx)
    .await?;
    Ok(messages.into_iter().skip(1).collect())
}
