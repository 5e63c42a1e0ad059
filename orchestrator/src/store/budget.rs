//! Budgets: what is put aside before a model call and settled after it, in one transaction each.
//!
//! Owns the rows that a call draws on: its job, the jobs above it, its user's day. What fits is the domain's to say.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use protocol::{JobId, Limits};
use sqlx::FromRow;
use uuid::Uuid;

use super::{
    Connection, Store, StoreError,
    calls::{CallRow, NewCall},
    rows::{Place, column},
};
use crate::domain::budget::{
    Balance, DayLimits, Progress, Reservation, Spent, Whose, micro_dollars, reserve, running_low,
};

/// What a call has put aside, and where.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reserved {
    /// How much.
    pub amount: Reservation,
    /// The day that it counts for.
    day: Option<String>,
}

impl Reserved {
    /// Nothing: no budget holds this call.
    pub fn nothing(max_output_tokens: u64) -> Self {
        Self { amount: Reservation { max_output_tokens, ..Reservation::default() }, day: None }
    }

    /// As it was stored with an open call.
    pub(super) fn of(amount: Reservation, day: Option<String>) -> Self {
        Self { amount, day }
    }

    pub(super) fn day(&self) -> Option<&str> {
        self.day.as_deref()
    }
}

#[derive(FromRow)]
struct BalanceRow {
    id: Uuid,
    limits: String,
    tokens: i64,
    micro_usd: i64,
}

/// A job and the jobs above it; no deeper than children go (contract: jobs, Budgets).
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
    /// What is put aside at this moment, in jobs and days together: tokens, micro-dollars.
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

    /// Users whose budget of today is used up, and which.
    pub async fn spent_days(
        &self,
        now: DateTime<Utc>,
        limits: &DayLimits,
    ) -> Result<HashMap<String, Spent>, StoreError> {
        if limits.is_none() {
            return Ok(HashMap::new());
        }
        let days: Vec<(String, i64, i64)> =
            sqlx::query_as("SELECT user_id, tokens, micro_usd FROM user_days WHERE day = $1")
                .bind(day_of(now))
                .fetch_all(&self.read)
                .await?;
        let known = |number: i64| u64::try_from(number).unwrap_or(0);
        let spent = days.into_iter().filter_map(|(user, tokens, micro_usd)| {
            limits.spent(known(tokens), known(micro_usd)).map(|spent| (user, spent))
        });
        Ok(spent.collect())
    }
}

/// Reserves the worst case of a call in every budget that it draws on, or says which has no room; then nothing changes.
pub(super) async fn reserve_for(
    tx: &mut Connection,
    call: &NewCall,
    day_limits: &DayLimits,
) -> Result<Result<Reserved, Spent>, StoreError> {
    let job = call.key.job;
    let chain: Vec<BalanceRow> = sqlx::query_as(for_chain!(
        "SELECT j.id, j.limits, \
         j.input_tokens + j.output_tokens + j.children_tokens + j.reserved_tokens AS tokens, \
         j.cost_micro_usd + j.children_micro_usd + j.reserved_micro_usd AS micro_usd \
         FROM jobs j JOIN chain c ON c.id = j.id ORDER BY c.level"
    ))
    .bind(*job.as_uuid())
    .fetch_all(&mut *tx)
    .await?;
    let mut balances = Vec::with_capacity(chain.len() + 1);
    for row in &chain {
        balances.push(row.balance(job)?);
    }
    let day = day_of(call.at);
    balances.push(day_balance(tx, &call.user, &day, day_limits).await?);
    let amount = match reserve(&call.quote, &balances) {
        Ok(amount) => amount,
        Err(spent) => return Ok(Err(spent)),
    };
    sqlx::query(for_chain!(
        "UPDATE jobs SET reserved_tokens = reserved_tokens + $2, reserved_micro_usd = reserved_micro_usd + $3 \
         WHERE id IN (SELECT id FROM chain)"
    ))
    .bind(*job.as_uuid())
    .bind(column(amount.tokens))
    .bind(column(amount.micro_usd))
    .execute(&mut *tx)
    .await?;
    let reserved = Reserved { amount, day: Some(day) };
    change_day(tx, &call.user, &reserved, (0, 0), 1).await?;
    Ok(Ok(reserved))
}

/// Takes back what was reserved for a call that was not made.
pub(super) async fn release(
    tx: &mut Connection,
    job: JobId,
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
    .bind(*job.as_uuid())
    .bind(column(reserved.amount.tokens))
    .bind(column(reserved.amount.micro_usd))
    .execute(&mut *tx)
    .await?;
    change_day(tx, user, reserved, (0, 0), -1).await
}

