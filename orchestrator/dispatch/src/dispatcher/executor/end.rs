//! Actions that end an attempt or remove a container: the order of stopping, recording and removing.

use std::time::Duration;

use protocol::{ContainerName, JobId, JobReason};

use super::{ActionError, ActionExecutor};
use base::failpoint;
use domain::job::{AttemptFailure, JobRecord, JobVersion};

use crate::AttemptKey;

/// Time from SIGTERM to SIGKILL: the worker stops its children and flushes its events.
const STOP_GRACE: Duration = Duration::from_secs(5);

impl ActionExecutor {
    /// The attempt ended without a report: its container is removed before the record is changed. Does nothing if the
    /// record has changed since the plan: a worker that was silent may have called meanwhile.
    pub(super) async fn remove_and_fail_attempt(
        &self,
        id: JobId,
        planned: JobVersion,
        mut failure: AttemptFailure,
    ) -> Result<(), ActionError> {
        let job = self.store.job(id).await?.filter(|job| job.version() == planned);
        let Some(job) = job else { return Ok(()) };
        if let Some(container) = &job.container {
            let last_line = self.save_logs(&container.name).await;
            // Only a crash explains itself. An `INFO` line is the worker's ordinary log.
            if failure.reason == JobReason::WorkerCrashed
                && let Some(line) = last_line.filter(|line| !line.contains(" INFO "))
            {
                failure.message = format!("{}; its last output: {line}", failure.message);
            }
            self.record_exit(&job, container).await?;
            self.engine.remove(&container.name).await?;
            self.listeners.close(&container.name)?;
        }
        self.record_attempt_failure(&job, failure).await
    }

    pub(super) async fn cancel(&self, id: JobId) -> Result<(), ActionError> {
        let Some(job) = self.store.job(id).await? else { return Ok(()) };
        self.stop_host_run(&job).await;
        if let Some(container) = job.container.as_ref().filter(|_| job.attempt > 0) {
            self.engine.stop(&container.name, STOP_GRACE).await?;
            self.record_exit(&job, container).await?;
            self.remove(&container.name).await?;
        }
        failpoint::reach("cancel.after_stop");
        self.transition(id, JobRecord::finish_cancel).await
    }

    pub(super) async fn expire(&self, id: JobId) -> Result<(), ActionError> {
        let Some(job) = self.store.job(id).await? else { return Ok(()) };
        // Recorded first: a report that arrives while the worker is being stopped is too late.
        let message = format!("it ran for more than limits.timeout_seconds = {}", job.brief.limits.timeout_seconds);
        self.transition(id, |job, now| job.fail(now, JobReason::WallClock, message)).await?;
        self.stop_host_run(&job).await;
        if let Some(container) = &job.container {
            self.engine.stop(&container.name, STOP_GRACE).await?;
            self.remove(&container.name).await?;
        }
        Ok(())
    }

    /// Waits until the loop of a job's attempt has ended in this process, if it runs here. The transition that came
    /// before has told it to stop.
    pub(super) async fn stop_host_run(&self, job: &JobRecord) {
        let key = AttemptKey { job: job.id, attempt: job.attempt };
        if let Some(attempt) = self.attempts.get(key) {
            self.host_runs.stop(&attempt, STOP_GRACE).await;
        }
    }

    pub(super) async fn fail_over_quota(&self, id: JobId) -> Result<(), ActionError> {
        let Some(job) = self.store.job(id).await? else { return Ok(()) };
        // Killed before it is recorded: until then it continues to write.
        if let Some(container) = &job.container {
            self.engine.kill(&container.name).await?;
            self.record_exit(&job, container).await?;
        }
        let message = match self.attempts.over_quota(id) {
            Some(violation) => violation.message,
            None => format!("the workspace holds more than limits.disk_mb = {}", job.brief.limits.disk_mb),
        };
        self.transition(id, |job, now| job.fail(now, JobReason::DiskLimit, message)).await?;
        if let Some(container) = &job.container {
            self.remove(&container.name).await?;
        }
        Ok(())
    }

    /// Removes a container that belongs to no open attempt.
    pub(super) async fn remove_leftover(&self, container: &str) -> Result<(), ActionError> {
        self.remove(container).await?;
        let name: Option<ContainerName> = container.parse().ok();
        let ended_at = match name.and_then(|name| name.job_id()) {
            Some(job) => self.store.ended_at(job).await?,
            None => None,
        };
        match ended_at {
            Some(at) => self.metrics.container_removed((self.clock.now() - at).to_std().unwrap_or_default()),
            None => self.metrics.orphan_removed("container"),
        }
        Ok(())
    }

    /// Removes a container and its run directory. Its output is saved.
    pub(super) async fn remove(&self, container: &str) -> Result<(), ActionError> {
        self.save_logs(container).await;
        failpoint::reach("remove.before");
        self.engine.remove(container).await?;
        self.listeners.close(container)?;
        tracing::info!(container, "container removed");
        Ok(())
    }
}
