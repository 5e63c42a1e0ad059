//! Workers' events: batches of several jobs are stored in one transaction with few statements.
//!
//! Ensures that each client sequence number is stored once and in order. Runs in the writer's transaction; never begins
//! or commits one.
//!
//! The first UPDATE assumes the usual case for all batches together: each is whole and continues its job's sequence. It
//! changes only such jobs; a batch that it did not change was repeated, has a gap or is of an attempt that is over, and
//! is decided by itself (`Part::unstored`). The UPDATE advances both numbers of a job, so its rows are numbered back
//! from `last_seq`. The last statement may commit the transaction (`run_last`); nothing may fail after it.
//! `events_are_stored_in_order_once_and_only_of_worker_kinds` (stories, `worker_api`) fails when a number is stored
//! twice or left out, `a_flood_of_batches_delays_a_write_by_one_group_and_a_bad_batch_fails_alone` when a batch affects
//! another.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use protocol::{AgentEvent, EventData, EventKind, JobId};
use sqlx::{FromRow, QueryBuilder, Sqlite};
use tokio::sync::oneshot;
use uuid::Uuid;

use super::{EventStamp, NewRow};
use crate::{
    Connection, Store, StoreError, events,
    sqlite::{
        rows::{column, text},
        write_tx::{StatementBatch, StatementResult, WriteTx},
    },
};
use base::failpoint;
use domain::job::activity_since;

/// Rows in one INSERT of calls, ten values each.
const CALLS_PER_STATEMENT: usize = 100;

/// The outcome of appending a worker's batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Appended {
    /// Everything up to this number is stored.
    Stored {
        /// The last `client_seq` that is stored.
        last_client_seq: u64,
        /// Bytes of event data that this batch has added.
        added_bytes: u64,
    },
    /// A number was left out; nothing of the batch is stored.
    Gap {
        /// The expected `client_seq`.
        expected: u64,
    },
    /// The attempt is over.
    Fenced,
}

/// One event of a worker's batch.
#[derive(Debug, Clone)]
pub struct BatchEvent {
    /// Its number within the attempt.
    pub client_seq: u64,
    /// What is stored, in order. With nothing the number is consumed.
    pub data: Vec<AgentEvent>,
}

/// Events of one attempt in order, serialized.
pub(crate) struct Batch {
    stamp: EventStamp,
    events: Vec<Prepared>,
    bytes: usize,
}

/// An event of a batch. It is serialized before the batch is queued, outside the writer's task.
struct Prepared {
    client_seq: u64,
    stored: Vec<SerializedEvent>,
}

/// An event that is stored, with its JSON text.
struct SerializedEvent {
    data: EventData,
    json: String,
}

/// A batch in the queue.
pub(crate) struct PendingBatch {
    pub(crate) batch: Batch,
    pub(crate) answer: oneshot::Sender<Result<Appended, StoreError>>,
}

impl PendingBatch {
    /// Answers the caller. A worker that has disconnected sends the batch again.
    pub(crate) fn finish(self, result: Result<Appended, StoreError>) {
        let _ = self.answer.send(result);
    }
}

impl Batch {
    fn prepare(stamp: EventStamp, events: Vec<BatchEvent>) -> Result<Self, StoreError> {
        let serialize = |event: AgentEvent| {
            let data = EventData::from(event);
            let json = events::data_json(&data, stamp.job)?;
            Ok::<_, StoreError>(SerializedEvent { data, json })
        };
        let prepare = |BatchEvent { client_seq, data }: BatchEvent| {
            Ok(Prepared { client_seq, stored: data.into_iter().map(serialize).collect::<Result<_, StoreError>>()? })
        };
        let events: Vec<Prepared> = events.into_iter().map(prepare).collect::<Result<_, StoreError>>()?;
        let bytes = events.iter().flat_map(|event| &event.stored).map(|stored| stored.json.len()).sum();
        Ok(Self { stamp, events, bytes })
    }

    pub(crate) const fn job(&self) -> JobId {
        self.stamp.job
    }

    /// The number of events.
    pub(crate) const fn events(&self) -> usize {
        self.events.len()
    }

    /// The size of the JSON in bytes.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Store {
    /// Stores a worker's batch: in order, each number once. Tool calls also get audit rows.
    pub async fn append_worker_events(
        &self,
        job: JobId,
        attempt: u32,
        now: DateTime<Utc>,
        events: Vec<BatchEvent>,
    ) -> Result<Appended, StoreError> {
        let batch = Batch::prepare(EventStamp { job, attempt, at: now }, events)?;
        self.writer.append(batch).await
    }
}