/// Nothing is in flight when a process starts. What a version without open rows had reserved is freed, too.
pub(super) async fn clear_reservations(tx: &mut Connection) -> Result<(), StoreError> {
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

impl BalanceRow {
    fn balance(&self, job: JobId) -> Result<Balance, StoreError> {
        let place = Place { table: "jobs", id: self.id };
        let limits: Limits = place.json("limits", &self.limits)?;
        Ok(Balance {
            whose: if self.id == *job.as_uuid() { Whose::Job } else { Whose::Parent },
            max_tokens: limits.max_tokens,
            max_micro_usd: micro_dollars(limits.max_cost_usd),
            tokens: place.number("input_tokens", self.tokens)?,
            micro_usd: place.number("cost_micro_usd", self.micro_usd)?,
        })
    }
}

/// The job after a call of its was recorded.
#[derive(FromRow)]
pub(super) struct AfterCall {
    pub(super) last_seq: i64,
    pub(super) live: bool,
    pub(super) user_id: String,
    pub(super) parent_id: Option<Uuid>,
    limits: String,
    tokens: i64,
    micro_usd: i64,
    iterations: i64,
    tool_calls: i64,
    started_at: Option<DateTime<Utc>>,
    told_low: i64,
}

impl AfterCall {
    /// What is new about its budgets running low, remembered so that it is told once.
    pub(super) async fn tell(&self, tx: &mut Connection, call: &CallRow) -> Result<Option<String>, StoreError> {
        let place = Place { table: "jobs", id: *call.key.job.as_uuid() };
        let seconds = self.started_at.map_or(0, |at| (call.at - at).num_seconds().max(0));
        let progress = Progress {
            tokens: place.number("input_tokens", self.tokens)?,
            micro_usd: place.number("cost_micro_usd", self.micro_usd)?,
            iterations: place.number("iterations", self.iterations)?,
            tool_calls: place.number("tool_calls", self.tool_calls)?,
            seconds: place.number("started_at", seconds)?,
        };
        let told: u8 = place.number("told_low", self.told_low)?;
        let (low, notice) = running_low(&place.json("limits", &self.limits)?, &progress, told);
        if low != told {
            sqlx::query("UPDATE jobs SET told_low = $1 WHERE id = $2")
                .bind(i64::from(low))
                .bind(*call.key.job.as_uuid())
                .execute(tx)
                .await?;
        }
        Ok(notice)
    }
}

/// Settles what a call really took: the day and the jobs above; its own row is `close_model_call`'s.
pub(super) async fn settle(
    tx: &mut Connection,
    call: &CallRow,
    user: &str,
    parent: Option<Uuid>,
) -> Result<(), StoreError> {
    let tokens = column(call.usage.input_tokens.saturating_add(call.usage.output_tokens));
    let micro_usd = call.cost_micro_usd.unwrap_or(0);
    if let Some(parent) = parent {
        sqlx::query(for_chain!(
            "UPDATE jobs SET reserved_tokens = reserved_tokens - $2, reserved_micro_usd = reserved_micro_usd - $3, \
             children_tokens = children_tokens + $4, children_micro_usd = children_micro_usd + $5 \
             WHERE id IN (SELECT id FROM chain)"
        ))
        .bind(parent)
        .bind(column(call.reserved.amount.tokens))
        .bind(column(call.reserved.amount.micro_usd))
        .bind(tokens)
        .bind(micro_usd)
        .execute(&mut *tx)
        .await?;
    }
    let mut reserved = call.reserved.clone();
    reserved.day.get_or_insert_with(|| day_of(call.at));
    change_day(tx, user, &reserved, (tokens, micro_usd), -1).await
}

async fn day_balance(tx: &mut Connection, user: &str, day: &str, limits: &DayLimits) -> Result<Balance, StoreError> {
    let known: Option<(i64, i64)> = sqlx::query_as(
        "SELECT tokens + reserved_tokens, micro_usd + reserved_micro_usd FROM user_days WHERE user_id = $1 AND day = $2",
    )
    .bind(user)
    .bind(day)
    .fetch_optional(tx)
    .await?;
    let (tokens, micro_usd) = known.unwrap_or_default();
    Ok(Balance {
        whose: Whose::Day,
        max_tokens: limits.max_tokens,
        max_micro_usd: limits.max_micro_usd,
        tokens: u64::try_from(tokens).unwrap_or(0),
        micro_usd: u64::try_from(micro_usd).unwrap_or(0),
    })
}

/// Adds what was spent to a user's day, and what is reserved, or (`sign` -1) takes that off again.
async fn change_day(
    tx: &mut Connection,
    user: &str,
    reserved: &Reserved,
    (tokens, micro_usd): (i64, i64),
    sign: i64,
) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO user_days (user_id, day, tokens, micro_usd, reserved_tokens, reserved_micro_usd) \
         VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT (user_id, day) DO UPDATE SET \
         tokens = user_days.tokens + excluded.tokens, micro_usd = user_days.micro_usd + excluded.micro_usd, \
         reserved_tokens = user_days.reserved_tokens + excluded.reserved_tokens, \
         reserved_micro_usd = user_days.reserved_micro_usd + excluded.reserved_micro_usd",
    )
    .bind(user)
    .bind(reserved.day.as_deref().unwrap_or_default())
    .bind(tokens)
    .bind(micro_usd)
    .bind(sign * column(reserved.amount.tokens))
    .bind(sign * column(reserved.amount.micro_usd))
    .execute(tx)
    .await?;
    Ok(())
}

/// The day in UTC.
fn day_of(at: DateTime<Utc>) -> String {
    at.format("%F").to_string()
}
