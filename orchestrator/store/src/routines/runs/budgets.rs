//! What the runs of a routine have used in the current period of its budget.

use std::collections::{BTreeSet, HashMap};

use chrono::{DateTime, Utc};
use protocol::{Budget, BudgetPeriod, BudgetUse, Guardrails, Routine, RoutineId};
use sqlx::FromRow;

use crate::{
    Store, StoreError,
    sqlite::{
        rows::{RowRef, column, count, text},
        write_tx::WriteTx,
    },
    users::settings::timezone,
};
use base::Zone;
use domain::routine::budget_period::period_at;

impl Store {
    /// Sets what the runs of routines have used to that of the current periods of their budgets.
    pub async fn set_current_budget_use(&self, routines: &mut [Routine], now: DateTime<Utc>) -> Result<(), StoreError> {
        let has_budget = |routine: &&Routine| routine.guardrails.budget.is_some();
        let users: BTreeSet<&str> =
            routines.iter().filter(has_budget).map(|routine| routine.user_id.as_str()).collect();
        if users.is_empty() {
            return Ok(());
        }
        let zones: HashMap<String, Option<String>> =
            sqlx::query_as(TIMEZONES).bind(text(&users)?).fetch_all(&self.read).await?.into_iter().collect();
        for routine in routines {
            let Some(budget) = routine.guardrails.budget else { continue };
            let zone = zones.get(&routine.user_id).and_then(Option::as_deref).unwrap_or("UTC");
            let since = period_start(budget.per, zone, now);
            let used = routine.budget_used.filter(|used| used.since == since);
            routine.budget_used = Some(used.unwrap_or(BudgetUse { tokens: 0, cost_usd: 0.0, since }));
        }
        Ok(())
    }
}

/// The time zones of users ($1).
const TIMEZONES: &str = "SELECT user_id, CASE WHEN json_valid(settings) THEN settings->>'timezone' END FROM user_settings \
     WHERE user_id IN (SELECT value FROM json_each($1))";

/// When the current period of a budget began, in a user's time zone.
pub(in crate::routines) fn period_start(per: BudgetPeriod, zone: &str, now: DateTime<Utc>) -> DateTime<Utc> {
    period_at(per, zone.parse().unwrap_or(Zone::UTC), now).start
}

/// Adds what an attempt of a run used.
pub(in crate::routines) async fn add(
    tx: &mut WriteTx,
    routine: &Routine,
    tokens: u64,
    cost_usd: f64,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let Some(budget) = routine.guardrails.budget else { return Ok(()) };
    let from = period_start(budget.per, &timezone(&mut tx.db, &routine.user_id).await?, now);
    sqlx::query(
        "UPDATE routines SET budget_tokens = CASE WHEN budget_from = $2 THEN budget_tokens ELSE 0 END + $3, \
         budget_cost_usd = CASE WHEN budget_from = $2 THEN budget_cost_usd ELSE 0 END + $4, \
         budget_notified = CASE WHEN budget_from = $2 THEN budget_notified ELSE FALSE END, budget_from = $2 WHERE id = $1",
    )
    .bind(routine.id)
    .bind(from)
    .bind(column(tokens))
    .bind(cost_usd)
    .execute(&mut tx.db)
    .await?;
    Ok(())
}

#[derive(FromRow)]
struct BudgetRow {
    user_id: String,
    guardrails: String,
    budget_from: Option<DateTime<Utc>>,
    budget_tokens: i64,
    budget_cost_usd: f64,
}

/// Whether the budget of a routine's current period is spent.
pub(in crate::routines) async fn is_spent(
    tx: &mut WriteTx,
    routine: RoutineId,
    now: DateTime<Utc>,
) -> Result<bool, StoreError> {
    let row: Option<BudgetRow> = sqlx::query_as(
        "SELECT user_id, guardrails, budget_from, budget_tokens, budget_cost_usd FROM routines WHERE id = $1",
    )
    .bind(routine)
    .fetch_optional(&mut tx.db)
    .await?;
    let Some(row) = row else { return Ok(false) };
    let guardrails: Guardrails =
        RowRef { table: "routines", id: *routine.as_uuid() }.json("guardrails", &row.guardrails)?;
    let Some(budget) = guardrails.budget else { return Ok(false) };
    let from = period_start(budget.per, &timezone(&mut tx.db, &row.user_id).await?, now);
    Ok(row.budget_from == Some(from) && is_over(&budget, row.budget_tokens, row.budget_cost_usd))
}

/// Whether what was used in the current period is all that the budget allows.
pub(in crate::routines) fn is_over(budget: &Budget, tokens: i64, cost_usd: f64) -> bool {
    budget.max_tokens.is_some_and(|max| count(tokens) >= max) || budget.max_cost_usd.is_some_and(|max| cost_usd >= max)
}

/// Sums up the current period again, for a budget that is new or has another period. Runs that retention has deleted
/// are not in it.
pub(in crate::routines) async fn recount(
    tx: &mut WriteTx,
    routine: &Routine,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let Some(budget) = routine.guardrails.budget else { return Ok(()) };
    let from = period_start(budget.per, &timezone(&mut tx.db, &routine.user_id).await?, now);
    sqlx::query(
        "UPDATE routines SET budget_from = $2, budget_notified = FALSE, \
         (budget_tokens, budget_cost_usd) = (SELECT COALESCE(SUM(tokens_used), 0), COALESCE(SUM(cost_usd), 0) \
         FROM routine_runs WHERE routine_id = $1 AND completed_at >= $2) WHERE id = $1",
    )
    .bind(routine.id)
    .bind(from)
    .execute(&mut tx.db)
    .await?;
    Ok(())
}
