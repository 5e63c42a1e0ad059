//! The model calls that an earlier process left open, of jobs and of chat threads.

use chrono::{DateTime, Utc};
use protocol::{CallId, JobId, ThreadId, TokenUsage};
use sqlx::{FromRow, sqlite::SqliteRow};
use uuid::Uuid;

use super::{
    super::{
        Reserved, StoreError, TurnKey,
        readers::Readers,
        rows::{RowRef, count},
    },
    CallFailure, CallKey, CallRow, ModelCallKey, ThreadCallKey,
};
use domain::{budget::Reservation, model_call::ErrorKind};

/// The error of a call that was in flight when its process ended.
pub(super) const RESTARTED: &str = "aborted: the orchestrator restarted during the call";

/// As calls that end at `at` without an answer, each decoded by itself.
pub(super) async fn abandoned(db: &Readers, at: DateTime<Utc>) -> Result<Vec<Result<CallRow, StoreError>>, StoreError> {
    let of_jobs: Vec<SqliteRow> = sqlx::query(
        "SELECT job_id AS owner, attempt AS number, call_id, provider, model, estimated_tokens, estimated_micro_usd, \
         reserved_tokens, reserved_micro_usd, reserved_day FROM llm_calls WHERE is_open",
    )
    .fetch_all(db)
    .await?;
    let of_threads: Vec<SqliteRow> = sqlx::query(
        "SELECT thread_id AS owner, turn AS number, call_id, provider, model, estimated_tokens, estimated_micro_usd, \
         reserved_tokens, reserved_micro_usd, reserved_day FROM thread_calls WHERE is_open",
    )
    .fetch_all(db)
    .await?;
    let of_jobs = of_jobs.iter().map(|row| AbandonedCall::from_row(row)?.of_job(at));
    let of_threads = of_threads.iter().map(|row| AbandonedCall::from_row(row)?.of_thread(at));
    Ok(of_jobs.chain(of_threads).collect())
}

#[derive(FromRow)]
struct AbandonedCall {
    /// The job or the thread.
    owner: Uuid,
    /// The attempt or the turn.
    number: i64,
    call_id: String,
    provider: String,
    model: String,
    estimated_tokens: i64,
    estimated_micro_usd: Option<i64>,
    reserved_tokens: i64,
    reserved_micro_usd: i64,
    reserved_day: Option<String>,
}

impl AbandonedCall {
    fn of_job(self, at: DateTime<Utc>) -> Result<CallRow, StoreError> {
        let attempt = RowRef { table: "llm_calls", id: self.owner }.number("attempt", self.number)?;
        let (job, call_id) = (JobId::from_uuid(self.owner), CallId(self.call_id.clone()));
        Ok(self.into_row(ModelCallKey::Job(CallKey { job, attempt, call_id }), at))
    }

    fn of_thread(self, at: DateTime<Utc>) -> Result<CallRow, StoreError> {
        let turn = RowRef { table: "thread_calls", id: self.owner }.number("turn", self.number)?;
        let turn = TurnKey { thread: ThreadId::from_uuid(self.owner), turn };
        let call_id = CallId(self.call_id.clone());
        Ok(self.into_row(ModelCallKey::Thread(ThreadCallKey { turn, call_id }), at))
    }

    fn into_row(self, key: ModelCallKey, at: DateTime<Utc>) -> CallRow {
        let amount = Reservation {
            tokens: count(self.reserved_tokens),
            micro_usd: count(self.reserved_micro_usd),
            max_output_tokens: 0,
        };
        CallRow {
            key,
            at,
            provider: self.provider,
            model: self.model,
            usage: TokenUsage { input_tokens: count(self.estimated_tokens), ..TokenUsage::default() },
            cost_micro_usd: self.estimated_micro_usd,
            duration_ms: 0,
            reserved: Reserved::of(amount, self.reserved_day),
            answer: Err(CallFailure { kind: ErrorKind::Aborted, message: RESTARTED.to_owned() }),
        }
    }
}
