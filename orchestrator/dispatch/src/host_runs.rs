//! The runs of jobs that this process runs itself: each is a task with the agent's loop.
//!
//! Guarantees that a run begins once for each attempt, and that its end wakes the dispatcher, also after a panic. Never
//! knows how a loop works, and never writes a job's row.

use std::{sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use tokio_util::task::TaskTracker;

use super::{Attempt, DispatcherWaker, attempts::HostRun};

/// Runs an attempt's loop until it has reported or is to stop: when its attempt is over or being cancelled, or the
/// process drains.
pub type RunHostJob = Arc<dyn Fn(Arc<Attempt>) -> BoxFuture<'static, ()> + Send + Sync>;

/// Begins and stops runs.
pub struct HostRuns {
    pub run: RunHostJob,
    /// Wakes the dispatcher when a run has ended.
    pub waker: DispatcherWaker,
    pub tasks: TaskTracker,
}

/// Records the end of a run when it is dropped.
struct EndOnDrop {
    run: HostRun,
    waker: DispatcherWaker,
}

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        self.run.ended.cancel();
        self.waker.wake();
    }
}

impl HostRuns {
    /// Begins the run of an attempt, unless it has begun before.
    pub(super) fn start(&self, attempt: Arc<Attempt>) {
        let Some(run) = attempt.begin_host_run() else { return };
        let (work, waker) = ((self.run)(Arc::clone(&attempt)), self.waker.clone());
        self.tasks.spawn(async move {
            let end = EndOnDrop { run, waker };
            tokio::select! {
                () = work => {}
                () = end.run.cut_off.cancelled() => {
                    tracing::warn!(job.id = %attempt.key().job, "a run of a job did not stop in time and was cut off");
                }
            }
        });
    }

    /// Waits until the run of an attempt has ended, which was told to stop. One that takes longer than `grace` is cut
    /// off.
    pub(super) async fn stop(&self, attempt: &Attempt, grace: Duration) {
        let Some(run) = attempt.host_run() else { return };
        if tokio::time::timeout(grace, run.ended.cancelled()).await.is_err() {
            run.cut_off.cancel();
            run.ended.cancelled().await;
        }
    }
}