/// Appends batches of different jobs.
pub(crate) async fn append_all(tx: &mut WriteTx, batches: &[&Batch]) -> Result<Vec<Appended>, StoreError> {
    // First all batches together, assuming that each continues its job's sequence; then the others one by one.
    let consecutive: Vec<Option<Part<'_>>> = batches.iter().map(|batch| Part::of_consecutive(batch)).collect();
    let advanced = advance(tx, consecutive.iter().flatten().collect()).await?;
    let (mut appended, mut rows, mut parts) = (Vec::with_capacity(batches.len()), Vec::new(), Vec::new());
    for (batch, part) in batches.iter().zip(consecutive) {
        let (part, numbered) = match part.zip(advanced.get(batch.job().as_uuid()).cloned()) {
            Some(numbered) => numbered,
            // Partly or wholly stored already, or with a gap, or of an attempt that is over.
            None => match Part::unstored(&mut tx.db, batch).await? {
                Err(answer) => {
                    appended.push(answer);
                    continue;
                }
                Ok(part) => {
                    let mut advanced = advance(tx, vec![&part]).await?;
                    (part, advanced.remove(batch.job().as_uuid()).unwrap_or_default())
                }
            },
        };
        rows.extend(part.rows(numbered.last_seq));
        appended.push(Appended::Stored { last_client_seq: part.until, added_bytes: part.bytes() });
        tx.notify_job(batch.job(), &numbered.user_id);
        parts.push(part);
    }
    let mut statements = QueryBuilder::new("");
    events::push_rows(&mut statements, &rows);
    push_calls(&mut statements, &parts)?;
    if statements.sql().as_str().is_empty() {
        return Ok(appended);
    }
    failpoint::reach("events.before_commit");
    tx.run_last(StatementBatch::built(&mut statements)).await?;
    Ok(appended)
}

/// The part of a batch that is not stored yet, with consecutive numbers.
struct Part<'a> {
    stamp: EventStamp,
    /// The last number that is already stored.
    known: u64,
    /// The last number of this part.
    until: u64,
    events: Vec<&'a SerializedEvent>,
}

impl<'a> Part<'a> {
    /// The whole batch if its numbers are consecutive, which is the usual case.
    fn of_consecutive(batch: &'a Batch) -> Option<Self> {
        let first = batch.events.first()?.client_seq;
        let in_order = batch.events.iter().zip(first..).all(|(event, due)| event.client_seq == due);
        let events = batch.events.iter().flat_map(|event| &event.stored).collect();
        let known = first.checked_sub(1)?;
        let until = known + batch.events.len() as u64;
        Some(Self { stamp: batch.stamp, known, until, events }).filter(|_| in_order)
    }

    /// The part that is not stored yet, or the answer if there is none.
    async fn unstored(tx: &mut Connection, batch: &'a Batch) -> Result<Result<Self, Appended>, StoreError> {
        let known: Option<i64> = sqlx::query_scalar(
            "SELECT last_client_seq FROM jobs WHERE id = $1 AND attempt = $2 AND state IN ('in_progress', 'stuck')",
        )
        .bind(batch.job())
        .bind(i64::from(batch.stamp.attempt))
        .fetch_optional(tx)
        .await?;
        let Some(known) = known.and_then(|seq| u64::try_from(seq).ok()) else { return Ok(Err(Appended::Fenced)) };
        let mut part = Self { stamp: batch.stamp, known, until: known, events: Vec::with_capacity(batch.events.len()) };
        for event in batch.events.iter().filter(|event| event.client_seq > known) {
            let expected = part.until + 1;
            if event.client_seq != expected {
                return Ok(Err(Appended::Gap { expected }));
            }
            part.until = expected;
            part.events.extend(&event.stored);
        }
        let nothing = part.until == known;
        Ok(if nothing { Err(Appended::Stored { last_client_seq: known, added_bytes: 0 }) } else { Ok(part) })
    }

    /// The size of its JSON in bytes.
    fn bytes(&self) -> u64 {
        self.events.iter().map(|event| event.json.len() as u64).sum()
    }

    /// What the job does after it; see [`activity_since`].
    fn activity(&self) -> Option<String> {
        self.events.iter().rev().find_map(|event| activity_since(&event.data))
    }

    /// Its rows, numbered so that the last one is `last_seq`.
    fn rows(&self, last_seq: i64) -> impl Iterator<Item = NewRow<'a>> {
        let (stamp, first) = (self.stamp, last_seq - column(self.events.len() as u64) + 1);
        let events: Vec<&'a SerializedEvent> = self.events.clone();
        (first..).zip(events).map(move |(seq, event)| NewRow {
            stamp,
            seq,
            kind: event.data.kind(),
            data: event.json.as_str().into(),
        })
    }
}

/// A job whose events were numbered.
#[derive(Clone, Default, FromRow)]
struct Advanced {
    id: Uuid,
    last_seq: i64,
    user_id: String,
}

