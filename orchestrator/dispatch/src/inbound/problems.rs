//! Tells the owner of a routine about what arrived and could not be decided.

use protocol::RoutineId;

use base::clock::Clock;
use domain::routine::problem::AutomationProblem;
use store::Store;

/// Logs a problem and notifies the routine's owner, at most once a day.
pub(super) async fn report_problem(store: &Store, clock: &Clock, routine: RoutineId, problem: AutomationProblem) {
    tracing::warn!(routine.id = %routine, problem = problem.text(), "what arrived was not compared or fires nothing");
    if let Err(error) = store.report_automation_problem(routine, problem, clock.now()).await {
        tracing::warn!(
            routine.id = %routine,
            error = &error as &dyn std::error::Error,
            "the owner of a routine was not notified of a problem"
        );
    }
}
