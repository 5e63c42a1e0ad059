//! What automation could not do for routines: one notification for each routine and day.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use protocol::{BudgetPeriod, NotificationKind, RoutineId};
use serde_json::json;
use sqlx::FromRow;

use super::{
    super::{
        NewNotification, Store, StoreError,
        sqlite::{rows::text, write_tx::WriteTx},
    },
    notifications,
    rows::time_text,
    runs::budgets,
};
use domain::routine::problem::AutomationProblem;

impl Store {
    /// Tells the owner of a routine what automation could not do for it, unless they were told of a problem of the
    /// routine on the same day, in their time zone. Then nothing is written, as for a routine that was deleted.
    pub async fn report_automation_problem(
        &self,
        routine: RoutineId,
        problem: AutomationProblem,
        now: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        self.write(transaction!(|tx| report(tx, routine, &problem, now).await)).await
    }
}

#[derive(FromRow)]
struct OwnedRoutine {
    id: RoutineId,
    user_id: String,
    name: String,
    problem_day: Option<DateTime<Utc>>,
    timezone: Option<String>,
}

/// Like [`Store::report_automation_problem`], in a transaction.
pub(super) async fn report(
    tx: &mut WriteTx,
    routine: RoutineId,
    problem: &AutomationProblem,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    report_all(tx, &[routine], problem, now).await
}

/// Like [`report`], for several routines with the same problem.
pub(super) async fn report_all(
    tx: &mut WriteTx,
    routines: &[RoutineId],
    problem: &AutomationProblem,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    if routines.is_empty() {
        return Ok(());
    }
    let ids: BTreeSet<&RoutineId> = routines.iter().collect();
    let rows: Vec<OwnedRoutine> = sqlx::query_as(
        "SELECT r.id, r.user_id, r.name, r.problem_day, CASE WHEN json_valid(s.settings) THEN s.settings->>'timezone' END AS timezone \
         FROM json_each($1) AS j CROSS JOIN routines AS r ON r.id = unhex(j.value, '-') \
         LEFT JOIN user_settings AS s ON s.user_id = r.user_id",
    )
    .bind(text(&ids)?)
    .fetch_all(&mut tx.db)
    .await?;
    let (mut days, mut notices) = (Vec::new(), Vec::new());
    for OwnedRoutine { id: routine, user_id, name, problem_day, timezone } in rows {
        let today = budgets::period_start(BudgetPeriod::Day, timezone.as_deref().unwrap_or("UTC"), now);
        if problem_day == Some(today) {
            continue;
        }
        days.push(json!({"id": routine, "day": time_text(today)}));
        let title = format!("Automation problem: {name}");
        let notice = NewNotification::new(&user_id, NotificationKind::AutomationProblem, title, problem.text());
        notices.push((routine, notice));
    }
    if notices.is_empty() {
        return Ok(());
    }
    sqlx::query(
        "UPDATE routines SET problem_day = j.value->>'day' FROM json_each($1) AS j \
         WHERE routines.id = unhex(j.value->>'id', '-')",
    )
    .bind(text(&days)?)
    .execute(&mut tx.db)
    .await?;
    notifications::insert_all(tx, notices, now).await
}
