//! What automation could not do for routines: one notification for each routine and day.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use protocol::{BudgetPeriod, NotificationKind, RoutineId};
use serde_json::json;

use super::{
    super::{
        Store, StoreError,
        sqlite::{rows::text, write_tx::WriteTx},
    },
    notifications::{self, RoutineNotification},
    rows::{hex, time_text},
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
    let ids: BTreeSet<String> = routines.iter().map(|routine| hex(routine.as_uuid())).collect();
    let rows: Vec<(RoutineId, String, Option<DateTime<Utc>>, Option<String>)> = sqlx::query_as(
        "SELECT r.id, r.name, r.problem_day, CASE WHEN json_valid(s.settings) THEN s.settings->>'timezone' END \
         FROM json_each($1) AS j CROSS JOIN routines AS r ON r.id = unhex(j.value) LEFT JOIN user_settings AS s ON s.user_id = r.user_id",
    )
    .bind(text(&ids)?)
    .fetch_all(&mut tx.db)
    .await?;
    let (mut days, mut notices) = (Vec::new(), Vec::new());
    for (routine, name, problem_day, zone) in rows {
        let today = budgets::period_start(BudgetPeriod::Day, zone.as_deref().unwrap_or("UTC"), now);
        if problem_day == Some(today) {
            continue;
        }
        days.push(json!({"id": hex(routine.as_uuid()), "day": time_text(today)}));
        let notice = RoutineNotification {
            kind: NotificationKind::AutomationProblem,
            title: format!("Automation problem: {name}"),
            text: problem.text(),
            run: None,
            job: None,
        };
        notices.push((routine, notice));
    }
    sqlx::query(
        "UPDATE routines SET problem_day = j.value->>'day' FROM json_each($1) AS j WHERE routines.id = unhex(j.value->>'id')",
    )
    .bind(text(&days)?)
    .execute(&mut tx.db)
    .await?;
    notifications::insert_all(tx, notices, now).await
}
