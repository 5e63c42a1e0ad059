//! Opening a model call: its quota, its reservation, its row.

use protocol::WorkId;
use sqlx::FromRow;

use super::{super::budget, CallsMade, KnownCall, NewCall, OpenedCall, abandoned::RESTARTED};
use crate::{
    CallKey, Connection, Reserved, StoreError, WriteTx,
    sqlite::{
        rows::{column, count},
        write_tx::{StatementBatch, StatementResult},
    },
};
use domain::budget::BudgetState;

/// The state before a call of a job is opened: its job, the calls made so far, and this call if it was made before.
const BEFORE_CALL_OF_JOB: &str = "SELECT jobs.iterations AS answered, jobs.llm_calls AS made, \
     jobs.attempt = $2 AND jobs.state IN ('in_progress', 'stuck') AS live, \
     (SELECT COUNT(*) FROM model_calls WHERE work_id = $1 AND is_open) AS open, \
     c.call_id IS NOT NULL AS is_known, c.request_digest, c.answer, CASE WHEN NOT c.is_open THEN c.error END AS error FROM jobs LEFT JOIN model_calls AS c \
     ON c.work_id = jobs.id AND c.attempt = $2 AND c.call_id = $3 WHERE jobs.id = $1";

/// The same of a thread, which processes this turn, or a run, which is in progress with this attempt. The quota is one
/// of the turn or attempt, whose calls are counted.
const BEFORE_CALL_OF_OTHERS: &str = "SELECT COUNT(finish_reason) AS answered, \
     COUNT(*) FILTER (WHERE NOT is_open) AS made, COUNT(*) FILTER (WHERE is_open) AS open, \
     EXISTS (SELECT 1 FROM chat_threads WHERE id = $1 AND turn = $2 AND state = 'processing') \
     OR EXISTS (SELECT 1 FROM routine_runs WHERE id = $1 AND attempt = $2 AND status = 'running') AS live, \
     COUNT(*) FILTER (WHERE call_id = $3) > 0 AS is_known, \
     MAX(request_digest) FILTER (WHERE call_id = $3) AS request_digest, \
     MAX(answer) FILTER (WHERE call_id = $3) AS answer, MAX(error) FILTER (WHERE call_id = $3 AND NOT is_open) AS error \
     FROM model_calls WHERE work_id = $1 AND attempt = $2";

/// Writes the row of a call that is opened; the usage of earlier tries of the same call stays, and that one was abandoned.
const INSERT_CALL: &str = "INSERT INTO model_calls (work_id, attempt, call_id, at, provider, model, input_tokens, \
     output_tokens, cache_read_tokens, cache_write_tokens, cost_micro_usd, duration_ms, request_digest, tries, is_open, \
     estimated_tokens, estimated_micro_usd, reserved_tokens, reserved_micro_usd, reserved_day, user_id, kind) \
     VALUES ($1, $2, $3, $4, $5, $6, 0, 0, 0, 0, 0, 0, $7, 1, TRUE, $8, $9, $10, $11, $12, \
     CASE WHEN $14 <> 'job' THEN $13 END, $14) \
     ON CONFLICT (work_id, attempt, call_id) DO UPDATE SET at = excluded.at, is_open = TRUE, finish_reason = NULL, \
     error = CASE WHEN model_calls.error = $15 THEN model_calls.error END, request_digest = excluded.request_digest, tries = model_calls.tries + 1, \
     estimated_tokens = excluded.estimated_tokens, estimated_micro_usd = excluded.estimated_micro_usd, \
     reserved_tokens = excluded.reserved_tokens, reserved_micro_usd = excluded.reserved_micro_usd, \
     reserved_day = excluded.reserved_day";

/// A call that a process did not outlive is made again: it counts once.
const UNCOUNT_ABANDONED: &str = "UPDATE jobs SET llm_calls = llm_calls - 1 WHERE id = $1";

/// Reverses [`UNCOUNT_ABANDONED`] for a call that was not made again after all.
const COUNT_ABANDONED: &str = "UPDATE jobs SET llm_calls = llm_calls + 1 WHERE id = $1 AND EXISTS ( \
     SELECT 1 FROM model_calls WHERE work_id = $1 AND attempt = $2 AND call_id = $3 AND is_open AND error = $4)";

