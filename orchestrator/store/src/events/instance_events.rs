//! Events of the whole instance in the order of one cursor: the events of jobs, and those of gates, threads and
//! notifications.
//!
//! A cursor is assigned by the transaction that writes its event, and transactions are written one after the other. So
//! a reader that sees a cursor sees every lower one that will ever exist, and can resume from it. A cursor of a
//! transaction that is rolled back is assigned again and was never seen.

use chrono::{DateTime, Utc};
use protocol::{
    EventSubject, GateId, InstanceEventData, InstanceEventKind, JobId, JobState, ReadinessState, RoutineId, RunId,
    ThreadId,
};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sqlx::{FromRow, QueryBuilder, Sqlite, SqliteConnection};
use uuid::Uuid;

use crate::{
    Store, StoreError, Topic,
    events::push_names,
    sqlite::{
        inconsistent_rows::{InconsistentRows, Row},
        rows::{RowRef, tagged_data},
        write_tx::{StatementBatch, StatementResult, WriteTx},
    },
};

/// Maximum number of cursors that one read goes through: a few milliseconds of work where most events are another
/// user's.
const MAX_SCANNED: i64 = 5_000;
/// Maximum size of a page in bytes, exceeded by at most one event. Each slow reader holds one page in memory.
const PAGE_BYTES: usize = 1024 * 1024;
/// Rows that one transaction of the retention sweep deletes, so that other writes do not wait long.
const ROWS_PER_BATCH: i64 = 5_000;
/// The user of events that concern all users. No user has an empty name.
const EACH_USER: &str = "";

/// Which events of the instance to read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InstanceEventFilter {
    /// Only events that concern this user.
    pub user: Option<String>,
    /// Only events of these kinds; all kinds if empty.
    pub kinds: Vec<InstanceEventKind>,
    /// Only events of this thread.
    pub thread: Option<ThreadId>,
    /// Besides these kinds, all events of this job.
    pub with_job: Option<JobId>,
    /// Besides these kinds, all events of this thread.
    pub with_thread: Option<ThreadId>,
}

/// Events of the instance in order, and how far they were read.
#[derive(Debug)]
pub struct InstanceEventPage {
    pub items: Vec<StoredInstanceEvent>,
    /// There are no other matching events up to this cursor.
    pub read_to: i64,
    /// The last cursor that was assigned.
    pub last: i64,
    /// The largest cursor that retention has deleted.
    pub trimmed: i64,
}

impl InstanceEventPage {
    /// Whether there are events that were not read.
    pub const fn has_more(&self) -> bool {
        self.read_to < self.last
    }
}

/// A stored event, serialized like `protocol::InstanceEvent`. Its data is passed on as stored.
#[derive(Debug, Clone, Serialize)]
pub struct StoredInstanceEvent {
    v: u8,
    pub cursor: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    seq: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    attempt: Option<u32>,
    at: DateTime<Utc>,
    pub kind: InstanceEventKind,
    pub user_id: String,
    #[serde(flatten)]
    subject: EventSubject,
    data: Box<RawValue>,
}

impl StoredInstanceEvent {
    /// Its data, as JSON.
    pub fn data(&self) -> &RawValue {
        &self.data
    }

    /// The job that this event ends, and the state in which it ends.
    pub fn ended_job(&self) -> Option<(JobId, JobState)> {
        #[derive(Deserialize)]
        struct Entered {
            to: JobState,
        }
        let is_state = self.kind == InstanceEventKind::State;
        let entered: Entered = serde_json::from_str(self.data.get()).ok().filter(|_| is_state)?;
        self.subject.job_id.filter(|_| entered.to.is_finished()).map(|job| (job, entered.to))
    }
}

