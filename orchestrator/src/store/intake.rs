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
    events: Vec<WorkerEvent>,
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
        events: Vec<WorkerEvent>,
    ) -> Result<Appended, StoreError> {
        let (answer, mut answered) = oneshot::channel();
        self.intake.push(Waiting { batch: Batch { job, attempt, at: now, events }, answer });
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
    let due = advance(&mut tx, batches).await?;
    let (mut appended, mut rows, mut fresh) = (Vec::with_capacity(batches.len()), Vec::new(), Fresh::new());
    for batch in batches {
        let of = (batch.job, batch.attempt, batch.at);
        match due.get(batch.job.as_uuid()) {
            Some(last_seq) => {
                let events: Vec<&EventData> = batch.events.iter().map(|event| &event.data).collect();
                events::number(&mut rows, of, *last_seq, &events)?;
                fresh.push((of, events));
                appended.push(Appended::Stored { last_client_seq: batch.last().unwrap_or(0) });
            }
            // Sent before in part or whole, or with a gap, or too late.
            None => appended.push(one_by_one(&mut tx, batch, &mut rows, &mut fresh).await?),
        }
    }
    events::insert_rows(&mut tx, &rows).await?;
    record_calls(&mut tx, &fresh).await?;
    failpoint::reach("events.before_commit");
    tx.commit().await?;
    failpoint::reach("events.after_commit");
    Ok(appended)
}

/// Whose, in which attempt, when.
type Of = (JobId, u32, DateTime<Utc>);
/// What of each batch is new.
type Fresh<'a> = Vec<(Of, Vec<&'a EventData>)>;

impl Batch {
    /// The first number, when all follow each other from it.
    fn first(&self) -> Option<u64> {
        let first = self.events.first()?.client_seq;
        self.events.iter().zip(first..).all(|(event, due)| event.client_seq == due).then_some(first)
    }

    fn last(&self) -> Option<u64> {
        self.events.last().map(|event| event.client_seq)
    }

    fn tool_calls(&self) -> usize {
        self.events.iter().filter(|event| event.data.kind() == EventKind::ToolUse).count()
    }
}

/// Gives out numbers to all batches that are exactly what is due: each such job's last one.
async fn advance(tx: &mut Connection, batches: &[Batch]) -> Result<BTreeMap<Uuid, i64>, StoreError> {
    let due: Vec<(&Batch, u64)> =
        batches.iter().filter_map(|batch| Some((batch, batch.first()?.checked_sub(1)?))).collect();
    if due.is_empty() {
        return Ok(BTreeMap::new());
    }
    let mut update = QueryBuilder::<Sqlite>::new("WITH batch (id, attempt, known, until, events, tool_calls, at) AS (");
    update.push_values(due, |mut row, (batch, known)| {
        row.push_bind(*batch.job.as_uuid())
            .push_bind(i64::from(batch.attempt))
            .push_bind(column(known))
            .push_bind(column(batch.last().unwrap_or(known)))
            .push_bind(column(batch.events.len() as u64))
            .push_bind(column(batch.tool_calls() as u64))
            .push_bind(batch.at);
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

/// Finds out what of a batch is new, and gives out numbers to that.
async fn one_by_one<'a>(
    tx: &mut Connection,
    batch: &'a Batch,
    rows: &mut Vec<events::NewRow>,
    fresh: &mut Fresh<'a>,
) -> Result<Appended, StoreError> {
    let known: Option<i64> = sqlx::query_scalar(
        "SELECT last_client_seq FROM jobs WHERE id = $1 AND attempt = $2 AND state IN ('in_progress', 'stuck')",
    )
    .bind(*batch.job.as_uuid())
    .bind(i64::from(batch.attempt))
    .fetch_optional(&mut *tx)
    .await?;
    let Some(known) = known.and_then(|seq| u64::try_from(seq).ok()) else { return Ok(Appended::Fenced) };
    let mut last = known;
    let mut new = Vec::with_capacity(batch.events.len());
    for event in batch.events.iter().filter(|event| event.client_seq > known) {
        if event.client_seq != last + 1 {
            return Ok(Appended::Gap { expected: last + 1 });
        }
        last = event.client_seq;
        new.push(&event.data);
    }
    if !new.is_empty() {
        let tool_calls = new.iter().filter(|event| event.kind() == EventKind::ToolUse).count();
        let last_seq: i64 = sqlx::query_scalar(
            "UPDATE jobs SET last_seq = last_seq + $1, last_client_seq = $2, last_activity_at = $3, \
             tool_calls = tool_calls + $4 WHERE id = $5 RETURNING last_seq",
        )
        .bind(column(new.len() as u64))
        .bind(column(last))
        .bind(batch.at)
        .bind(column(tool_calls as u64))
        .bind(*batch.job.as_uuid())
        .fetch_one(&mut *tx)
        .await?;
        let of = (batch.job, batch.attempt, batch.at);
        events::number(rows, of, last_seq, &new)?;
        fresh.push((of, new));
    }
    Ok(Appended::Stored { last_client_seq: last })
}

/// A tool call's name: job, attempt, its id.
type CallName<'a> = (Uuid, u32, &'a str);

/// The audit rows of tool calls, from the worker's two events about each.
async fn record_calls(tx: &mut Connection, fresh: &Fresh<'_>) -> Result<(), StoreError> {
    // By name, since a statement may write a row once; what was said last counts, as it would one by one. Of a call that the
    // orchestrator made itself its own record stands, whatever the worker says.
    let (mut made, mut done) = (BTreeMap::<CallName<'_>, _>::new(), BTreeMap::<CallName<'_>, _>::new());
    for ((job, attempt, at), events) in fresh {
        for event in events {
            match event {
                EventData::ToolUse { call_id, tool, input, .. } => {
                    made.insert((*job.as_uuid(), *attempt, call_id), (at, tool, text(input)?));
                }
                EventData::ToolResult { call_id, tool, success, output, duration_ms, .. } => {
                    done.insert((*job.as_uuid(), *attempt, call_id), (at, tool, *success, output, *duration_ms));
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