/// Assigns event numbers to all parts that continue their job's sequence. Returns each such job. Calls beyond the
/// job's limit are recorded as refused and are not counted.
async fn advance(tx: &mut WriteTx, parts: Vec<&Part<'_>>) -> Result<BTreeMap<Uuid, Advanced>, StoreError> {
    if parts.is_empty() {
        return Ok(BTreeMap::new());
    }
    let mut update =
        QueryBuilder::<Sqlite>::new("WITH batch (id, attempt, known, until, events, tool_calls, at, activity) AS (");
    update.push_values(parts, |mut row, part| {
        let EventStamp { job, attempt, at } = part.stamp;
        let tool_calls = part.events.iter().filter(|event| event.data.kind() == EventKind::ToolUse).count();
        row.push_bind(job)
            .push_bind(i64::from(attempt))
            .push_bind(column(part.known))
            .push_bind(column(part.until))
            .push_bind(column(part.events.len() as u64))
            .push_bind(column(tool_calls as u64))
            .push_bind(at)
            .push_bind(part.activity());
    });
    update.push(
        ") UPDATE jobs SET last_seq = jobs.last_seq + batch.events, last_client_seq = batch.until, last_activity_at = batch.at, \
         tool_calls = MIN(jobs.tool_calls + batch.tool_calls, json_extract(jobs.limits, '$.max_tool_calls')), \
         activity = CASE WHEN batch.activity IS NULL THEN jobs.activity ELSE NULLIF(batch.activity, '') END \
         FROM batch WHERE jobs.id = batch.id \
         AND jobs.attempt = batch.attempt AND jobs.last_client_seq = batch.known AND jobs.state IN ('in_progress', 'stuck') \
         RETURNING jobs.id, jobs.last_seq, jobs.user_id",
    );
    let results = tx.run(StatementBatch::built(&mut update)).await?;
    let advanced: Vec<Advanced> = results.first().map(StatementResult::decode).transpose()?.unwrap_or_default();
    Ok(advanced.into_iter().map(|job| (job.id, job)).collect())
}

/// The key of a tool call: job, attempt and call id.
type ToolCallKey<'a> = (Uuid, u32, &'a str);

/// Adds the statements that write the records of tool calls, from the worker's two events about each.
fn push_calls(statements: &mut QueryBuilder<Sqlite>, parts: &[Part<'_>]) -> Result<(), StoreError> {
    // By key, because a statement may write a row only once; the last event wins. A worker never overwrites the record
    // of a call that the orchestrator executed.
    let (mut made, mut done) = (BTreeMap::<ToolCallKey<'_>, _>::new(), BTreeMap::<ToolCallKey<'_>, _>::new());
    for Part { stamp: EventStamp { job, attempt, at }, events, .. } in parts {
        for event in events {
            match &event.data {
                EventData::ToolUse { call_id, tool, input, reasoning } => {
                    let call = (at, tool, text(input)?, reasoning.as_deref());
                    made.insert((*job.as_uuid(), *attempt, call_id.as_str()), call);
                }
                EventData::ToolResult { call_id, tool, success, output, duration_ms, .. } => {
                    done.insert(
                        (*job.as_uuid(), *attempt, call_id.as_str()),
                        (at, tool, *success, output, *duration_ms),
                    );
                }
                _ => {}
            }
        }
    }
    let (made, done): (Vec<_>, Vec<_>) = (made.into_iter().collect(), done.into_iter().collect());
    for chunk in made.chunks(CALLS_PER_STATEMENT) {
        statements.push("; INSERT INTO tool_calls (work_id, attempt, call_id, at, tool, input, reasoning) ");
        statements.push_values(chunk, |mut row, ((job, attempt, call), (at, tool, input, reasoning))| {
            row.push_bind(*job).push_bind(i64::from(*attempt)).push_bind(*call);
            row.push_bind(**at).push_bind(tool.as_str()).push_bind(input.as_str()).push_bind(*reasoning);
        });
        // The reason of a call that the orchestrator executed is only in the event.
        statements.push(
            " ON CONFLICT (work_id, attempt, call_id) DO UPDATE SET reasoning = IFNULL(reasoning, excluded.reasoning), \
             input = iif(reply IS NULL AND request_digest IS NULL, excluded.input, input) \
             WHERE (reply IS NULL AND request_digest IS NULL) OR (reasoning IS NULL AND excluded.reasoning IS NOT NULL)",
        );
    }
    for chunk in done.chunks(CALLS_PER_STATEMENT) {
        statements.push(
            "; INSERT INTO tool_calls (work_id, attempt, call_id, at, tool, input, success, output, duration_ms) ",
        );
        statements.push_values(chunk, |mut row, ((job, attempt, call), (at, tool, success, output, duration_ms))| {
            row.push_bind(*job).push_bind(i64::from(*attempt)).push_bind(*call);
            row.push_bind(**at).push_bind(tool.as_str()).push_bind("null");
            row.push_bind(*success).push_bind(output.as_str()).push_bind(column(*duration_ms));
        });
        statements.push(
            " ON CONFLICT (work_id, attempt, call_id) DO UPDATE \
             SET success = excluded.success, output = excluded.output, duration_ms = excluded.duration_ms \
             WHERE tool_calls.reply IS NULL AND tool_calls.request_digest IS NULL",
        );
    }
    Ok(())
}
