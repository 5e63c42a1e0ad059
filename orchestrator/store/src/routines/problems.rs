//! What automation could not do for routines: one notification for each routine and day.

use chrono::{DateTime, Utc};
use protocol::{BudgetPeriod, NotificationKind, RoutineId};

use super::{
    super::{NewNotification, Store, StoreError, sqlite::write_tx::WriteTx},
    notifications,
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
    let owner: Option<(String, String, Option<DateTime<Utc>>)> =
        sqlx::query_as("SELECT user_id, name, problem_day FROM routines WHERE id = $1")
            .bind(routine)
            .fetch_optional(&mut tx.db)
            .await?;
    let Some((user, name, problem_day)) = owner else { return Ok(()) };
    let today = budgets::period_start(BudgetPeriod::Day, &budgets::timezone(&mut tx.db, &user).await?, now);
    if problem_day == Some(today) {
        return Ok(());
    }
    sqlx::query("UPDATE routines SET problem_day = $2 WHERE id = $1")
        .bind(routine)
        .bind(today)
        .execute(&mut tx.db)
        .await?;
    let title = format!("Automation problem: {name}");
    let notice = NewNotification::new(&user, NotificationKind::AutomationProblem, title, problem.text());
    notifications::insert(tx, routine, notice, now).await
}