/// Appends an event about an object of `user` and notifies subscribers after the commit.
pub(crate) async fn append(
    tx: &mut WriteTx,
    user: &str,
    at: DateTime<Utc>,
    data: &InstanceEventData,
) -> Result<i64, StoreError> {
    let subject = data.subject();
    let json = tagged_data(data, data.kind().as_str())?.ok_or_else(|| inconsistent("data"))?;
    let batch = StatementBatch::new(&[
        "UPDATE sqlite_sequence SET seq = seq + 1 WHERE name = 'events'",
        "INSERT INTO instance_events (cursor, user_id, kind, job_id, run_id, routine_id, thread_id, gate_id, at, data) \
         SELECT seq, $1, $2, $3, $4, $5, $6, $7, $8, $9 FROM sqlite_sequence WHERE name = 'events' RETURNING cursor",
    ])
    .bind(user.to_owned())
    .bind(data.kind().as_str())
    .bind(subject.job_id)
    .bind(subject.run_id)
    .bind(subject.routine_id)
    .bind(subject.thread_id)
    .bind(subject.gate_id)
    .bind(at)
    .bind(json);
    let results = tx.run(batch).await?;
    let written: Option<(i64,)> = results.get(1).map(StatementResult::decode_first).transpose()?.flatten();
    let (cursor,) = written.ok_or_else(|| inconsistent("seq"))?;
    tx.notify(if user == EACH_USER { Topic::EachUser } else { Topic::User(user.to_owned()) });
    Ok(cursor)
}

/// An event that is about to be appended.
pub(crate) struct NewInstanceEvent {
    /// The user that it concerns.
    pub(crate) user: String,
    pub(crate) data: InstanceEventData,
}

/// Like [`append`], for many events in one round trip.
pub(crate) async fn append_all(
    tx: &mut WriteTx,
    at: DateTime<Utc>,
    events: &[NewInstanceEvent],
) -> Result<(), StoreError> {
    if events.is_empty() {
        return Ok(());
    }
    let mut rows = Vec::with_capacity(events.len());
    for NewInstanceEvent { user, data } in events {
        let subject = data.subject();
        let json = tagged_data(data, data.kind().as_str())?.ok_or_else(|| inconsistent("data"))?;
        rows.push(serde_json::json!({
            "user": user, "kind": data.kind().as_str(), "data": json,
            "job": subject.job_id, "run": subject.run_id, "routine": subject.routine_id, "thread": subject.thread_id,
            "gate": subject.gate_id,
        }));
        tx.notify(Topic::User(user.clone()));
    }
    let batch = StatementBatch::new(&[
        "UPDATE sqlite_sequence SET seq = seq + $1 WHERE name = 'events'",
        "INSERT INTO instance_events (cursor, user_id, kind, job_id, run_id, routine_id, thread_id, gate_id, at, data) \
         SELECT seq - $1 + 1 + j.key, j.value->>'user', j.value->>'kind', unhex(j.value->>'job', '-'), unhex(j.value->>'run', '-'), \
         unhex(j.value->>'routine', '-'), unhex(j.value->>'thread', '-'), unhex(j.value->>'gate', '-'), $2, j.value->>'data' \
         FROM sqlite_sequence, json_each($3) AS j WHERE name = 'events'",
    ])
    .bind(i64::try_from(events.len()).unwrap_or(i64::MAX))
    .bind(at)
    .bind(crate::sqlite::rows::text(&rows)?);
    tx.run(batch).await.map(drop)
}

/// Deletes the events about a thread that its user deletes. Its readers are not told, unlike after a retention sweep.
pub(crate) async fn delete_of_thread(tx: &mut WriteTx, thread: ThreadId) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM instance_events WHERE thread_id = $1").bind(thread).execute(&mut tx.db).await?;
    Ok(())
}

/// Deletes the events about a thread up to a time; all of them without one. Returns how many. Their readers are told.
pub(crate) async fn trim_of_thread(
    tx: &mut WriteTx,
    thread: Uuid,
    until: Option<DateTime<Utc>>,
) -> Result<u64, StoreError> {
    let cursors: Vec<i64> = sqlx::query_scalar(
        "DELETE FROM instance_events WHERE thread_id = $1 AND ($2 IS NULL OR at <= $2) RETURNING cursor",
    )
    .bind(thread)
    .bind(until)
    .fetch_all(&mut tx.db)
    .await?;
    set_trimmed(tx, &cursors).await?;
    Ok(cursors.len() as u64)
}