/// Counts a call against its quota, reserves its worst case, and writes its row.
pub(super) async fn open(tx: &mut WriteTx, call: &NewCall) -> Result<OpenedCall, StoreError> {
    let (row, budgets) = before(tx, call).await?;
    let Some(row) = row.filter(|row| row.live) else { return Ok(OpenedCall::NotLive) };
    let was_abandoned = row.error.as_deref() == Some(RESTARTED);
    let (open, mut made) = (count(row.open), row.made());
    if was_abandoned {
        made.all = made.all.saturating_sub(1);
    }
    // One that failed may be made again.
    let known = row.known(&call.key)?;
    let known = known.filter(|known| known.answer.is_some() || !known.is_same_request(&call.request_digest));
    if let Some(known) = known {
        return Ok(OpenedCall::Known(known));
    }
    // Calls in flight may all be answered.
    if made.answered + open >= call.max_answers || made.all + open >= call.max_calls {
        return Ok(OpenedCall::LimitReached(made));
    }
    let reserved = match &budgets {
        None => Reserved::nothing(call.estimate.max_output_tokens),
        Some(budgets) => match budget::reserve_for(call, budgets) {
            Ok(reserved) => reserved,
            Err(budget) => return Ok(OpenedCall::BudgetExceeded(budget)),
        },
    };
    insert(tx, call, &reserved, was_abandoned).await?;
    Ok(OpenedCall::Open { reserved, made })
}

/// Reads what opening a call depends on, in one round trip. The budgets only where a budget applies.
async fn before(
    tx: &mut WriteTx,
    call: &NewCall,
) -> Result<(Option<BeforeCallRow>, Option<Vec<BudgetState>>), StoreError> {
    let work = call.key.execution.work;
    let before = if matches!(work, WorkId::Job(_)) { BEFORE_CALL_OF_JOB } else { BEFORE_CALL_OF_OTHERS };
    let [chain, day] = budget::READ_BUDGETS;
    let statements: &[&'static str] = if call.budget.is_some() { &[before, chain, day] } else { &[before] };
    let batch = call.key.bind_to(StatementBatch::new(statements));
    let results = tx.run(batch.bind(call.user.clone()).bind(budget::day_of(call.at))).await?;
    let row = results.first().map(StatementResult::decode_first).transpose()?.flatten();
    let budgets =
        call.budget.map(|limits| budget::budgets(*work.as_uuid(), &limits, results.get(1..).unwrap_or_default()));
    Ok((row, budgets.transpose()?))
}

/// Writes what opening a call writes, in one round trip.
async fn insert(tx: &mut WriteTx, call: &NewCall, reserved: &Reserved, was_abandoned: bool) -> Result<(), StoreError> {
    let mut statements = vec![INSERT_CALL];
    if reserved.day.is_some() {
        statements.extend(budget::RESERVE);
    }
    if was_abandoned {
        statements.push(UNCOUNT_ABANDONED);
    }
    let batch = call
        .key
        .bind_to(StatementBatch::new(&statements))
        .bind(call.at)
        .bind(call.provider.clone())
        .bind(call.model.clone())
        .bind(call.request_digest.clone())
        .bind(column(call.estimate.prompt_tokens))
        .bind(call.estimate.prompt_cost().map(column))
        .bind(column(reserved.amount.tokens))
        .bind(column(reserved.amount.micro_usd))
        .bind(reserved.day.clone())
        .bind(call.user.clone())
        .bind(call.key.execution.work.kind())
        .bind(RESTARTED);
    tx.run_last(batch).await?;
    Ok(())
}

/// Removes the row of an open call, or closes it where an earlier try of it was recorded. False when it is not open.
pub(super) async fn delete_open(db: &mut Connection, key: &CallKey) -> Result<bool, StoreError> {
    sqlx::query(COUNT_ABANDONED)
        .bind(*key.execution.work.as_uuid())
        .bind(i64::from(key.execution.attempt))
        .bind(&key.call_id.0)
        .bind(RESTARTED)
        .execute(&mut *db)
        .await?;
    let mut changed = 0;
    for statement in [
        "DELETE FROM model_calls WHERE work_id = $1 AND attempt = $2 AND call_id = $3 AND is_open AND tries = 1",
        "UPDATE model_calls SET is_open = FALSE, tries = tries - 1 \
         WHERE work_id = $1 AND attempt = $2 AND call_id = $3 AND is_open",
    ] {
        changed += sqlx::query(statement)
            .bind(*key.execution.work.as_uuid())
            .bind(i64::from(key.execution.attempt))
            .bind(&key.call_id.0)
            .execute(&mut *db)
            .await?
            .rows_affected();
    }
    Ok(changed > 0)
}

#[derive(FromRow)]
struct BeforeCallRow {
    answered: i64,
    made: i64,
    live: bool,
    open: i64,
    is_known: bool,
    request_digest: Option<String>,
    answer: Option<String>,
    error: Option<String>,
}

impl BeforeCallRow {
    fn made(&self) -> CallsMade {
        CallsMade { answered: count(self.answered), all: count(self.made) }
    }

    fn known(self, key: &CallKey) -> Result<Option<KnownCall>, StoreError> {
        self.is_known.then(|| KnownCall::new(key, self.request_digest, self.answer)).transpose()
    }
}
