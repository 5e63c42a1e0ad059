//! Model calls of chat threads and of runs of routines: opened before a provider is asked, closed before the answer is
//! used.
//!
//! They draw on the budget of their user's day and on no other. The thread itself has no totals. A run is a separate
//! thread, which has its id and no entries; its attempts are the turns.

use chrono::{DateTime, Utc};
use protocol::{CallId, Completion, RunId, ThreadId};
use sqlx::FromRow;

use super::{
    super::{
        Connection, Reserved, Store, StoreError, TurnKey, WriteTx, budget,
        rows::{RowRef, column, count, dollars, text},
    },
    CallRow, CallsMade, KnownCall, NewCall, OpenedCall, known_answer,
};
use domain::budget::{BudgetState, Scope};

/// Names a model call of a thread or a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadCallKey {
    /// The turn that makes it.
    pub turn: TurnKey,
    /// Unique within the turn.
    pub call_id: CallId,
}

impl Store {
    /// The recorded answers of a turn, in order: what the model said, with the opaque signatures of its calls.
    pub async fn chat_turn_answers(&self, thread: ThreadId) -> Result<Vec<Completion>, StoreError> {
        let rows: Vec<String> = sqlx::query_scalar(
            "SELECT answer FROM thread_calls WHERE thread_id = $1 AND answer IS NOT NULL ORDER BY rowid",
        )
        .bind(thread)
        .fetch_all(&self.read)
        .await?;
        let row_ref = RowRef { table: "thread_calls", id: *thread.as_uuid() };
        rows.iter().map(|answer| row_ref.json("answer", answer)).collect()
    }
}

/// What the model calls of a run have used.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RunUsage {
    /// Tokens, input and output.
    pub tokens: u64,
    /// Cost; `None` when a call had no price.
    pub cost_usd: Option<f64>,
}

impl Store {
    /// What the model calls of a run have used since a time. A call that is still open counts with the estimate that it
    /// is charged if it is aborted. `None`: there is no call.
    pub async fn run_usage(&self, run: RunId, since: DateTime<Utc>) -> Result<Option<RunUsage>, StoreError> {
        let (calls, tokens, priced, micro_usd): (i64, i64, i64, i64) = sqlx::query_as(
            "SELECT COUNT(*), COALESCE(SUM(CASE WHEN is_open THEN estimated_tokens ELSE input_tokens + output_tokens END), 0), \
             COUNT(CASE WHEN is_open THEN estimated_micro_usd ELSE cost_micro_usd END), \
             COALESCE(SUM(CASE WHEN is_open THEN estimated_micro_usd ELSE cost_micro_usd END), 0) \
             FROM thread_calls WHERE thread_id = $1 AND at >= $2",
        )
        .bind(run)
        .bind(since)
        .fetch_one(&self.read)
        .await?;
        let cost_usd = (priced == calls).then(|| dollars(micro_usd));
        Ok((calls > 0).then(|| RunUsage { tokens: count(tokens), cost_usd }))
    }
}

/// Forgets the answers of a thread's calls: its transcript has them, or the thread is deleted.
pub(crate) async fn forget_answers(db: &mut Connection, thread: ThreadId) -> Result<(), StoreError> {
    sqlx::query("UPDATE thread_calls SET answer = NULL WHERE thread_id = $1 AND answer IS NOT NULL")
        .bind(thread)
        .execute(db)
        .await?;
    Ok(())
}

#[derive(FromRow)]
struct CallsRow {
    answered: i64,
    made: i64,
    open: i64,
}

/// Counts a call against its turn's quota, reserves its worst case, and writes its row.
pub(super) async fn open(tx: &mut WriteTx, key: &ThreadCallKey, call: &NewCall) -> Result<OpenedCall, StoreError> {
    if !is_live(tx, key.turn).await? {
        return Ok(OpenedCall::NotLive);
    }
    let known = known(&mut tx.db, key).await?;
    if let Some(known) = known.filter(|one| one.answer.is_some() || !one.is_same_request(&call.request_digest)) {
        return Ok(OpenedCall::Known(known));
    }
    let made: CallsRow = sqlx::query_as(
        "SELECT COUNT(finish_reason) AS answered, COUNT(*) FILTER (WHERE NOT is_open) AS made, \
         COUNT(*) FILTER (WHERE is_open) AS open FROM thread_calls WHERE thread_id = $1 AND turn = $2",
    )
    .bind(key.turn.thread)
    .bind(i64::from(key.turn.turn))
    .fetch_one(&mut tx.db)
    .await?;
    let open = count(made.open);
    let made = CallsMade { answered: count(made.answered), all: count(made.made) };
    if made.answered + open >= call.quota.max_answers || made.all + open >= call.quota.max_calls {
        return Ok(OpenedCall::LimitReached(made));
    }
    let reserved = match reserve(tx, call).await? {
        Ok(reserved) => reserved,
        Err(exhausted) => return Ok(OpenedCall::BudgetExceeded(exhausted)),
    };
    insert(tx, key, call, &reserved).await?;
    Ok(OpenedCall::Open { reserved, made })
}

