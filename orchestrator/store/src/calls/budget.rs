//! Budgets: reservations before a model call and settlements after it, in one transaction each.
//!
//! Owns the rows that a call draws on: its job, the jobs above it, its user's day. The domain decides what fits.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use protocol::{JobId, Limits};
use sqlx::FromRow;
use uuid::Uuid;

use super::model_calls::{CallRow, NewCall};
use crate::{
    Connection, Store, StoreError,
    sqlite::{
        rows::{RowRef, column},
        write_tx::{StatementResult, WriteTx},
    },
};
use domain::budget::{
    BudgetState, Consumption, DayLimits, ExhaustedBudget, Reservation, Scope, micro_dollars, reserve, running_low,
};

/// The reservations of a call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reserved {
    pub amount: Reservation,
    /// The day that it counts for.
    pub(super) day: Option<String>,
    /// Whether jobs above the job may have reserved it, too.
    pub(super) draws_on_parents: bool,
}

impl Reserved {
    /// Nothing: no budget holds this call.
    pub fn nothing(max_output_tokens: u64) -> Self {
        let amount = Reservation { max_output_tokens, ..Reservation::default() };
        Self { amount, day: None, draws_on_parents: false }
    }

    /// As it was stored with an open call.
    pub(crate) fn of(amount: Reservation, day: Option<String>) -> Self {
        Self { amount, day, draws_on_parents: true }
    }
}

#[derive(FromRow)]
struct BudgetRow {
    id: Uuid,
    limits: String,
    tokens: i64,
    micro_usd: i64,
}

/// A job and the jobs above it; no deeper than children go.
macro_rules! for_chain {
    ($rest:literal) => {
        concat!(
            "WITH RECURSIVE chain (id, parent_id, level) AS (\
             SELECT id, parent_id, 0 FROM jobs WHERE id = $1 UNION ALL \
             SELECT j.id, j.parent_id, c.level + 1 FROM jobs j JOIN chain c ON j.id = c.parent_id WHERE c.level < 3) ",
            $rest
        )
    };
}

impl Store {
    /// The current reservations of all jobs and days: tokens, micro-dollars.
    pub async fn reserved(&self) -> Result<(i64, i64), StoreError> {
        let sums = sqlx::query_as(
            "SELECT COALESCE(SUM(t), 0), COALESCE(SUM(m), 0) FROM (\
             SELECT reserved_tokens AS t, reserved_micro_usd AS m FROM jobs \
             UNION ALL SELECT reserved_tokens, reserved_micro_usd FROM user_days) AS all_of_them",
        )
        .fetch_one(&self.read)
        .await?;
        Ok(sums)
    }

    /// Users whose budget of today is used up, and the budget that is.
    pub async fn users_over_budget(
        &self,
        now: DateTime<Utc>,
        limits: &DayLimits,
    ) -> Result<HashMap<String, ExhaustedBudget>, StoreError> {
        if limits.is_none() {
            return Ok(HashMap::new());
        }
        let days: Vec<(String, i64, i64)> = sqlx::query_as(DAY).bind(day_of(now)).fetch_all(&self.read).await?;
        let known = |number: i64| u64::try_from(number).unwrap_or(0);
        let exhausted = days.into_iter().filter_map(|(user, tokens, micro_usd)| {
            limits.exhausted(known(tokens), known(micro_usd)).map(|budget| (user, budget))
        });
        Ok(exhausted.collect())
    }
}

/// The usage of each user on a day ($1). A sum that has become a float must not keep the other users' rows from being
/// read.
pub(crate) const DAY: &str = "SELECT user_id, CAST(tokens AS INTEGER) AS tokens, \
     CAST(micro_usd AS INTEGER) AS micro_usd FROM user_days WHERE day = $1";

/// Reads the budgets of a job ($1), of the jobs above it and of its user's day ($4, $5); decoded by [`budgets`]. A
/// thread or a run has only the last.
pub(crate) const READ_BUDGETS: [&str; 2] = [
    for_chain!(
        "SELECT j.id, j.limits, \
         j.input_tokens + j.output_tokens + j.children_tokens + j.reserved_tokens AS tokens, \
         j.cost_micro_usd + j.children_micro_usd + j.reserved_micro_usd AS micro_usd \
         FROM jobs j JOIN chain c ON c.id = j.id ORDER BY c.level"
    ),
    "SELECT tokens + reserved_tokens AS tokens, micro_usd + reserved_micro_usd AS micro_usd FROM user_days \
     WHERE user_id = $4 AND day = $5",
];

