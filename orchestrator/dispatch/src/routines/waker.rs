//! Wakes the tasks that fire routines and work on their runs. Wakes carry no data: the tasks read the database.

use std::sync::Arc;

use tokio::sync::Notify;

/// Wakes the scheduler and the runner. Cheap to clone; several wakes before the next poll are one.
#[derive(Debug, Clone, Default)]
pub struct RoutineWaker(Arc<Wakes>);

#[derive(Debug, Default)]
struct Wakes {
    scheduler: Notify,
    runs: Notify,
}

impl RoutineWaker {
    /// A routine may have become due, or a schedule has changed.
    pub fn wake_scheduler(&self) {
        self.0.scheduler.notify_one();
    }

    /// A run may have become one that can start, or has been cancelled.
    pub fn wake_runs(&self) {
        self.0.runs.notify_one();
    }

    /// Waits for the next wake of the scheduler; one that came since the last call counts.
    pub async fn scheduler(&self) {
        self.0.scheduler.notified().await;
    }

    /// Waits for the next wake of the runner; one that came since the last call counts.
    pub async fn runs(&self) {
        self.0.runs.notified().await;
    }
}