/// Whether the thread is processing this turn, or the run is in progress with this attempt.
async fn is_live(tx: &mut WriteTx, turn: TurnKey) -> Result<bool, StoreError> {
    let found: Option<i64> = sqlx::query_scalar(
        "SELECT 1 FROM chat_threads WHERE id = $1 AND turn = $2 AND state = 'processing' \
             UNION ALL SELECT 1 FROM routine_runs WHERE id = $1 AND attempt = $2 AND status = 'running'",
    )
    .bind(turn.thread)
    .bind(i64::from(turn.turn))
    .fetch_optional(&mut tx.db)
    .await?;
    Ok(found.is_some())
}

/// Reserves the call's worst case in the budget of the user's day, if there is one.
async fn reserve(
    tx: &mut WriteTx,
    call: &NewCall,
) -> Result<Result<Reserved, domain::budget::ExhaustedBudget>, StoreError> {
    let Some(limits) = call.budget else { return Ok(Ok(Reserved::nothing(call.estimate.max_output_tokens))) };
    let used: Option<(i64, i64)> = sqlx::query_as(
        "SELECT tokens + reserved_tokens, micro_usd + reserved_micro_usd FROM user_days WHERE user_id = $1 AND day = $2",
    )
    .bind(&call.user)
    .bind(budget::day_of(call.at))
    .fetch_optional(&mut tx.db)
    .await?;
    let (tokens, micro_usd) = used.unwrap_or_default();
    let day = BudgetState {
        scope: Scope::Day,
        max_tokens: limits.max_tokens,
        max_micro_usd: limits.max_micro_usd,
        tokens: count(tokens),
        micro_usd: count(micro_usd),
    };
    let reserved = match budget::reserve_for(call, &[day]) {
        Ok(reserved) => reserved,
        Err(exhausted) => return Ok(Err(exhausted)),
    };
    let charge = DayCharge {
        user: &call.user,
        day: reserved.day().unwrap_or_default(),
        used: (0, 0),
        reserved: (column(reserved.amount.tokens), column(reserved.amount.micro_usd)),
    };
    charge.add(&mut tx.db).await?;
    Ok(Ok(reserved))
}

/// A change of a user's day: tokens, micro-dollars.
struct DayCharge<'a> {
    user: &'a str,
    day: &'a str,
    used: (i64, i64),
    reserved: (i64, i64),
}

impl DayCharge<'_> {
    async fn add(&self, db: &mut Connection) -> Result<(), StoreError> {
        sqlx::query(
            "INSERT INTO user_days (user_id, day, tokens, micro_usd, reserved_tokens, reserved_micro_usd) \
             VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (user_id, day) DO UPDATE SET \
             tokens = user_days.tokens + excluded.tokens, micro_usd = user_days.micro_usd + excluded.micro_usd, \
             reserved_tokens = user_days.reserved_tokens + excluded.reserved_tokens, \
             reserved_micro_usd = user_days.reserved_micro_usd + excluded.reserved_micro_usd",
        )
        .bind(self.user)
        .bind(self.day)
        .bind(self.used.0)
        .bind(self.used.1)
        .bind(self.reserved.0)
        .bind(self.reserved.1)
        .execute(db)
        .await?;
        Ok(())
    }
}

/// Writes the row of a call; the usage of earlier tries of the same call stays.
async fn insert(tx: &mut WriteTx, key: &ThreadCallKey, call: &NewCall, reserved: &Reserved) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO thread_calls (thread_id, turn, call_id, user_id, at, provider, model, request_digest, is_open, \
         estimated_tokens, estimated_micro_usd, reserved_tokens, reserved_micro_usd, reserved_day) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, TRUE, $9, $10, $11, $12, $13) \
         ON CONFLICT (thread_id, turn, call_id) DO UPDATE SET at = excluded.at, is_open = TRUE, finish_reason = NULL, \
         error = NULL, tries = thread_calls.tries + 1, estimated_tokens = excluded.estimated_tokens, \
         estimated_micro_usd = excluded.estimated_micro_usd, reserved_tokens = excluded.reserved_tokens, \
         reserved_micro_usd = excluded.reserved_micro_usd, reserved_day = excluded.reserved_day",
    )
    .bind(key.turn.thread)
    .bind(i64::from(key.turn.turn))
    .bind(&key.call_id.0)
    .bind(&call.user)
    .bind(call.at)
    .bind(&call.provider)
    .bind(&call.model)
    .bind(&call.request_digest)
    .bind(column(call.estimate.prompt_tokens))
    .bind(call.estimate.prompt_cost().map(column))
    .bind(column(reserved.amount.tokens))
    .bind(column(reserved.amount.micro_usd))
    .bind(reserved.day())
    .execute(&mut tx.db)
    .await?;
    Ok(())
}

