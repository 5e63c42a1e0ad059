//! Opening a model call: its quota, its reservation, its row.

use sqlx::FromRow;

use super::{
    super::{
        Connection, Reserved, StoreError, budget,
        rows::{column, count},
    },
    CallKey, CallsMade, KnownCall, NewCall, OpenedCall,
    close::RESTARTED,
    known_call,
};

/// Counts a call against its job's quota, reserves its worst case, and writes its row.
pub(super) async fn open(db: &mut Connection, call: &NewCall) -> Result<OpenedCall, StoreError> {
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

/// Removes the row of an open call, or closes it where an earlier try of it was recorded. False when it is not open.
pub(super) async fn delete_open(db: &mut Connection, key: &CallKey) -> Result<bool, StoreError> {
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
