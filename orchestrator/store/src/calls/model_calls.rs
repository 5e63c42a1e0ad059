//! Model calls with their cost: what they are, opened before a provider is asked, closed before the answer is used.
//!
//! Those of jobs, chat threads and runs are in one table. They draw on the budget of their user's day, and those of a
//! job on its budget and those above it. `open` and `close` own the rows, `list` and `around` read them for the API. Never asks a
//! provider.

mod abandoned;
mod around;
mod close;
mod list;
mod open;

use chrono::{DateTime, Utc};
use protocol::{Completion, RunId, ThreadId, TokenUsage};

pub use around::CallWithEvents;

use super::budget;
use crate::{
    CallKey, Connection, Reserved, Store, StoreError,
    sqlite::{
        data_migrations::DataMigration,
        rows::{RowRef, column, count, dollars},
    },
};
use domain::{
    budget::{CallEstimate, DayLimits, ExhaustedBudget},
    model_call::ErrorKind,
};

/// Moves the calls of threads and runs, which earlier versions stored by themselves.
pub(crate) const OF_THREADS: DataMigration = DataMigration {
    name: "model_calls_of_threads",
    table: "thread_calls",
    step: &[
        "INSERT INTO model_calls (work_id, kind, attempt, call_id, user_id, at, provider, model, input_tokens, output_tokens, \
         cache_read_tokens, cache_write_tokens, cost_micro_usd, duration_ms, request_digest, tries, is_open, \
         estimated_tokens, estimated_micro_usd, reserved_tokens, reserved_micro_usd, reserved_day, finish_reason, \
         error, answer) SELECT thread_id, CASE WHEN thread_id IN (SELECT id FROM routine_runs) THEN 'run' ELSE 'thread' END, \
         turn, call_id, user_id, at, provider, model, input_tokens, output_tokens, cache_read_tokens, \
         cache_write_tokens, cost_micro_usd, duration_ms, request_digest, tries, is_open, estimated_tokens, \
         estimated_micro_usd, reserved_tokens, reserved_micro_usd, reserved_day, finish_reason, error, answer \
         FROM thread_calls WHERE rowid > ?1 AND rowid <= ?2 ORDER BY rowid",
        "DELETE FROM thread_calls WHERE rowid > ?1 AND rowid <= ?2",
    ],
    finish: &["DROP TABLE thread_calls"],
};

/// A model call that is about to be made.
#[derive(Debug, Clone, PartialEq)]
pub struct NewCall {
    pub key: CallKey,
    /// Digest of the request's bytes.
    pub request_digest: String,
    pub at: DateTime<Utc>,
    /// The provider that is asked first.
    pub provider: String,
    pub model: String,
    pub user: String,
    /// Its worst-case cost.
    pub estimate: CallEstimate,
    /// Answers that its job, turn or run may get in all.
    pub max_answers: u64,
    /// Calls with any outcome that it may make.
    pub max_calls: u64,
    /// Each user's budget for a day; none where no budget at all applies.
    pub budget: Option<DayLimits>,
}

/// The outcome of opening a call.
#[derive(Debug, Clone, PartialEq)]
pub enum OpenedCall {
    Open {
        reserved: Reserved,
        /// The calls made before it.
        made: CallsMade,
    },
    /// It was made before.
    Known(KnownCall),
    /// No more calls may be made.
    LimitReached(CallsMade),
    /// A budget has no room for it.
    BudgetExceeded(ExhaustedBudget),
    /// Its attempt or turn is over.
    NotLive,
}

/// A model call that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct CallRow {
    pub key: CallKey,
    pub at: DateTime<Utc>,
    /// The provider that answered, or was asked last.
    pub provider: String,
    pub model: String,
    /// Tokens, also of an answer that broke off.
    pub usage: TokenUsage,
    /// Cost in micro-dollars; none when the price is not known.
    pub cost_micro_usd: Option<i64>,
    /// How long it took.
    pub duration_ms: u64,
    pub reserved: Reserved,
    pub answer: Result<Completion, CallFailure>,
}

