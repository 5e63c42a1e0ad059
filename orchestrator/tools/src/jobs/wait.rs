//! Waiting for a job's end within a tool call.
//!
//! Guarantees that a job that waits lends its slot. Never polls: each commit of the job's events is a notification.

use std::time::Duration;

use agent::{Invocation, ToolError};
use protocol::{JobId, JobState};

use super::access::{JobAccess, failed};
use dispatch::Attempt;
use store::Topic;

/// Longest wait of a call. Shorter than a tool's time limit.
pub(super) const MAX_WAIT: Duration = Duration::from_secs(50);

impl JobAccess {
    /// Waits until a job has ended, the monotonic time `until` is reached, or the call is stopped or the process
    /// drains.
    pub(super) async fn wait_for_end(
        &self,
        invocation: &Invocation,
        job: JobId,
        until: Duration,
    ) -> Result<(), ToolError> {
        // Before the first read, so that no event is missed.
        let mut events = self.store().event_notifier().subscribe(Topic::Job(job));
        let attempt = invocation.context.work.job().and_then(|caller| self.attempts.live(caller));
        let _lends_slot = attempt.as_ref().map(Attempt::start_child_wait);
        self.submitter.waker.wake();
        let end = async {
            loop {
                let state = self.store().job_state(job).await.map_err(|error| failed(&error))?;
                if state.is_none_or(has_ended) {
                    return Ok(());
                }
                events.changed().await;
            }
        };
        tokio::select! {
            ended = end => ended,
            () = self.submitter.clock.sleep_until(until) => Ok(()),
            () = invocation.stop.cancelled() => Ok(()),
            () = self.drain.cancelled() => Ok(()),
        }
    }
}

/// Whether a job's agent has ended its work. A person may still have to accept it.
pub(super) const fn has_ended(state: JobState) -> bool {
    state.is_finished() || matches!(state, JobState::Submitted)
}
