//! Model calls with their cost: what they are, opened before a provider is asked, closed before the answer is used.
//!
//! `open` and `close` own the rows of a job's call, `thread` those of a thread's; `list` reads them for the API. Never
//! asks a provider.

mod abandoned;
mod close;
mod list;
mod open;
mod thread;

use chrono::{DateTime, Utc};
use protocol::{CallId, Completion, JobId, TokenUsage};

pub(super) use self::thread::forget_answers;
pub use self::thread::{RunUsage, ThreadCallKey};
use super::{
    Reserved, Store, StoreError, budget,
    rows::{RowRef, column},
};
use domain::{
    budget::{CallEstimate, DayLimits, ExhaustedBudget},
    model_call::ErrorKind,
};

/// Names a model call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelCallKey {
    Job(CallKey),
    Thread(ThreadCallKey),
}

/// Names a call of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallKey {
    pub job: JobId,
    pub attempt: u32,
    /// Unique within the attempt.
    pub call_id: CallId,
}

/// How many calls a job may make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallQuota {
    pub max_answers: u64,
    pub max_calls: u64,
}

/// A model call that is about to be made.
#[derive(Debug, Clone, PartialEq)]
pub struct NewCall {
    pub key: ModelCallKey,
    /// Digest of the request's bytes.
    pub request_digest: String,
    pub at: DateTime<Utc>,
    /// The provider that is asked first.
    pub provider: String,
    pub model: String,
    pub user: String,
    /// Its worst-case cost.
    pub estimate: CallEstimate,
    /// How many calls its job may make.
    pub quota: CallQuota,
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
    /// Its attempt is over.
    NotLive,
}

/// A model call that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct CallRow {
    pub key: ModelCallKey,
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

/// How many model calls a job has made.
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
    /// Whether its request was this one; true of calls from before digests were stored.
    pub fn is_same_request(&self, digest: &str) -> bool {
        self.request_digest.as_deref().is_none_or(|asked| asked == digest)
    }
}

impl Store {
    /// Opens a model call: counts it against its job's quota, reserves its worst case, and writes its row.
    pub async fn open_model_call(&self, call: &NewCall) -> Result<OpenedCall, StoreError> {
        let call = call.clone();
        match call.key.clone() {
            ModelCallKey::Job(key) => self.write_batched(transaction!(|tx| open::open(tx, &key, &call).await)).await,
            ModelCallKey::Thread(key) => self.write(transaction!(|tx| thread::open(tx, &key, &call).await)).await,
        }
    }

    /// Takes an open call back: no provider was asked, and it counts to nothing.
    pub async fn release_model_call(
        &self,
        key: &ModelCallKey,
        user: &str,
        reserved: &Reserved,
    ) -> Result<(), StoreError> {
        let (key, user, reserved) = (key.clone(), user.to_owned(), reserved.clone());
        self.write(transaction!(|tx| {
            let key = match key {
                ModelCallKey::Job(key) => key,
                ModelCallKey::Thread(key) => return thread::release(&mut tx.db, &key, &user, &reserved).await,
            };
            if open::delete_open(&mut tx.db, &key).await? {
                budget::release(&mut tx.db, key.job, &user, &reserved).await?;
            }
            Ok(())
        }))
        .await
    }

    /// A model call that was made before, by its name.
    pub async fn model_call(&self, key: &ModelCallKey) -> Result<Option<KnownCall>, StoreError> {
        let key = match key {
            ModelCallKey::Job(key) => key,
            ModelCallKey::Thread(key) => return thread::known(&self.read, key).await,
        };
        let row: Option<(Option<String>, Option<String>)> = sqlx::query_as(
            "SELECT request_digest, answer FROM llm_calls WHERE job_id = $1 AND attempt = $2 AND call_id = $3",
        )
        .bind(key.job)
        .bind(i64::from(key.attempt))
        .bind(&key.call_id.0)
        .fetch_optional(&self.read)
        .await?;
        row.map(|(request_digest, answer)| known_call(key, request_digest, answer)).transpose()
    }

    /// Closes a model call: its row, the job's usage and budgets, and the event while the attempt lives. A call that is
    /// closed already stays as it is. Returns a new warning for the agent about its budget, if there is one.
    pub async fn close_model_call(&self, call: &CallRow) -> Result<Option<String>, StoreError> {
        let call = call.clone();
        match call.key.clone() {
            ModelCallKey::Job(key) => self.write_batched(transaction!(|tx| close::close(tx, key, call).await)).await,
            ModelCallKey::Thread(key) => self.write(transaction!(|tx| thread::close(tx, key, call).await)).await,
        }
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
}

fn known_call(key: &CallKey, request_digest: Option<String>, answer: Option<String>) -> Result<KnownCall, StoreError> {
    known_answer(RowRef { table: "llm_calls", id: *key.job.as_uuid() }, request_digest, answer)
}

fn known_answer(
    row_ref: RowRef,
    request_digest: Option<String>,
    answer: Option<String>,
) -> Result<KnownCall, StoreError> {
    let answer = answer.map(|json| row_ref.json("answer", &json)).transpose()?;
    Ok(KnownCall { request_digest, answer })
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
