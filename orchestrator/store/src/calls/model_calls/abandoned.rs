//! The model calls that an earlier process left open.

use chrono::{DateTime, Utc};
use protocol::{CallId, Execution, TokenUsage, WorkId};
use sqlx::{FromRow, sqlite::SqliteRow};
use uuid::Uuid;

use super::{CallFailure, CallRow};
use crate::{
    CallKey, Reserved, StoreError,
    sqlite::{
        readers::Readers,
        rows::{RowRef, count},
    },
};
use domain::{budget::Reservation, model_call::ErrorKind};

/// The error of a call that was in flight when its process ended.
pub(super) const RESTARTED: &str = "aborted: the orchestrator restarted during the call";

/// As calls that end at `at` without an answer, each decoded by itself.
pub(super) async fn abandoned(db: &Readers, at: DateTime<Utc>) -> Result<Vec<Result<CallRow, StoreError>>, StoreError> {
    let rows: Vec<SqliteRow> = sqlx::query(
        "SELECT work_id, kind, attempt, call_id, provider, model, estimated_tokens, estimated_micro_usd, \
         reserved_tokens, reserved_micro_usd, reserved_day FROM model_calls WHERE is_open",
    )
    .fetch_all(db)
    .await?;
    Ok(rows.iter().map(|row| AbandonedCall::from_row(row)?.into_row(at)).collect())
}

#[derive(FromRow)]
struct AbandonedCall {
    work_id: Uuid,
    kind: String,
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

impl AbandonedCall {
    fn into_row(self, at: DateTime<Utc>) -> Result<CallRow, StoreError> {
        let row_ref = RowRef { table: "model_calls", id: self.work_id };
        let work = row_ref.known("kind", WorkId::of_kind(&self.kind, self.work_id))?;
        let execution = Execution { work, attempt: row_ref.number("attempt", self.attempt)? };
        let amount = Reservation {
            tokens: count(self.reserved_tokens),
            micro_usd: count(self.reserved_micro_usd),
            max_output_tokens: 0,
        };
        Ok(CallRow {
            key: CallKey { execution, call_id: CallId(self.call_id) },
            at,
            provider: self.provider,
            model: self.model,
            usage: TokenUsage { input_tokens: count(self.estimated_tokens), ..TokenUsage::default() },
            cost_micro_usd: self.estimated_micro_usd,
            duration_ms: 0,
            reserved: Reserved::of(amount, self.reserved_day),
            answer: Err(CallFailure { kind: ErrorKind::Aborted, message: RESTARTED.to_owned() }),
        })
    }
}