/// Reserves tokens ($10) and money ($11) for a job ($1), the jobs above it, and a day ($12) of a user ($13).
pub(crate) const RESERVE: [&str; 2] = [
    for_chain!(
        "UPDATE jobs SET reserved_tokens = reserved_tokens + $10, reserved_micro_usd = reserved_micro_usd + $11 \
         WHERE id IN (SELECT id FROM chain)"
    ),
    "INSERT INTO user_days (user_id, day, tokens, micro_usd, reserved_tokens, reserved_micro_usd) \
     VALUES ($13, $12, 0, 0, $10, $11) ON CONFLICT (user_id, day) DO UPDATE SET \
     reserved_tokens = user_days.reserved_tokens + excluded.reserved_tokens, \
     reserved_micro_usd = user_days.reserved_micro_usd + excluded.reserved_micro_usd",
];

/// Adds what a call ($1, $2, $3) took (tokens $21, money $11) to the day ($20) of its user, and frees what was reserved
/// ($16, $17). Only where the statement before it changed the call.
pub(crate) const SETTLE_DAY: &str = "INSERT INTO user_days (user_id, day, tokens, micro_usd, reserved_tokens, reserved_micro_usd) \
     SELECT COALESCE(c.user_id, j.user_id), $20, $21, COALESCE($11, 0), -$16, -$17 \
     FROM model_calls AS c LEFT JOIN jobs AS j ON j.id = c.work_id \
     WHERE c.work_id = $1 AND c.attempt = $2 AND c.call_id = $3 AND changes() = 1 \
     ON CONFLICT (user_id, day) DO UPDATE SET \
     tokens = user_days.tokens + excluded.tokens, micro_usd = user_days.micro_usd + excluded.micro_usd, \
     reserved_tokens = user_days.reserved_tokens + excluded.reserved_tokens, \
     reserved_micro_usd = user_days.reserved_micro_usd + excluded.reserved_micro_usd";

/// Decodes the rows of [`READ_BUDGETS`]: the budgets of the job and of the jobs above it, then of its user's day.
pub(crate) fn budgets(
    work: Uuid,
    limits: &DayLimits,
    results: &[StatementResult],
) -> Result<Vec<BudgetState>, StoreError> {
    let [chain, day] = results else { return Err(StoreError::WriterFailed) };
    let chain: Vec<BudgetRow> = chain.decode()?;
    let mut budgets = chain.iter().map(|row| row.state(work)).collect::<Result<Vec<BudgetState>, StoreError>>()?;
    let (tokens, micro_usd): (i64, i64) = day.decode_first()?.unwrap_or_default();
    budgets.push(BudgetState {
        scope: Scope::Day,
        max_tokens: limits.max_tokens,
        max_micro_usd: limits.max_micro_usd,
        tokens: u64::try_from(tokens).unwrap_or(0),
        micro_usd: u64::try_from(micro_usd).unwrap_or(0),
    });
    Ok(budgets)
}

/// The worst case of a call if every budget that it draws on has room for it, or the budget that has no room for it.
pub(crate) fn reserve_for(call: &NewCall, budgets: &[BudgetState]) -> Result<Reserved, ExhaustedBudget> {
    let draws_on_parents = budgets.iter().any(|budget| budget.scope == Scope::Parent);
    reserve(&call.estimate, budgets).map(|amount| Reserved { amount, day: Some(day_of(call.at)), draws_on_parents })
}

/// Takes back what was reserved for a call that was not made.
pub(crate) async fn release(
    tx: &mut Connection,
    work: Uuid,
    user: &str,
    reserved: &Reserved,
) -> Result<(), StoreError> {
    if reserved.day.is_none() {
        return Ok(());
    }
    sqlx::query(for_chain!(
        "UPDATE jobs SET reserved_tokens = reserved_tokens - $2, reserved_micro_usd = reserved_micro_usd - $3 \
         WHERE id IN (SELECT id FROM chain)"
    ))
    .bind(work)
    .bind(column(reserved.amount.tokens))
    .bind(column(reserved.amount.micro_usd))
    .execute(&mut *tx)
    .await?;
    sqlx::query(
        "UPDATE user_days SET reserved_tokens = reserved_tokens - $3, \
         reserved_micro_usd = reserved_micro_usd - $4 WHERE user_id = $1 AND day = $2",
    )
    .bind(user)
    .bind(reserved.day.as_deref())
    .bind(column(reserved.amount.tokens))
    .bind(column(reserved.amount.micro_usd))
    .execute(tx)
    .await?;
    Ok(())
}

