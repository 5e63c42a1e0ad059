//! Model calls with their cost, each recorded before its answer is used.

use std::time::Duration;

use chrono::{DateTime, Utc};
use futures_util::TryStreamExt as _;
use protocol::{CallId, Completion, EventData, JobId, LlmCallRecord, Message, TokenUsage};
use sqlx::FromRow;

use super::{
    Connection, Reserved, Store, StoreError,
    budget::{self, AfterCall},
    events::{self, EventStamp},
    rows::{Place, column, count, dollars, text},
};
use crate::{domain::transcript, telemetry::metrics::ModelCall};

/// Most bytes of a transcript's events, and of the answers beside them: twice what a context of a million tokens holds.
const MAX_TRANSCRIPT_BYTES: usize = 8 * 1024 * 1024;

/// One model call, over.
#[derive(Debug, Clone, PartialEq)]
pub struct CallRow {
    /// Whose.
    pub job: JobId,
    /// In which attempt.
    pub attempt: u32,
    /// Its name.
    pub call_id: CallId,
    /// Of what it asked.
    pub request_digest: String,
    /// When it was over.
    pub at: DateTime<Utc>,
    /// Who was asked.
    pub provider: String,
    /// For which model.
    pub model: String,
    /// Tokens, also of what failed half-way.
    pub usage: TokenUsage,
    /// In micro-dollars; none when the price is not known.
    pub cost_micro_usd: Option<i64>,
    /// How long it took.
    pub duration_ms: u64,
    /// What was put aside for it.
    pub reserved: Reserved,
    /// The answer, or the error's kind and message.
    pub answer: Result<Completion, String>,
}

/// How many model calls a job has made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CallsMade {
    /// With an answer.
    pub answered: u64,
    /// Whatever became of them.
    pub all: u64,
}

/// What is known of a model call that was made.
#[derive(Debug, Clone, PartialEq)]
pub struct KnownCall {
    /// Of what it asked; none when it is from before digests were kept.
    pub request_digest: Option<String>,
    /// None when it failed.
    pub answer: Option<Completion>,
}

impl KnownCall {
    /// Whether it asked this; of calls before this was kept, anything.
    pub fn asked(&self, digest: &str) -> bool {
        self.request_digest.as_deref().is_none_or(|asked| asked == digest)
    }
}

impl Store {
    /// What is known before a model call is made: the one of this name, if it was made already, and how many there were.
    pub async fn model_calls_made(
        &self,
        job: JobId,
        attempt: u32,
        call: &CallId,
    ) -> Result<(Option<KnownCall>, CallsMade), StoreError> {
        let row: Option<CallsMadeRow> = sqlx::query_as(
            "SELECT jobs.iterations, jobs.llm_calls, llm_calls.call_id IS NOT NULL AS is_known, request_digest, answer \
             FROM jobs LEFT JOIN llm_calls \
             ON llm_calls.job_id = jobs.id AND llm_calls.attempt = $2 AND llm_calls.call_id = $3 WHERE jobs.id = $1",
        )
        .bind(*job.as_uuid())
        .bind(i64::from(attempt))
        .bind(&call.0)
        .fetch_optional(&self.read)
        .await?;
        let Some(CallsMadeRow { iterations, llm_calls, is_known, request_digest, answer }) = row else {
            return Ok((None, CallsMade::default()));
        };
        let place = Place { table: "llm_calls", id: *job.as_uuid() };
        let answer = answer.map(|json| place.json("answer", &json)).transpose()?;
        let made = CallsMade { answered: count(iterations), all: count(llm_calls) };
        Ok((is_known.then_some(KnownCall { request_digest, answer }), made))
    }

    /// Records a model call: its row, the job's usage and budgets, and the event while the attempt lives. Gives what the
    /// agent is to be told of its budget, if anything is new.
    pub async fn record_model_call(&self, call: &CallRow) -> Result<Option<String>, StoreError> {
        let call = call.clone();
        self.write(move |tx| Box::pin(async move {
        insert(&mut tx.db, &call).await?;
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
        .bind(i64::from(call.attempt))
        .bind(column(call.reserved.amount.tokens))
        .bind(column(call.reserved.amount.micro_usd))
        .bind(*call.job.as_uuid())
        .fetch_optional(&mut tx.db)
        .await?;
        let mut notice = None;
        if let Some(after) = after {
            if after.live {
                let stamp = EventStamp { job: call.job, attempt: call.attempt, at: call.at };
                events::insert(tx, stamp, after.last_seq, &[call.event()]).await?;
            }
            budget::settle(&mut tx.db, &call, &after.user_id, after.parent_id).await?;
            notice = after.tell(&mut tx.db, &call).await?;
        }
        tx.notify(call.job);
        tx.after_commit(move |committed| committed.metrics.model_call(&call.measured()));
        Ok(notice)
        })).await
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

async fn insert(tx: &mut Connection, call: &CallRow) -> Result<(), StoreError> {
    let (finish, error, answer) = match &call.answer {
        Ok(completion) => (Some(completion.finish_reason.as_str()), None, Some(text(completion)?)),
        Err(error) => (None, Some(error.as_str()), None),
    };
    sqlx::query(
        "INSERT INTO llm_calls (job_id, attempt, call_id, at, provider, model, input_tokens, output_tokens, \
         cache_read_tokens, cache_write_tokens, cost_micro_usd, duration_ms, finish_reason, error, answer, request_digest, \
         tries) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, 1) \
         ON CONFLICT (job_id, attempt, call_id) DO UPDATE SET at = excluded.at, provider = excluded.provider, \
         model = excluded.model, input_tokens = llm_calls.input_tokens + excluded.input_tokens, \
         output_tokens = llm_calls.output_tokens + excluded.output_tokens, \
         cache_read_tokens = llm_calls.cache_read_tokens + excluded.cache_read_tokens, \
         cache_write_tokens = llm_calls.cache_write_tokens + excluded.cache_write_tokens, \
         cost_micro_usd = COALESCE(llm_calls.cost_micro_usd, 0) + COALESCE(excluded.cost_micro_usd, 0), \
         duration_ms = llm_calls.duration_ms + excluded.duration_ms, finish_reason = excluded.finish_reason, \
         error = excluded.error, answer = excluded.answer, \
         request_digest = excluded.request_digest, tries = llm_calls.tries + 1",
    )
    .bind(*call.job.as_uuid())
    .bind(i64::from(call.attempt))
    .bind(&call.call_id.0)
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
    .bind(&call.request_digest)
    .execute(tx)
    .await?;
    Ok(())
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
struct CallsMadeRow {
    iterations: i64,
    llm_calls: i64,
    is_known: bool,
    request_digest: Option<String>,
    answer: Option<String>,
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