/// Why a model call has no answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallFailure {
    pub kind: ErrorKind,
    /// The kind and a human-readable message.
    pub message: String,
}

/// How many model calls a job, a turn or an attempt of a run has made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CallsMade {
    pub answered: u64,
    pub all: u64,
}

/// A model call that was made before.
#[derive(Debug, Clone, PartialEq)]
pub struct KnownCall {
    /// Digest of the request's bytes; none when the row is from before digests were stored.
    pub request_digest: Option<String>,
    pub answer: Option<Completion>,
}

impl KnownCall {
    fn new(key: &CallKey, request_digest: Option<String>, answer: Option<String>) -> Result<Self, StoreError> {
        let answer = answer.map(|json| key.row_ref("model_calls").json("answer", &json)).transpose()?;
        Ok(Self { request_digest, answer })
    }

    /// Whether its request was this one; true of calls from before digests were stored.
    pub fn is_same_request(&self, digest: &str) -> bool {
        self.request_digest.as_deref().is_none_or(|asked| asked == digest)
    }
}

/// What a run has used and was not charged for yet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RunUsage {
    /// Tokens, input and output.
    pub tokens: u64,
    /// Cost; `None` when a call had no price.
    pub cost_usd: Option<f64>,
}

impl Store {
    /// Opens a model call: counts it against the quota of its execution, reserves its worst case, and writes its row.
    pub async fn open_model_call(&self, call: &NewCall) -> Result<OpenedCall, StoreError> {
        let call = call.clone();
        self.write_batched(transaction!(|tx| open::open(tx, &call).await)).await
    }

    /// Takes an open call back: no provider was asked, and it counts to nothing.
    pub async fn release_model_call(&self, key: &CallKey, user: &str, reserved: &Reserved) -> Result<(), StoreError> {
        let (key, user, reserved) = (key.clone(), user.to_owned(), reserved.clone());
        self.write(transaction!(|tx| {
            if open::delete_open(&mut tx.db, &key).await? {
                budget::release(&mut tx.db, *key.execution.work.as_uuid(), &user, &reserved).await?;
            }
            Ok(())
        }))
        .await
    }

    /// A model call that was made before, by its name.
    pub async fn model_call(&self, key: &CallKey) -> Result<Option<KnownCall>, StoreError> {
        let row: Option<(Option<String>, Option<String>)> = sqlx::query_as(
            "SELECT request_digest, answer FROM model_calls WHERE work_id = $1 AND attempt = $2 AND call_id = $3",
        )
        .bind(*key.execution.work.as_uuid())
        .bind(i64::from(key.execution.attempt))
        .bind(&key.call_id.0)
        .fetch_optional(&self.read)
        .await?;
        row.map(|(request_digest, answer)| KnownCall::new(key, request_digest, answer)).transpose()
    }

    /// Closes a model call: its row, the usage and budgets of its job and its user's day, and the job's event while the
    /// attempt lives. A call that is closed already stays as it is. Returns a new warning for the agent about its
    /// budget, if there is one.
    pub async fn close_model_call(&self, call: &CallRow) -> Result<Option<String>, StoreError> {
        let call = call.clone();
        self.write_batched(transaction!(|tx| close::close(tx, call).await)).await
    }

    /// Closes the calls that an earlier process left open: each is charged its prompt estimate and shown as aborted.
    /// Nothing stays reserved. A call whose row or job is inconsistent is logged and stays open. Returns how many were
    /// closed.
    pub async fn close_abandoned_calls(&self, now: DateTime<Utc>) -> Result<usize, StoreError> {
        let mut closed = 0;
        for row in abandoned::abandoned(&self.read, now).await? {
            // A transaction for each call: one that cannot be closed leaves nothing behind and does not affect the
            // others.
            let result = match row {
                Ok(call) => self.close_model_call(&call).await.map(drop),
                Err(error) => Err(error),
            };
            match result {
                Ok(()) => closed += 1,
                Err(error) if error.concerns_one_row() => {
                    tracing::error!(
                        error = &error as &dyn std::error::Error,
                        "an abandoned model call cannot be closed"
                    );
                }
                Err(error) => return Err(error),
            }
        }
        self.write(transaction!(|tx| budget::clear_reservations(&mut tx.db).await)).await?;
        Ok(closed)
    }