/// Remembers the largest cursor that retention has deleted.
pub(crate) async fn set_trimmed(tx: &mut WriteTx, cursors: &[i64]) -> Result<(), StoreError> {
    if let Some(last) = cursors.iter().max() {
        let trimmed = sqlx::query("UPDATE trimmed_events SET cursor = MAX(cursor, $1)").bind(last);
        trimmed.execute(&mut tx.db).await?;
    }
    Ok(())
}

impl Store {
    /// Events after `after`, at most `limit` and as many as fit into a page. Looks at a bounded number of events, so a
    /// page may be empty although more follow: continue at [`InstanceEventPage::read_to`].
    pub async fn instance_events(
        &self,
        filter: &InstanceEventFilter,
        after: i64,
        limit: u32,
    ) -> Result<InstanceEventPage, StoreError> {
        let mut reader = self.read.acquire().await?;
        let page = read(reader.connection()?, &self.inconsistent, filter, (after, limit as usize)).await?;
        reader.release(None);
        Ok(page)
    }

    /// The last cursor that was assigned; 0 if there is none.
    pub async fn last_cursor(&self) -> Result<i64, StoreError> {
        Ok(sqlx::query_scalar("SELECT seq FROM sqlite_sequence WHERE name = 'events'").fetch_one(&self.read).await?)
    }

    /// The cursor of the first event after `after`, of any user; the next one to be assigned if there is none.
    pub async fn first_cursor_after(&self, after: i64) -> Result<i64, StoreError> {
        let mut reader = self.read.acquire().await?;
        let Span { first, .. } = Span::after(reader.connection()?, after).await?;
        reader.release(None);
        Ok(first)
    }

    /// Stores the event of a change of readiness, unless the last one has the same state. A server that was always ready
    /// has none.
    pub async fn announce_readiness(&self, state: &ReadinessState, now: DateTime<Utc>) -> Result<(), StoreError> {
        let state = state.clone();
        self.write(transaction!(|tx| {
            let last: Option<String> = sqlx::query_scalar(
                "SELECT data FROM instance_events WHERE user_id = '' AND kind = 'readiness' ORDER BY cursor DESC LIMIT 1",
            )
            .fetch_optional(&mut tx.db)
            .await?;
            let last: Option<ReadinessState> = last.and_then(|data| serde_json::from_str(&data).ok());
            let is_known = last.map_or(state.ready && state.model_ready, |last| last == state);
            if is_known {
                return Ok(());
            }
            append(tx, EACH_USER, now, &InstanceEventData::Readiness(state)).await.map(drop)
        }))
        .await
    }

    /// Deletes events of the instance before a time. Returns how many. Jobs' own events are deleted with their job's
    /// records.
    pub(crate) async fn trim_instance_events(&self, before: DateTime<Utc>) -> Result<u64, StoreError> {
        self.write(transaction!(|tx| {
            let cursors: Vec<i64> = sqlx::query_scalar(
                "DELETE FROM instance_events WHERE cursor IN \
                 (SELECT cursor FROM instance_events WHERE at < $1 ORDER BY at LIMIT $2) RETURNING cursor",
            )
            .bind(before)
            .bind(ROWS_PER_BATCH)
            .fetch_all(&mut tx.db)
            .await?;
            set_trimmed(tx, &cursors).await?;
            Ok(cursors.len() as u64)
        }))
        .await
    }
}

/// What there is to read: the first cursor after a position, and the last one.
#[derive(FromRow)]
struct Span {
    first: i64,
    last: i64,
}

