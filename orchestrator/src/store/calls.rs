//! Model calls with their cost, each recorded before its answer is used.

use std::time::Duration;

use chrono::{DateTime, Utc};
use futures_util::TryStreamExt as _;
use protocol::{CallId, Completion, EventData, JobId, LlmCallRecord, Message, TokenUsage};
use sqlx::FromRow;
use uuid::Uuid;

use super::{
    Connection, Reserved, Store, StoreError, WriteTx,
    budget::{self, AfterCall},
    events::{self, EventStamp},
    rows::{Place, column, count, dollars, text},
};
use crate::{
    domain::{
        budget::{DayLimits, Quote, Reservation, Spent},
        transcript,
    },
    telemetry::metrics::ModelCall,
};

/// Most bytes of a transcript's events, and of the answers beside them: twice what a context of a million tokens holds.
const MAX_TRANSCRIPT_BYTES: usize = 8 * 1024 * 1024;

/// Names a model call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallKey {
    /// The job.
    pub job: JobId,
    /// Its attempt.
    pub attempt: u32,
    /// Unique within the attempt.
    pub call_id: CallId,
}

/// How many calls a job may make in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallQuota {
    /// With an answer.
    pub max_answers: u64,
    /// Of any end.
    pub max_calls: u64,
}

/// A model call that is about to be made.
#[derive(Debug, Clone, PartialEq)]
pub struct NewCall {
    /// Its name.
    pub key: CallKey,
    /// Of the request's bytes.
    pub request_digest: String,
    /// When it is opened.
    pub at: DateTime<Utc>,
    /// The provider that is asked first.
    pub provider: String,
    /// The model.
    pub model: String,
    /// Who pays.
    pub user: String,
    /// What it may cost at worst.
    pub quote: Quote,
    /// How many calls its job may make.
    pub quota: CallQuota,
    /// Each user's budget for a day; none where no budget at all applies.
    pub budget: Option<DayLimits>,
}

/// What opening a call led to.
#[derive(Debug, Clone, PartialEq)]
pub enum OpenedCall {
    /// Its row is there.
    Open {
        /// What was reserved for it.
        reserved: Reserved,
        /// The calls made before it.
        made: CallsMade,
    },
    /// It was made before.
    Known(KnownCall),
    /// No more calls may be made.
    LimitReached(CallsMade),
    /// A budget has no room for it.
    BudgetExceeded(Spent),
    /// Its attempt is over.
    NotLive,
}

/// One model call, over.
#[derive(Debug, Clone, PartialEq)]
pub struct CallRow {
    /// Its name.
    pub key: CallKey,
    /// When it was over.
    pub at: DateTime<Utc>,
    /// The provider that answered, or was asked last.
    pub provider: String,
    /// Its model.
    pub model: String,
    /// Tokens, also of an answer that broke off.
    pub usage: TokenUsage,
    /// In micro-dollars; none when the price is not known.
    pub cost_micro_usd: Option<i64>,
    /// How long it took.
    pub duration_ms: u64,
    /// What was reserved for it.
    pub reserved: Reserved,
    /// The answer, or the error's kind and message.
    pub answer: Result<Completion, String>,
}

/// How many model calls a job has made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CallsMade {
    /// With an answer.
    pub answered: u64,
    /// Of any end.
    pub all: u64,
}

/// A model call that was made before.
#[derive(Debug, Clone, PartialEq)]
pub struct KnownCall {
    /// Of the request; none when it is from before digests were stored.
    pub request_digest: Option<String>,
    /// None when it failed.
    pub answer: Option<Completion>,
}

impl KnownCall {
    /// Whether its request was this one; true of calls from before digests were stored.
    pub fn asked(&self, digest: &str) -> bool {
        self.request_digest.as_deref().is_none_or(|asked| asked == digest)
    }
}

/// The error of a call that a process did not outlive.
const RESTARTED: &str = "aborted: the orchestrator restarted during the call";

impl Store {
    /// Opens a model call: counts it against its job's quota, reserves its worst case, and writes its row.
    pub async fn open_model_call(&self, call: &NewCall) -> Result<OpenedCall, StoreError> {
        let call = call.clone();
        self.write(move |tx| Box::pin(async move { open(&mut tx.db, &call).await })).await
    }

    /// Takes an open call back: no provider was asked, and it counts to nothing.
    pub async fn release_model_call(&self, key: &CallKey, user: &str, reserved: &Reserved) -> Result<(), StoreError> {
        let (key, user, reserved) = (key.clone(), user.to_owned(), reserved.clone());
        self.write(move |tx| {
            Box::pin(async move {
                if delete_open(&mut tx.db, &key).await? {
                    budget::release(&mut tx.db, key.job, &user, &reserved).await?;
                }
                Ok(())
            })
        })
        .await
    }

