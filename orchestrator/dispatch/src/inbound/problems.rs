//! What the owner of a routine should know about its automation: firings that were not decided. Changes nothing.

use protocol::RoutineId;

use super::{events::MAX_FIRED, matchers::MatchError};

/// Rounds in which an event that waits is compared.
pub(super) const MAX_ROUNDS: u32 = 12;

/// Why something that arrived may not have fired a routine.
#[derive(Debug, thiserror::Error)]
pub(super) enum AutomationProblem {
    /// The trigger of the routine could not be compared with it.
    #[error(transparent)]
    Match(#[from] MatchError),
    /// The time was up after the routine.
    #[error("an event was not compared with the routines after this one: those before it take too long")]
    TimeUp,
    /// The routine is the last one that was compared.
    #[error("an event was not compared with the routines after this one in {MAX_ROUNDS} rounds")]
    TooManyRounds,
    /// The routine is the first one that was not fired.
    #[error("an event matches more than the {MAX_FIRED} routines that it may fire")]
    TooManyRoutines,
}

/// Reports a problem to the log.
pub(super) fn report_automation_problem(user: &str, routine: Option<RoutineId>, problem: &AutomationProblem) {
    let routine = routine.map(tracing::field::display);
    tracing::warn!(
        error = problem as &dyn std::error::Error,
        user,
        routine.id = routine,
        "what arrived could not be compared with a routine"
    );
}