impl Span {
    async fn after(db: &mut SqliteConnection, after: i64) -> Result<Self, StoreError> {
        let span = sqlx::query_as(
            "SELECT seq AS last, MIN(IFNULL((SELECT MIN(cursor) FROM events WHERE cursor > $1), seq + 1), \
             IFNULL((SELECT MIN(cursor) FROM instance_events WHERE cursor > $1), seq + 1)) AS first \
             FROM sqlite_sequence WHERE name = 'events'",
        );
        Ok(span.bind(after).fetch_one(db).await?)
    }
}

async fn read(
    db: &mut SqliteConnection,
    inconsistent: &InconsistentRows,
    filter: &InstanceEventFilter,
    (after, limit): (i64, usize),
) -> Result<InstanceEventPage, StoreError> {
    let Span { first, last } = Span::after(db, after).await?;
    // What `last` covers is committed, so later statements see all of it.
    let end = last.min(first.saturating_add(MAX_SCANNED - 1));
    let (mut items, mut bytes, mut read_to) = (Vec::new(), 0, end.max(after));
    let mut query = statement(filter, after, end, limit);
    let rows: Vec<CursorRow> = query.build_query_as().fetch_all(&mut *db).await?;
    let is_whole = rows.len() <= limit;
    let mut last_read = after;
    for CursorRow { cursor, event } in rows {
        if items.len() == limit || bytes >= PAGE_BYTES {
            read_to = last_read;
            break;
        }
        last_read = cursor;
        let event = inconsistent.skip(event.get().and_then(|row| row.into_event(cursor)))?;
        bytes += event.as_ref().map_or(0, |event| event.data.get().len());
        items.extend(event);
    }
    if !is_whole {
        // Those that were left out may have been the ones that the page ends with.
        read_to = last_read;
    }
    // Last, so that it includes all that was deleted before the events were read.
    let trimmed = sqlx::query_scalar("SELECT cursor FROM trimmed_events").fetch_one(db).await?;
    Ok(InstanceEventPage { items, read_to, last, trimmed })
}

/// The events that match, after one cursor and up to another. One more than `limit`, to know whether there are more.
fn statement(filter: &InstanceEventFilter, after: i64, end: i64, limit: usize) -> QueryBuilder<Sqlite> {
    let of_jobs: Vec<_> = filter.kinds.iter().copied().filter(|kind| kind.is_of_jobs()).collect();
    let others: Vec<_> = filter.kinds.iter().copied().filter(|kind| !kind.is_of_jobs()).collect();
    let all = filter.kinds.is_empty();
    // Among all kinds there are no others.
    let with_job = filter.with_job.filter(|_| !all).map(|job| ("+events.job_id", *job.as_uuid()));
    let with_thread = filter.with_thread.filter(|_| !all).map(|thread| ("+thread_id", *thread.as_uuid()));
    let mut query = QueryBuilder::new("");
    if filter.thread.is_none() && (all || !of_jobs.is_empty() || with_job.is_some()) {
        // CROSS JOIN keeps the order of the tables: the cursors' range is what bounds the work.
        query.push(
            "SELECT events.cursor, events.seq, events.attempt, events.at, events.kind, jobs.user_id, events.job_id, \
             NULL AS run_id, NULL AS routine_id, NULL AS thread_id, NULL AS gate_id, events.data FROM events CROSS JOIN jobs ON jobs.id = events.job_id",
        );
        query.push(" WHERE events.cursor > ").push_bind(after).push(" AND events.cursor <= ").push_bind(end);
        if let Some(user) = &filter.user {
            query.push(" AND jobs.user_id = ").push_bind(user.clone());
        }
        push_kinds(&mut query, "events.kind", &of_jobs, with_job);
    }
    let of_users = Range { after, end, user: filter.user.as_deref(), thread: filter.thread };
    if all || !others.is_empty() || with_thread.is_some() {
        of_users.push(&mut query, &others, with_thread);
    }
    // By themselves, so that the index of users gives both in order.
    let has_those_of_all = filter.thread.is_none() && (all || others.contains(&InstanceEventKind::Readiness));
    if filter.user.is_some() && has_those_of_all {
        Range { user: Some(EACH_USER), ..of_users }.push(&mut query, &others, None);
    }
    query.push(" ORDER BY cursor LIMIT ").push_bind(i64::try_from(limit).unwrap_or(i64::MAX).saturating_add(1));
    query
}