    /// A model call that was made before, by its name.
    pub async fn model_call(&self, key: &CallKey) -> Result<Option<KnownCall>, StoreError> {
        let row: Option<(Option<String>, Option<String>)> = sqlx::query_as(
            "SELECT request_digest, answer FROM llm_calls WHERE job_id = $1 AND attempt = $2 AND call_id = $3",
        )
        .bind(*key.job.as_uuid())
        .bind(i64::from(key.attempt))
        .bind(&key.call_id.0)
        .fetch_optional(&self.read)
        .await?;
        row.map(|(request_digest, answer)| known_call(key, request_digest, answer)).transpose()
    }

    /// Closes a model call: its row, the job's usage and budgets, and the event while the attempt lives. A call that is closed
    /// already stays as it is. Returns what the agent is to be told of its budget, if anything is new.
    pub async fn close_model_call(&self, call: &CallRow) -> Result<Option<String>, StoreError> {
        let call = call.clone();
        self.write(move |tx| Box::pin(async move { close(tx, call).await })).await
    }

    /// Closes the calls that an earlier process left open: each is charged its prompt estimate and shown as aborted. Nothing
    /// stays reserved.
    pub async fn close_abandoned_calls(&self, now: DateTime<Utc>) -> Result<usize, StoreError> {
        self.write(move |tx| {
            Box::pin(async move {
                let rows: Vec<AbandonedRow> = sqlx::query_as(
                    "SELECT job_id, attempt, call_id, provider, model, estimated_tokens, estimated_micro_usd, \
                     reserved_tokens, reserved_micro_usd, reserved_day FROM llm_calls WHERE is_open",
                )
                .fetch_all(&mut tx.db)
                .await?;
                let closed = rows.len();
                for row in rows {
                    close(tx, row.into_call(now)?).await?;
                }
                budget::clear_reservations(&mut tx.db).await?;
                Ok(closed)
            })
        })
        .await
    }

    /// The conversation that earlier attempts of a job had, the newest part of it when it is long; empty when they had none.
    /// One is rebuilt at a time: it is the largest thing that is read here.
    pub async fn transcript(&self, job: JobId) -> Result<Vec<Message>, StoreError> {
        let _turn = self.transcripts.lock().await;
        let mut rows = sqlx::query_scalar::<_, String>(
            "SELECT answer FROM llm_calls WHERE job_id = $1 AND answer IS NOT NULL ORDER BY at DESC",
        )
        .bind(*job.as_uuid())
        .fetch(&self.read);
        let place = Place { table: "llm_calls", id: *job.as_uuid() };
        let (mut answers, mut bytes) = (Vec::<Completion>::new(), 0);
        while let Some(answer) = rows.try_next().await? {
            bytes += answer.len();
            if bytes > MAX_TRANSCRIPT_BYTES {
                break;
            }
            answers.push(place.json("answer", &answer)?);
        }
        drop(rows);
        answers.reverse();
        let events = self.conversation(job, MAX_TRANSCRIPT_BYTES).await?;
        Ok(transcript::rebuild(events, &answers))
    }

    /// A job's model calls, oldest first.
    pub async fn model_calls(&self, job: JobId, offset: u32, limit: u32) -> Result<Vec<LlmCallRecord>, StoreError> {
        let rows: Vec<CallListRow> = sqlx::query_as(
            "SELECT attempt, call_id, at, provider, model, input_tokens, output_tokens, cache_read_tokens, \
             cache_write_tokens, cost_micro_usd, duration_ms, finish_reason, error FROM llm_calls \
             WHERE job_id = $1 ORDER BY attempt, at, call_id LIMIT $2 OFFSET $3",
        )
        .bind(*job.as_uuid())
        .bind(i64::from(limit))
        .bind(i64::from(offset))
        .fetch_all(&self.read)
        .await?;
        let place = Place { table: "llm_calls", id: *job.as_uuid() };
        rows.into_iter().map(|row| row.into_record(place)).collect()
    }
}

