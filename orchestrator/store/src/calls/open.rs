//! Opening a model call: its quota, its reservation, its row.

use sqlx::FromRow;

use super::{
    super::{
        Connection, Reserved, StoreError, WriteTx, budget,
        rows::{column, count},
        write_tx::{StatementBatch, StatementResult},
    },
    CallKey, CallsMade, KnownCall, NewCall, OpenedCall,
    abandoned::RESTARTED,
    known_call,
};
use domain::budget::BudgetState;

/// The state before a call is opened: its job, the calls made so far, and this call if it was made before.
const BEFORE_CALL: &str = "SELECT jobs.iterations, jobs.llm_calls, \
     jobs.attempt = $2 AND jobs.state IN ('in_progress', 'stuck') AS live, \
     (SELECT COUNT(*) FROM llm_calls WHERE job_id = $1 AND is_open) AS open, \
     llm_calls.call_id IS NOT NULL AS is_known, request_digest, answer, error \
     FROM jobs LEFT JOIN llm_calls \
     ON llm_calls.job_id = jobs.id AND llm_calls.attempt = $2 AND llm_calls.call_id = $3 WHERE jobs.id = $1";

/// Writes the row of a call that is opened; the usage of earlier tries of the same call stays.
const INSERT_CALL: &str = "INSERT INTO llm_calls (job_id, attempt, call_id, at, provider, model, input_tokens, \
     output_tokens, cache_read_tokens, cache_write_tokens, cost_micro_usd, duration_ms, request_digest, tries, is_open, estimated_tokens, \
     estimated_micro_usd, reserved_tokens, reserved_micro_usd, reserved_day) \
     VALUES ($1, $2, $3, $4, $5, $6, 0, 0, 0, 0, 0, 0, $7, 1, TRUE, $8, $9, $10, $11, $12) \
     ON CONFLICT (job_id, attempt, call_id) DO UPDATE SET at = excluded.at, is_open = TRUE, finish_reason = NULL, \
     error = NULL, request_digest = excluded.request_digest, tries = llm_calls.tries + 1, \
     estimated_tokens = excluded.estimated_tokens, estimated_micro_usd = excluded.estimated_micro_usd, \
     reserved_tokens = excluded.reserved_tokens, reserved_micro_usd = excluded.reserved_micro_usd, \
     reserved_day = excluded.reserved_day";

/// A call that a process did not outlive is made again: it counts once.
const UNCOUNT_ABANDONED: &str = "UPDATE jobs SET llm_calls = llm_calls - 1 WHERE id = $1";

/// Counts a call against its job's quota, reserves its worst case, and writes its row.
pub(super) async fn open(tx: &mut WriteTx, key: &CallKey, call: &NewCall) -> Result<OpenedCall, StoreError> {
    let (row, budgets) = before(tx, key, call).await?;
    let Some(row) = row.filter(|row| row.live) else { return Ok(OpenedCall::NotLive) };
    let was_abandoned = row.error.as_deref() == Some(RESTARTED);
    let (open, mut made) = (count(row.open), row.made());
    if was_abandoned {
        made.all = made.all.saturating_sub(1);
    }
    // One that failed may be made again.
    let known = row.known(key)?.filter(|known| known.answer.is_some() || !known.is_same_request(&call.request_digest));
    if let Some(known) = known {
        return Ok(OpenedCall::Known(known));
    }
    // Calls in flight may all be answered.
    if made.answered + open >= call.quota.max_answers || made.all + open >= call.quota.max_calls {
        return Ok(OpenedCall::LimitReached(made));
    }
    let reserved = match &budgets {
        None => Reserved::nothing(call.estimate.max_output_tokens),
        Some(budgets) => match budget::reserve_for(call, budgets) {
            Ok(reserved) => reserved,
            Err(budget) => return Ok(OpenedCall::BudgetExceeded(budget)),
        },
    };
    let opened = OpenedRow { key, call, reserved: &reserved, was_abandoned };
    opened.insert(tx).await?;
    Ok(OpenedCall::Open { reserved, made })
}

/// Reads what opening a call depends on, in one round trip. The budgets only where a budget applies.
async fn before(
    tx: &mut WriteTx,
    key: &CallKey,
    call: &NewCall,
) -> Result<(Option<BeforeCallRow>, Option<Vec<BudgetState>>), StoreError> {
    let CallKey { job, attempt, call_id } = key;
    let [chain, day] = budget::READ_BUDGETS;
    let statements: &[&'static str] = if call.budget.is_some() { &[BEFORE_CALL, chain, day] } else { &[BEFORE_CALL] };
    let batch = StatementBatch::new(statements).bind(job).bind(i64::from(*attempt)).bind(call_id.0.clone());
    let results = tx.run(batch.bind(call.user.clone()).bind(budget::day_of(call.at))).await?;
    let row = results.first().map(StatementResult::decode_first).transpose()?.flatten();
    let budgets = call.budget.map(|limits| budget::budgets(*job, &limits, results.get(1..).unwrap_or_default()));
    Ok((row, budgets.transpose()?))
}

/// What opening a call writes.
struct OpenedRow<'a> {
    key: &'a CallKey,
    call: &'a NewCall,
    reserved: &'a Reserved,
    was_abandoned: bool,
}

impl OpenedRow<'_> {
    /// Writes it in one round trip.
    async fn insert(&self, tx: &mut WriteTx) -> Result<(), StoreError> {
        let Self { key, call, reserved, was_abandoned } = *self;
        let amount = &reserved.amount;
        let mut statements = vec![INSERT_CALL];
        if reserved.day().is_some() {
            statements.extend(budget::RESERVE);
        }
        if was_abandoned {
            statements.push(UNCOUNT_ABANDONED);
        }
        let batch = StatementBatch::new(&statements)
            .bind(key.job)
            .bind(i64::from(key.attempt))
            .bind(key.call_id.0.clone())
            .bind(call.at)
            .bind(call.provider.clone())
            .bind(call.model.clone())
            .bind(call.request_digest.clone())
            .bind(column(call.estimate.prompt_tokens))
            .bind(call.estimate.prompt_cost().map(column))
            .bind(column(amount.tokens))
            .bind(column(amount.micro_usd))
            .bind(reserved.day().map(str::to_owned))
            .bind(call.user.clone());
        tx.run_last(batch).await?;
        Ok(())
    }
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
            .bind(key.job)
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
