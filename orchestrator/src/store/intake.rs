//! Workers' events on their way in: batches that wait for the writer at the same moment are written together, in one
//! transaction.
//!
//! Owns that each number is stored once and in order. Whoever gets the writer first writes for all who wait, so a crowd costs
//! one commit, and a single worker waits for nobody.

use std::{
    collections::{BTreeMap, HashSet},
    mem,
    sync::{Arc, Mutex, PoisonError},
};

use chrono::{DateTime, Utc};
use protocol::{EventData, EventKind, JobId, WorkerEvent};
use sqlx::{Connection as _, QueryBuilder, Sqlite, pool::PoolConnection};
use tokio::sync::oneshot;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use super::{
    Connection, Store, StoreError, events,
    rows::{column, text},
};
use crate::failpoint;

/// Written in one transaction; the rest goes into the next one.
const EVENTS_TOGETHER: usize = 2_000;
/// Rows in one INSERT of calls, ten values each.
const CALLS_A_STATEMENT: usize = 100;

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

/// What waits for the writer.
#[derive(Default)]
pub(super) struct Intake {
    waiting: Mutex<Vec<Waiting>>,
    tasks: TaskTracker,
}

struct Waiting {
    batch: Batch,
    answer: oneshot::Sender<Result<Appended, StoreError>>,
}

/// Some events of one attempt, in order.
struct Batch {
    job: JobId,
    attempt: u32,
    at: DateTime<Utc>,
    events: Vec<NumberedEvent>,
    keeps: fn(EventKind) -> bool,
}

/// A worker's event as it is stored.
struct NumberedEvent {
    client_seq: u64,
    data: EventData,
}

impl From<WorkerEvent> for NumberedEvent {
    fn from(event: WorkerEvent) -> Self {
        Self { client_seq: event.client_seq, data: event.data.into() }
    }
}

/// Events as a worker sent them.
#[derive(Debug)]
pub struct WorkerBatch {
    /// In order.
    pub events: Vec<WorkerEvent>,
    /// Which kinds are stored; the numbers of the others are taken as sent all the same.
    pub keeps: fn(EventKind) -> bool,
}

impl Intake {
    /// Returns once everything that was being written is.
    pub(super) async fn settled(&self) {
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn push(&self, waiting: Waiting) {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(waiting);
    }

    /// As much as one transaction takes, each job once.
    fn take(&self) -> Vec<Waiting> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut jobs, mut events) = (HashSet::new(), 0);
        let (taken, left) = mem::take(&mut *waiting).into_iter().partition(|one| {
            let fits = events == 0 || events + one.batch.events.len() <= EVENTS_TOGETHER;
            let fits = fits && jobs.insert(one.batch.job);
            events += if fits { one.batch.events.len() } else { 0 };
            fits
        });
        *waiting = left;
        taken
    }
}

impl Store {
    /// A worker's batch: in order, each number once, tool calls also as audit rows.
    pub async fn append_worker_events(
        &self,
        job: JobId,
        attempt: u32,
        now: DateTime<Utc>,
        batch: WorkerBatch,
    ) -> Result<Appended, StoreError> {
        let (answer, mut answered) = oneshot::channel();
        let WorkerBatch { events, keeps } = batch;
        let events = events.into_iter().map(NumberedEvent::from).collect();
        self.intake.push(Waiting { batch: Batch { job, attempt, at: now, events, keeps }, answer });
        loop {
            let writer = tokio::select! {
                biased;
                answer = &mut answered => return answer.unwrap_or(Err(StoreError::Database(sqlx::Error::WorkerCrashed))),
                writer = self.write.acquire() => writer?,
            };
            let together = self.intake.take();
            if !together.is_empty() {
                // On its own: others wait for it, and the worker that asked first may hang up.
                let store = self.clone();
                self.intake.tasks.spawn(async move { store.write_together(writer, together).await });
            }
        }
    }