    /// The recorded answers of a turn, in order: what the model said, with the opaque signatures of its calls.
    pub async fn chat_turn_answers(&self, thread: ThreadId) -> Result<Vec<Completion>, StoreError> {
        let rows: Vec<String> = sqlx::query_scalar(
            "SELECT answer FROM model_calls WHERE work_id = $1 AND kind <> 'job' AND answer IS NOT NULL ORDER BY rowid",
        )
        .bind(thread)
        .fetch_all(&self.read)
        .await?;
        let row_ref = RowRef { table: "model_calls", id: *thread.as_uuid() };
        rows.iter().map(|answer| row_ref.json("answer", answer)).collect()
    }

    /// The usage of a run, read outside of a transaction.
    pub async fn run_usage(&self, run: RunId) -> Result<RunUsage, StoreError> {
        run_usage(&self.read, run).await
    }
}

/// What the model calls of a run have used since an end of an attempt was stored. An attempt that waited for a provider
/// starts again with its number, so the sum is of all calls, less what the run was charged for. A call that is still
/// open counts with the estimate that it is charged if it is aborted. The clock has no part in it.
pub(crate) async fn run_usage<'c>(
    db: impl sqlx::Executor<'c, Database = sqlx::Sqlite>,
    run: RunId,
) -> Result<RunUsage, StoreError> {
    let used: Option<(i64, Option<i64>)> = sqlx::query_as(
        "SELECT calls.tokens - r.tokens_used, CAST(ROUND(calls.micro_usd - r.cost_usd * 1000000) AS INTEGER) \
         FROM routine_runs AS r, (SELECT \
         COALESCE(SUM(CASE WHEN is_open THEN estimated_tokens ELSE input_tokens + output_tokens END), 0) AS tokens, \
         CASE WHEN COUNT(CASE WHEN is_open THEN estimated_micro_usd ELSE cost_micro_usd END) = COUNT(*) \
         THEN COALESCE(SUM(CASE WHEN is_open THEN estimated_micro_usd ELSE cost_micro_usd END), 0) END AS micro_usd \
         FROM model_calls WHERE work_id = $1) AS calls WHERE r.id = $1",
    )
    .bind(run)
    .fetch_optional(db)
    .await?;
    let (tokens, micro_usd) = used.unwrap_or((0, Some(0)));
    Ok(RunUsage { tokens: count(tokens), cost_usd: micro_usd.map(|micro| dollars(micro.max(0))) })
}

/// Forgets the answers of a thread's calls: its transcript has them, or the thread is deleted.
pub(crate) async fn forget_answers(db: &mut Connection, thread: ThreadId) -> Result<(), StoreError> {
    sqlx::query("UPDATE model_calls SET answer = NULL WHERE work_id = $1 AND kind <> 'job' AND answer IS NOT NULL")
        .bind(thread)
        .execute(db)
        .await?;
    Ok(())
}

impl CallRow {
    /// A call that was cut off before its provider reported any usage: charged its prompt estimate.
    pub fn aborted(call: &NewCall, reserved: Reserved, at: DateTime<Utc>) -> Self {
        Self {
            key: call.key.clone(),
            at,
            provider: call.provider.clone(),
            model: call.model.clone(),
            usage: TokenUsage { input_tokens: call.estimate.prompt_tokens, ..TokenUsage::default() },
            cost_micro_usd: call.estimate.prompt_cost().map(column),
            duration_ms: u64::try_from((at - call.at).num_milliseconds()).unwrap_or(0),
            reserved,
            answer: Err(CallFailure { kind: ErrorKind::Aborted, message: "aborted: the call was dropped".to_owned() }),
        }
    }
}

#[cfg(test)]
mod tests;