/// Writes the row of a call that is opened; the usage of earlier tries of the same call stays.
async fn insert(tx: &mut Connection, call: &NewCall, reserved: &Reserved) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO llm_calls (job_id, attempt, call_id, at, provider, model, input_tokens, output_tokens, \
         cache_read_tokens, cache_write_tokens, duration_ms, request_digest, tries, is_open, estimated_tokens, \
         estimated_micro_usd, reserved_tokens, reserved_micro_usd, reserved_day) \
         VALUES ($1, $2, $3, $4, $5, $6, 0, 0, 0, 0, 0, $7, 1, TRUE, $8, $9, $10, $11, $12) \
         ON CONFLICT (job_id, attempt, call_id) DO UPDATE SET at = excluded.at, is_open = TRUE, finish_reason = NULL, \
         error = NULL, request_digest = excluded.request_digest, tries = llm_calls.tries + 1, \
         estimated_tokens = excluded.estimated_tokens, estimated_micro_usd = excluded.estimated_micro_usd, \
         reserved_tokens = excluded.reserved_tokens, reserved_micro_usd = excluded.reserved_micro_usd, \
         reserved_day = excluded.reserved_day",
    )
    .bind(*call.key.job.as_uuid())
    .bind(i64::from(call.key.attempt))
    .bind(&call.key.call_id.0)
    .bind(call.at)
    .bind(&call.provider)
    .bind(&call.model)
    .bind(&call.request_digest)
    .bind(column(call.quote.prompt_tokens))
    .bind(call.quote.prompt_cost().map(column))
    .bind(column(reserved.amount.tokens))
    .bind(column(reserved.amount.micro_usd))
    .bind(reserved.day())
    .execute(tx)
    .await?;
    Ok(())
}

/// Counts a call against its job's quota, reserves its worst case, and writes its row.
async fn open(db: &mut Connection, call: &NewCall) -> Result<OpenedCall, StoreError> {
    let row: Option<BeforeCallRow> = sqlx::query_as(
        "SELECT jobs.iterations, jobs.llm_calls, \
         jobs.attempt = $2 AND jobs.state IN ('in_progress', 'stuck') AS live, \
         (SELECT COUNT(*) FROM llm_calls WHERE job_id = $1 AND is_open) AS open, \
         llm_calls.call_id IS NOT NULL AS is_known, request_digest, answer, error \
         FROM jobs LEFT JOIN llm_calls \
         ON llm_calls.job_id = jobs.id AND llm_calls.attempt = $2 AND llm_calls.call_id = $3 WHERE jobs.id = $1",
    )
    .bind(*call.key.job.as_uuid())
    .bind(i64::from(call.key.attempt))
    .bind(&call.key.call_id.0)
    .fetch_optional(&mut *db)
    .await?;
    let Some(row) = row.filter(|row| row.live) else { return Ok(OpenedCall::NotLive) };
    let was_abandoned = row.error.as_deref() == Some(RESTARTED);
    let (open, mut made) = (count(row.open), row.made());
    if was_abandoned {
        // The same call is made again: it counts once.
        made.all = made.all.saturating_sub(1);
    }
    // One that failed may be made again.
    let known = row.known(&call.key)?.filter(|known| known.answer.is_some() || !known.asked(&call.request_digest));
    if let Some(known) = known {
        return Ok(OpenedCall::Known(known));
    }
    // Calls in flight may all be answered.
    if made.answered + open >= call.quota.max_answers || made.all + open >= call.quota.max_calls {
        return Ok(OpenedCall::LimitReached(made));
    }
    let reserved = match &call.budget {
        None => Reserved::nothing(call.quote.max_output_tokens),
        Some(day_limits) => match budget::reserve_for(db, call, day_limits).await? {
            Ok(reserved) => reserved,
            Err(budget) => return Ok(OpenedCall::BudgetExceeded(budget)),
        },
    };
    insert(db, call, &reserved).await?;
    if was_abandoned {
        sqlx::query("UPDATE jobs SET llm_calls = llm_calls - 1 WHERE id = $1")
            .bind(*call.key.job.as_uuid())
            .execute(db)
            .await?;
    }
    Ok(OpenedCall::Open { reserved, made })
}

/// Removes the row of an open call, or closes it where an earlier try of it was recorded. False when it is not open.
async fn delete_open(db: &mut Connection, key: &CallKey) -> Result<bool, StoreError> {
    let mut changed = 0;
    for statement in [
        "DELETE FROM llm_calls WHERE job_id = $1 AND attempt = $2 AND call_id = $3 AND is_open AND tries = 1",
        "UPDATE llm_calls SET is_open = FALSE, tries = tries - 1 \
         WHERE job_id = $1 AND attempt = $2 AND call_id = $3 AND is_open",
    ] {
        changed += sqlx::query(statement)
            .bind(*key.job.as_uuid())
            .bind(i64::from(key.attempt))
            .bind(&key.call_id.0)
            .execute(&mut *db)
            .await?
            .rows_affected();
    }
    Ok(changed > 0)
}