    async fn write_together(&self, mut writer: PoolConnection<Sqlite>, together: Vec<Waiting>) {
        let (batches, answers): (Vec<_>, Vec<_>) = together.into_iter().map(|one| (one.batch, one.answer)).unzip();
        let written = append_all(&mut writer, &batches).await;
        drop(writer);
        let results: Vec<_> = match written {
            Ok(appended) => appended.into_iter().map(Ok).collect(),
            Err(error) => {
                let error = Arc::new(error);
                batches.iter().map(|_| Err(StoreError::Together(Arc::clone(&error)))).collect()
            }
        };
        for ((batch, answer), result) in batches.iter().zip(answers).zip(results) {
            if matches!(result, Ok(Appended::Stored { .. })) {
                self.feed.ring(batch.job);
            }
            // A worker that has hung up sends it again.
            let _ = answer.send(result);
        }
    }
}

async fn append_all(writer: &mut Connection, batches: &[Batch]) -> Result<Vec<Appended>, StoreError> {
    let mut tx = writer.begin_with("BEGIN IMMEDIATE").await?;
    let guessed: Vec<Option<Part<'_>>> = batches.iter().map(Part::all_of).collect();
    let given = advance(&mut tx, guessed.iter().flatten().collect()).await?;
    let (mut appended, mut rows, mut parts) = (Vec::with_capacity(batches.len()), Vec::new(), Vec::new());
    for (batch, guessed) in batches.iter().zip(guessed) {
        let due = guessed.zip(given.get(batch.job.as_uuid()).copied());
        let (part, last_seq) = match due {
            Some(due) => due,
            // Sent before in part or whole, or with a gap, or too late.
            None => match Part::new_of(&mut tx, batch).await? {
                Err(answer) => {
                    appended.push(answer);
                    continue;
                }
                Ok(part) => {
                    let given = advance(&mut tx, vec![&part]).await?;
                    (part, given.get(batch.job.as_uuid()).copied().unwrap_or_default())
                }
            },
        };
        events::number(&mut rows, part.of, last_seq, &part.events)?;
        appended.push(Appended::Stored { last_client_seq: part.until });
        parts.push(part);
    }
    events::insert_rows(&mut tx, &rows).await?;
    record_calls(&mut tx, &parts).await?;
    failpoint::reach("events.before_commit");
    tx.commit().await?;
    failpoint::reach("events.after_commit");
    Ok(appended)
}

/// What of a batch is stored: each number the one after the last.
struct Part<'a> {
    /// Whose, in which attempt, when.
    of: (JobId, u32, DateTime<Utc>),
    /// The number before the first.
    known: u64,
    /// The last number.
    until: u64,
    /// Those that are stored.
    events: Vec<&'a EventData>,
}

impl<'a> Part<'a> {
    /// All of it, when its numbers follow each other: what a worker sends that nothing has happened to.
    fn all_of(batch: &'a Batch) -> Option<Self> {
        let first = batch.events.first()?.client_seq;
        let in_order = batch.events.iter().zip(first..).all(|(event, due)| event.client_seq == due);
        let events = batch.events.iter().map(|event| &event.data).filter(|data| (batch.keeps)(data.kind())).collect();
        let known = first.checked_sub(1)?;
        let until = known + batch.events.len() as u64;
        Some(Self { of: batch.of(), known, until, events }).filter(|_| in_order)
    }

    /// What is not stored yet; the answer, when there is nothing to store.
    async fn new_of(tx: &mut Connection, batch: &'a Batch) -> Result<Result<Self, Appended>, StoreError> {
        let known: Option<i64> = sqlx::query_scalar(
            "SELECT last_client_seq FROM jobs WHERE id = $1 AND attempt = $2 AND state IN ('in_progress', 'stuck')",
        )
        .bind(*batch.job.as_uuid())
        .bind(i64::from(batch.attempt))
        .fetch_optional(tx)
        .await?;
        let Some(known) = known.and_then(|seq| u64::try_from(seq).ok()) else { return Ok(Err(Appended::Fenced)) };
        let mut part = Self { of: batch.of(), known, until: known, events: Vec::with_capacity(batch.events.len()) };
        for event in batch.events.iter().filter(|event| event.client_seq > known) {
            let expected = part.until + 1;
            if event.client_seq != expected {
                return Ok(Err(Appended::Gap { expected }));
            }
            part.until = expected;
            if (batch.keeps)(event.data.kind()) {
                part.events.push(&event.data);
            }
        }
        let nothing = part.until == known;
        Ok(if nothing { Err(Appended::Stored { last_client_seq: known }) } else { Ok(part) })
    }
}