/// A call that was made before, by its name.
pub(super) async fn known<'c>(
    db: impl sqlx::Executor<'c, Database = sqlx::Sqlite>,
    key: &ThreadCallKey,
) -> Result<Option<KnownCall>, StoreError> {
    let row: Option<(Option<String>, Option<String>)> = sqlx::query_as(
        "SELECT request_digest, answer FROM thread_calls WHERE thread_id = $1 AND turn = $2 AND call_id = $3",
    )
    .bind(key.turn.thread)
    .bind(i64::from(key.turn.turn))
    .bind(&key.call_id.0)
    .fetch_optional(db)
    .await?;
    let row_ref = RowRef { table: "thread_calls", id: *key.turn.thread.as_uuid() };
    row.map(|(digest, answer)| known_answer(row_ref, digest, answer)).transpose()
}

/// Closes a call and charges the user's day, once. There is no warning: a thread has no budget that runs low.
pub(super) async fn close(tx: &mut WriteTx, key: ThreadCallKey, call: CallRow) -> Result<Option<String>, StoreError> {
    let (finish, error, answer) = match &call.answer {
        Ok(completion) => (Some(completion.finish_reason.as_str()), None, Some(text(completion)?)),
        Err(failure) => (None, Some(failure.message.clone()), None),
    };
    let user: Option<String> = sqlx::query_scalar(
        "UPDATE thread_calls SET is_open = FALSE, at = $4, provider = $5, model = $6, \
         input_tokens = input_tokens + $7, output_tokens = output_tokens + $8, \
         cache_read_tokens = cache_read_tokens + $9, cache_write_tokens = cache_write_tokens + $10, \
         cost_micro_usd = cost_micro_usd + $11, duration_ms = duration_ms + $12, finish_reason = $13, error = $14, \
         answer = CASE WHEN EXISTS (SELECT 1 FROM chat_threads WHERE id = $1) THEN $15 END, \
         reserved_tokens = 0, reserved_micro_usd = 0 \
         WHERE thread_id = $1 AND turn = $2 AND call_id = $3 AND is_open RETURNING user_id",
    )
    .bind(key.turn.thread)
    .bind(i64::from(key.turn.turn))
    .bind(&key.call_id.0)
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
    .fetch_optional(&mut tx.db)
    .await?;
    let Some(user) = user else { return Ok(None) };
    let day = call.reserved.day().map_or_else(|| budget::day_of(call.at), str::to_owned);
    let spent = column(call.usage.input_tokens.saturating_add(call.usage.output_tokens));
    let charge = DayCharge {
        user: &user,
        day: &day,
        used: (spent, call.cost_micro_usd.unwrap_or(0)),
        reserved: (-column(call.reserved.amount.tokens), -column(call.reserved.amount.micro_usd)),
    };
    charge.add(&mut tx.db).await?;
    tx.after_commit(move |committed| committed.metrics.model_call(&call.measured()));
    Ok(None)
}

/// Takes an open call back: no provider was asked.
pub(super) async fn release(
    db: &mut Connection,
    key: &ThreadCallKey,
    user: &str,
    reserved: &Reserved,
) -> Result<(), StoreError> {
    let mut changed = 0;
    for statement in [
        "DELETE FROM thread_calls WHERE thread_id = $1 AND turn = $2 AND call_id = $3 AND is_open AND tries = 1",
        "UPDATE thread_calls SET is_open = FALSE, tries = tries - 1 \
         WHERE thread_id = $1 AND turn = $2 AND call_id = $3 AND is_open",
    ] {
        changed += sqlx::query(statement)
            .bind(key.turn.thread)
            .bind(i64::from(key.turn.turn))
            .bind(&key.call_id.0)
            .execute(&mut *db)
            .await?
            .rows_affected();
    }
    let (Some(day), true) = (reserved.day(), changed > 0) else { return Ok(()) };
    let freed = (-column(reserved.amount.tokens), -column(reserved.amount.micro_usd));
    DayCharge { user, day, used: (0, 0), reserved: freed }.add(db).await
}