/// Closes a call and settles what it cost, once.
async fn close(tx: &mut WriteTx, call: CallRow) -> Result<Option<String>, StoreError> {
    if !close_row(&mut tx.db, &call).await? {
        return Ok(None);
    }
    let after: Option<AfterCall> = sqlx::query_as(
        "UPDATE jobs SET input_tokens = input_tokens + $1, output_tokens = output_tokens + $2, \
         cache_read_tokens = cache_read_tokens + $3, cache_write_tokens = cache_write_tokens + $4, \
         cost_micro_usd = cost_micro_usd + $5, llm_calls = llm_calls + 1, \
         iterations = CASE WHEN $6 THEN iterations + 1 ELSE iterations END, last_activity_at = $7, \
         last_seq = CASE WHEN attempt = $8 AND state IN ('in_progress', 'stuck') THEN last_seq + 1 \
         ELSE last_seq END, reserved_tokens = reserved_tokens - $9, reserved_micro_usd = reserved_micro_usd - $10 \
         WHERE id = $11 \
         RETURNING last_seq, attempt = $8 AND state IN ('in_progress', 'stuck') AS live, user_id, parent_id, limits, \
         input_tokens + output_tokens + children_tokens AS tokens, cost_micro_usd + children_micro_usd AS micro_usd, \
         iterations, tool_calls, started_at, told_low",
    )
    .bind(column(call.usage.input_tokens))
    .bind(column(call.usage.output_tokens))
    .bind(column(call.usage.cache_read_tokens))
    .bind(column(call.usage.cache_write_tokens))
    .bind(call.cost_micro_usd.unwrap_or(0))
    .bind(call.answer.is_ok())
    .bind(call.at)
    .bind(i64::from(call.key.attempt))
    .bind(column(call.reserved.amount.tokens))
    .bind(column(call.reserved.amount.micro_usd))
    .bind(*call.key.job.as_uuid())
    .fetch_optional(&mut tx.db)
    .await?;
    let Some(after) = after else { return Ok(None) };
    if after.live {
        let stamp = EventStamp { job: call.key.job, attempt: call.key.attempt, at: call.at };
        events::insert(tx, stamp, after.last_seq, &[call.event()]).await?;
    }
    budget::settle(&mut tx.db, &call, &after.user_id, after.parent_id).await?;
    let notice = after.tell(&mut tx.db, &call).await?;
    tx.notify(call.key.job);
    tx.after_commit(move |committed| committed.metrics.model_call(&call.measured()));
    Ok(notice)
}

/// Writes what a call came to into its row. False when it is not open.
async fn close_row(tx: &mut Connection, call: &CallRow) -> Result<bool, StoreError> {
    let (finish, error, answer) = match &call.answer {
        Ok(completion) => (Some(completion.finish_reason.as_str()), None, Some(text(completion)?)),
        Err(error) => (None, Some(error.as_str()), None),
    };
    let closed = sqlx::query(
        "UPDATE llm_calls SET is_open = FALSE, at = $4, provider = $5, model = $6, input_tokens = input_tokens + $7, \
         output_tokens = output_tokens + $8, cache_read_tokens = cache_read_tokens + $9, \
         cache_write_tokens = cache_write_tokens + $10, \
         cost_micro_usd = CASE WHEN cost_micro_usd IS NULL THEN $11 ELSE cost_micro_usd + COALESCE($11, 0) END, \
         duration_ms = duration_ms + $12, finish_reason = $13, error = $14, answer = $15, reserved_tokens = 0, \
         reserved_micro_usd = 0 WHERE job_id = $1 AND attempt = $2 AND call_id = $3 AND is_open",
    )
    .bind(*call.key.job.as_uuid())
    .bind(i64::from(call.key.attempt))
    .bind(&call.key.call_id.0)
    .bind(call.at)
    .bind(&call.provider)
    .bind(&call.model)
    .bind(column(call.usage.input_tokens))
    .bind(column(call.usage.output_tokens))
    .bind(column(call.usage.cache_read_tokens))
    .bind(column(call.usage.cache_write_tokens))
    .bind(call.cost_micro_usd)
    .bind(column(call.duration_ms))
    .bind(finish)
    .bind(error)
    .bind(answer)
    .execute(tx)
    .await?;
    Ok(closed.rows_affected() == 1)
}

fn known_call(key: &CallKey, request_digest: Option<String>, answer: Option<String>) -> Result<KnownCall, StoreError> {
    let place = Place { table: "llm_calls", id: *key.job.as_uuid() };
    let answer = answer.map(|json| place.json("answer", &json)).transpose()?;
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
            usage: TokenUsage { input_tokens: call.quote.prompt_tokens, ..TokenUsage::default() },
            cost_micro_usd: call.quote.prompt_cost().map(column),
            duration_ms: u64::try_from((at - call.at).num_milliseconds()).unwrap_or(0),
            reserved,
            answer: Err("aborted: the call was dropped".to_owned()),
        }
    }
}