impl Batch {
    const fn of(&self) -> (JobId, u32, DateTime<Utc>) {
        (self.job, self.attempt, self.at)
    }
}

/// Gives out numbers to all parts that begin where their job is: each such job's last one.
async fn advance(tx: &mut Connection, parts: Vec<&Part<'_>>) -> Result<BTreeMap<Uuid, i64>, StoreError> {
    if parts.is_empty() {
        return Ok(BTreeMap::new());
    }
    let mut update = QueryBuilder::<Sqlite>::new("WITH batch (id, attempt, known, until, events, tool_calls, at) AS (");
    update.push_values(parts, |mut row, part| {
        let (job, attempt, at) = part.of;
        let tool_calls = part.events.iter().filter(|event| event.kind() == EventKind::ToolUse).count();
        row.push_bind(*job.as_uuid())
            .push_bind(i64::from(attempt))
            .push_bind(column(part.known))
            .push_bind(column(part.until))
            .push_bind(column(part.events.len() as u64))
            .push_bind(column(tool_calls as u64))
            .push_bind(at);
    });
    update.push(
        ") UPDATE jobs SET last_seq = jobs.last_seq + batch.events, last_client_seq = batch.until, last_activity_at = batch.at, \
         tool_calls = jobs.tool_calls + batch.tool_calls FROM batch WHERE jobs.id = batch.id \
         AND jobs.attempt = batch.attempt AND jobs.last_client_seq = batch.known AND jobs.state IN ('in_progress', 'stuck') \
         RETURNING jobs.id, jobs.last_seq",
    );
    let given: Vec<(Uuid, i64)> = update.build_query_as().fetch_all(tx).await?;
    Ok(given.into_iter().collect())
}

/// A tool call's name: job, attempt, its id.
type CallName<'a> = (Uuid, u32, &'a str);

/// The audit rows of tool calls, from the worker's two events about each.
async fn record_calls(tx: &mut Connection, parts: &[Part<'_>]) -> Result<(), StoreError> {
    // By name, since a statement may write a row once; what was said last counts, as it would one by one. Of a call that the
    // orchestrator made itself its own record stands, whatever the worker says.
    let (mut made, mut done) = (BTreeMap::<CallName<'_>, _>::new(), BTreeMap::<CallName<'_>, _>::new());
    for Part { of: (job, attempt, at), events, .. } in parts {
        for event in events {
            match event {
                EventData::ToolUse { call_id, tool, input, .. } => {
                    made.insert((*job.as_uuid(), *attempt, call_id.as_str()), (at, tool, text(input)?));
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
    for some in made.chunks(CALLS_A_STATEMENT) {
        let mut insert =
            QueryBuilder::<Sqlite>::new("INSERT INTO job_actions (job_id, attempt, call_id, at, tool, input) ");
        insert.push_values(some, |mut row, ((job, attempt, call), (at, tool, input))| {
            row.push_bind(*job).push_bind(i64::from(*attempt)).push_bind(*call);
            row.push_bind(**at).push_bind(tool.as_str()).push_bind(input.as_str());
        });
        insert.push(" ON CONFLICT (job_id, attempt, call_id) DO UPDATE SET input = excluded.input WHERE job_actions.reply IS NULL");
        insert.build().execute(&mut *tx).await?;
    }
    for some in done.chunks(CALLS_A_STATEMENT) {
        let mut insert = QueryBuilder::<Sqlite>::new(
            "INSERT INTO job_actions (job_id, attempt, call_id, at, tool, input, success, output, duration_ms) ",
        );
        insert.push_values(some, |mut row, ((job, attempt, call), (at, tool, success, output, duration_ms))| {
            row.push_bind(*job).push_bind(i64::from(*attempt)).push_bind(*call);
            row.push_bind(**at).push_bind(tool.as_str()).push_bind("null");
            row.push_bind(*success).push_bind(output.as_str()).push_bind(column(*duration_ms));
        });
        insert.push(
            " ON CONFLICT (job_id, attempt, call_id) DO UPDATE \
             SET success = excluded.success, output = excluded.output, duration_ms = excluded.duration_ms \
             WHERE job_actions.reply IS NULL",
        );
        insert.build().execute(&mut *tx).await?;
    }
    Ok(())
}
