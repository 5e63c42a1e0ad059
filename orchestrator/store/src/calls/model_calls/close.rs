//! Closing a model call: its row, the usage and budgets of its job and its user's day, its event.

use std::time::Duration;

use protocol::{EventData, JobId, WorkId};

use super::{
    super::budget::{self, AfterCall},
    CallFailure, CallRow,
};
use crate::{
    StoreError, WriteTx, events,
    sqlite::{
        rows::{column, dollars, text},
        write_tx::{StatementBatch, StatementResult},
    },
};
use domain::model_call::ErrorKind;
use telemetry::metrics::ModelCall;

/// Writes the outcome of a call into its row, while the row is open. A try without a price makes the cost NULL. Only
/// jobs and threads that exist keep answers.
const CLOSE_CALL: &str = "UPDATE model_calls SET is_open = FALSE, at = $4, provider = $5, model = $6, \
     input_tokens = input_tokens + $7, output_tokens = output_tokens + $8, cache_read_tokens = cache_read_tokens + $9, \
     cache_write_tokens = cache_write_tokens + $10, cost_micro_usd = cost_micro_usd + $11, \
     duration_ms = duration_ms + $12, finish_reason = $13, error = $14, \
     answer = CASE WHEN kind = 'job' OR EXISTS (SELECT 1 FROM chat_threads WHERE id = $1) THEN $15 END, \
     reserved_tokens = 0, reserved_micro_usd = 0 \
     WHERE work_id = $1 AND attempt = $2 AND call_id = $3 AND is_open RETURNING 1";

/// Adds a call to its job, if it is one of a job, and numbers its event while the attempt lives. Only after
/// [`CLOSE_CALL`] has closed it and [`budget::SETTLE_DAY`] has settled it.
const COUNT_CALL: &str = "UPDATE jobs SET input_tokens = input_tokens + $7, output_tokens = output_tokens + $8, \
     cache_read_tokens = cache_read_tokens + $9, cache_write_tokens = cache_write_tokens + $10, \
     cost_micro_usd = cost_micro_usd + COALESCE($11, 0), has_unpriced_calls = has_unpriced_calls OR $11 IS NULL, llm_calls = llm_calls + 1, \
     iterations = iterations + ($15 IS NOT NULL), last_activity_at = $4, last_call_error = $22, \
     last_seq = last_seq + (attempt = $2 AND state IN ('in_progress', 'stuck')), \
     reserved_tokens = reserved_tokens - $16, reserved_micro_usd = reserved_micro_usd - $17 \
     WHERE id = $1 AND changes() = 1 \
     RETURNING user_id, parent_id, limits, input_tokens + output_tokens + children_tokens AS tokens, \
     cost_micro_usd + children_micro_usd AS micro_usd, iterations, tool_calls, started_at, warned_limits";

/// Writes the event that [`COUNT_CALL`] has numbered.
const CALL_EVENT: &str = "INSERT INTO events (job_id, seq, attempt, at, kind, data) \
     SELECT id, last_seq, $2, $4, $18, $19 FROM jobs \
     WHERE id = $1 AND attempt = $2 AND state IN ('in_progress', 'stuck') AND changes() = 1";

/// Closes a call and settles what it cost, once.
pub(super) async fn close(tx: &mut WriteTx, call: CallRow) -> Result<Option<String>, StoreError> {
    let (finish, answer) = match &call.answer {
        Ok(completion) => (Some(completion.finish_reason.as_str()), Some(text(completion)?)),
        Err(_) => (None, None),
    };
    let failure = call.answer.as_ref().err();
    let event = call.event();
    // Each statement takes effect only where the one before it did.
    let batch = StatementBatch::new(&[CLOSE_CALL, budget::SETTLE_DAY, COUNT_CALL, CALL_EVENT]);
    let batch = call
        .key
        .bind_to(batch)
        .bind(call.at)
        .bind(call.provider.clone())
        .bind(call.model.clone())
        .bind(column(call.usage.input_tokens))
        .bind(column(call.usage.output_tokens))
        .bind(column(call.usage.cache_read_tokens))
        .bind(column(call.usage.cache_write_tokens))
        .bind(call.cost_micro_usd)
        .bind(column(call.duration_ms))
        .bind(finish)
        .bind(failure.map(|failure| failure.message.clone()))
        .bind(answer)
        .bind(column(call.reserved.amount.tokens))
        .bind(column(call.reserved.amount.micro_usd))
        .bind(event.kind().as_str())
        .bind(events::data_json(&event, JobId::from_uuid(*call.key.execution.work.as_uuid()))?)
        .bind(call.reserved.day.clone().unwrap_or_else(|| budget::day_of(call.at)))
        .bind(column(call.usage.input_tokens.saturating_add(call.usage.output_tokens)))
        .bind(failure.map(|failure| failure.kind.as_str()));
    // The budgets above a job are settled in the same transaction, which is therefore not over.
    let results = if call.reserved.draws_on_parents { tx.run(batch).await? } else { tx.run_last(batch).await? };
    if results.first().map(StatementResult::decode_first::<(i64,)>).transpose()?.flatten().is_none() {
        return Ok(None);
    }
    let after = results.get(2).map(StatementResult::decode_first::<AfterCall>).transpose()?.flatten();
    let mut warning = None;
    if let (WorkId::Job(job), Some(after)) = (call.key.execution.work, after) {
        after.settle(tx, &call).await?;
        warning = match after.warning(tx, job, call.at).await {
            // The call is recorded; a warning that was lost is sent after the next call.
            Err(error) if tx.is_committed() => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "a warning about a low budget was not recorded"
                );
                None
            }
            warning => warning?,
        };
        tx.notify_job(job, &after.user_id);
    }
    tx.after_commit(move |committed| committed.metrics.model_call(&call.measured()));
    Ok(warning)
}

impl CallRow {
    pub(super) fn measured(&self) -> ModelCall<'_> {
        ModelCall {
            provider: &self.provider,
            outcome: match &self.answer {
                Ok(_) => "answered",
                Err(CallFailure { kind: kind @ (ErrorKind::Aborted | ErrorKind::RateLimited), .. }) => kind.as_str(),
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
            cost_usd: self.cost_micro_usd.map(dollars),
            duration_ms: self.duration_ms,
            finish_reason: match &self.answer {
                Ok(completion) => completion.finish_reason.as_str().to_owned(),
                Err(_) => "error".to_owned(),
            },
        }
    }
}