impl CallRow {
    fn measured(&self) -> ModelCall<'_> {
        ModelCall {
            provider: &self.provider,
            outcome: match &self.answer {
                Ok(_) => "answered",
                Err(error) if error.starts_with("aborted") => "aborted",
                Err(error) if error.starts_with("rate limited") => "rate_limited",
                Err(_) => "failed",
            },
            usage: self.usage,
            cost_micro_usd: self.cost_micro_usd,
            duration: Duration::from_millis(self.duration_ms),
        }
    }

    fn event(&self) -> EventData {
        EventData::LlmCall {
            model: self.model.clone(),
            provider: self.provider.clone(),
            input_tokens: self.usage.input_tokens,
            output_tokens: self.usage.output_tokens,
            cost_usd: dollars(self.cost_micro_usd.unwrap_or(0)),
            duration_ms: self.duration_ms,
            finish_reason: match &self.answer {
                Ok(completion) => completion.finish_reason.as_str().to_owned(),
                Err(_) => "error".to_owned(),
            },
        }
    }
}

#[derive(FromRow)]
struct BeforeCallRow {
    iterations: i64,
    llm_calls: i64,
    live: bool,
    open: i64,
    is_known: bool,
    request_digest: Option<String>,
    answer: Option<String>,
    error: Option<String>,
}

impl BeforeCallRow {
    fn made(&self) -> CallsMade {
        CallsMade { answered: count(self.iterations), all: count(self.llm_calls) }
    }

    fn known(self, key: &CallKey) -> Result<Option<KnownCall>, StoreError> {
        self.is_known.then(|| known_call(key, self.request_digest, self.answer)).transpose()
    }
}

#[derive(FromRow)]
struct AbandonedRow {
    job_id: Uuid,
    attempt: i64,
    call_id: String,
    provider: String,
    model: String,
    estimated_tokens: i64,
    estimated_micro_usd: Option<i64>,
    reserved_tokens: i64,
    reserved_micro_usd: i64,
    reserved_day: Option<String>,
}

impl AbandonedRow {
    fn into_call(self, at: DateTime<Utc>) -> Result<CallRow, StoreError> {
        let place = Place { table: "llm_calls", id: self.job_id };
        let attempt = place.number("attempt", self.attempt)?;
        let amount = Reservation {
            tokens: count(self.reserved_tokens),
            micro_usd: count(self.reserved_micro_usd),
            max_output_tokens: 0,
        };
        Ok(CallRow {
            key: CallKey { job: JobId::from_uuid(self.job_id), attempt, call_id: CallId(self.call_id) },
            at,
            provider: self.provider,
            model: self.model,
            usage: TokenUsage { input_tokens: count(self.estimated_tokens), ..TokenUsage::default() },
            cost_micro_usd: self.estimated_micro_usd,
            duration_ms: 0,
            reserved: Reserved::of(amount, self.reserved_day),
            answer: Err(RESTARTED.to_owned()),
        })
    }
}

#[derive(FromRow)]
struct CallListRow {
    attempt: i64,
    call_id: String,
    at: DateTime<Utc>,
    provider: String,
    model: String,
    input_tokens: i64,
    output_tokens: i64,
    cache_read_tokens: i64,
    cache_write_tokens: i64,
    cost_micro_usd: Option<i64>,
    duration_ms: i64,
    finish_reason: Option<String>,
    error: Option<String>,
}

impl CallListRow {
    fn into_record(self, place: Place) -> Result<LlmCallRecord, StoreError> {
        Ok(LlmCallRecord {
            call_id: self.call_id,
            attempt: place.number("attempt", self.attempt)?,
            provider: self.provider,
            model: self.model,
            usage: TokenUsage {
                input_tokens: place.number("input_tokens", self.input_tokens)?,
                output_tokens: place.number("output_tokens", self.output_tokens)?,
                cache_read_tokens: place.number("cache_read_tokens", self.cache_read_tokens)?,
                cache_write_tokens: place.number("cache_write_tokens", self.cache_write_tokens)?,
            },
            cost_usd: dollars(self.cost_micro_usd.unwrap_or(0)),
            duration_ms: place.number("duration_ms", self.duration_ms)?,
            finish_reason: self.finish_reason,
            error: self.error,
            at: self.at,
        })
    }
}

#[cfg(test)]
mod tests;