/// Nothing is in flight when a process starts. What a version without open rows had reserved is freed, too.
pub(crate) async fn clear_reservations(tx: &mut Connection) -> Result<(), StoreError> {
    for statement in [
        "UPDATE jobs SET reserved_tokens = 0, reserved_micro_usd = 0 \
         WHERE reserved_tokens <> 0 OR reserved_micro_usd <> 0",
        "UPDATE user_days SET reserved_tokens = 0, reserved_micro_usd = 0 \
         WHERE reserved_tokens <> 0 OR reserved_micro_usd <> 0",
    ] {
        sqlx::query(statement).execute(&mut *tx).await?;
    }
    Ok(())
}

impl BudgetRow {
    fn state(&self, work: Uuid) -> Result<BudgetState, StoreError> {
        let row_ref = RowRef { table: "jobs", id: self.id };
        let limits: Limits = row_ref.json("limits", &self.limits)?;
        Ok(BudgetState {
            scope: if self.id == work { Scope::Job } else { Scope::Parent },
            max_tokens: limits.max_tokens,
            max_micro_usd: micro_dollars(limits.max_cost_usd),
            tokens: row_ref.number("input_tokens", self.tokens)?,
            micro_usd: row_ref.number("cost_micro_usd", self.micro_usd)?,
        })
    }
}

/// The job after a call of its was recorded.
#[derive(FromRow)]
pub(crate) struct AfterCall {
    pub(crate) user_id: String,
    parent_id: Option<Uuid>,
    limits: String,
    tokens: i64,
    micro_usd: i64,
    iterations: i64,
    tool_calls: i64,
    started_at: Option<DateTime<Utc>>,
    warned_limits: i64,
}

impl AfterCall {
    /// Settles the call in the jobs above.
    pub(crate) async fn settle(&self, tx: &mut WriteTx, call: &CallRow) -> Result<(), StoreError> {
        if let Some(parent) = self.parent_id {
            sqlx::query(for_chain!(
                "UPDATE jobs SET reserved_tokens = reserved_tokens - $2, reserved_micro_usd = reserved_micro_usd - $3, \
                 children_tokens = children_tokens + $4, children_micro_usd = children_micro_usd + $5 \
                 WHERE id IN (SELECT id FROM chain)"
            ))
            .bind(parent)
            .bind(column(call.reserved.amount.tokens))
            .bind(column(call.reserved.amount.micro_usd))
            .bind(column(call.usage.input_tokens.saturating_add(call.usage.output_tokens)))
            .bind(call.cost_micro_usd.unwrap_or(0))
            .execute(&mut tx.db)
            .await?;
        }
        Ok(())
    }

    /// Returns a warning about budgets that have begun to run low, recorded so that each is sent once.
    pub(crate) async fn warning(
        &self,
        tx: &mut WriteTx,
        job: JobId,
        now: DateTime<Utc>,
    ) -> Result<Option<String>, StoreError> {
        let row_ref = RowRef { table: "jobs", id: *job.as_uuid() };
        let seconds = self.started_at.map_or(0, |at| (now - at).num_seconds().max(0));
        let progress = Consumption {
            tokens: row_ref.number("input_tokens", self.tokens)?,
            micro_usd: row_ref.number("cost_micro_usd", self.micro_usd)?,
            iterations: row_ref.number("iterations", self.iterations)?,
            tool_calls: row_ref.number("tool_calls", self.tool_calls)?,
            seconds: row_ref.number("started_at", seconds)?,
        };
        let warned: u8 = row_ref.number("warned_limits", self.warned_limits)?;
        let (low, notice) = running_low(&row_ref.json("limits", &self.limits)?, &progress, warned);
        if low != warned {
            sqlx::query("UPDATE jobs SET warned_limits = $1 WHERE id = $2")
                .bind(i64::from(low))
                .bind(job)
                .execute(&mut tx.db)
                .await?;
        }
        Ok(notice)
    }
}

pub(crate) fn day_of(at: DateTime<Utc>) -> String {
    at.format("%F").to_string()
}