/// A range of `instance_events`.
struct Range<'a> {
    after: i64,
    end: i64,
    /// Only events that concern this user.
    user: Option<&'a str>,
    /// Only events of this thread.
    thread: Option<ThreadId>,
}

impl Range<'_> {
    /// Adds the events of the range that are of these kinds, or of an object.
    fn push(
        &self,
        query: &mut QueryBuilder<Sqlite>,
        kinds: &[InstanceEventKind],
        object: Option<(&'static str, Uuid)>,
    ) {
        if !query.sql().as_str().is_empty() {
            query.push(" UNION ALL ");
        }
        query.push(
            "SELECT cursor, NULL AS seq, NULL AS attempt, at, kind, user_id, job_id, run_id, routine_id, thread_id, gate_id, \
             data FROM instance_events",
        );
        query.push(" WHERE cursor > ").push_bind(self.after).push(" AND cursor <= ").push_bind(self.end);
        if let Some(user) = self.user {
            query.push(" AND user_id = ").push_bind(user.to_owned());
        }
        if let Some(thread) = self.thread {
            query.push(" AND thread_id = ").push_bind(thread);
        }
        push_kinds(query, "kind", kinds, object);
    }
}

/// Adds that an event is of these kinds, if there are any, or of an object, if there is one. The sign before a column keeps
/// its index out of the plan.
fn push_kinds(
    query: &mut QueryBuilder<Sqlite>,
    column: &'static str,
    kinds: &[InstanceEventKind],
    object: Option<(&'static str, Uuid)>,
) {
    let Some((name, id)) = object else {
        return push_names(query, column, kinds.iter().map(|kind| kind.as_str()));
    };
    query.push(" AND (").push(name).push(" = ").push_bind(id);
    for kind in kinds {
        query.push(" OR ").push(column).push(" = ").push_bind(kind.as_str());
    }
    query.push(")");
}

/// A row with its cursor, which is known even if the rest makes no sense.
#[derive(FromRow)]
struct CursorRow {
    cursor: i64,
    #[sqlx(flatten)]
    event: Row<EventRow>,
}

#[derive(FromRow)]
struct EventRow {
    seq: Option<i64>,
    attempt: Option<u32>,
    at: DateTime<Utc>,
    kind: String,
    user_id: String,
    job_id: Option<JobId>,
    run_id: Option<RunId>,
    routine_id: Option<RoutineId>,
    thread_id: Option<ThreadId>,
    gate_id: Option<GateId>,
    data: String,
}

impl EventRow {
    fn into_event(self, cursor: i64) -> Result<StoredInstanceEvent, StoreError> {
        let invalid =
            |column| StoreError::Inconsistent { table: "instance_events", column, id: format!("cursor {cursor}") };
        Ok(StoredInstanceEvent {
            v: 1,
            cursor,
            seq: self.seq,
            attempt: self.attempt,
            at: self.at,
            kind: InstanceEventKind::parse(&self.kind).ok_or_else(|| invalid("kind"))?,
            user_id: self.user_id,
            subject: EventSubject {
                job_id: self.job_id,
                run_id: self.run_id,
                routine_id: self.routine_id,
                thread_id: self.thread_id,
                gate_id: self.gate_id,
            },
            data: RawValue::from_string(self.data).map_err(|_| invalid("data"))?,
        })
    }
}

fn inconsistent(column: &'static str) -> StoreError {
    RowRef { table: "instance_events", id: Uuid::nil() }.invalid(column)
}

#[cfg(test)]
mod tests;
