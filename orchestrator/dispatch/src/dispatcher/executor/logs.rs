//! What is kept of a container before it is removed: its output, and how it ended.

use std::fs;

use protocol::{ContainerInfo, ContainerName};

use super::{ActionError, ActionExecutor};
use domain::job::JobRecord;
use engine::ContainerStatus;
use secrets::search;

/// Bytes that are kept of a container's output.
const MAX_LOG_BYTES: usize = 256 * 1024;
/// Bytes of its last line that a job's message shows.
const MAX_LAST_LINE_BYTES: usize = 400;

impl ActionExecutor {
    /// Saves a container's output beside the database, redacted. Returns its last line. A failure is no reason to keep
    /// the container.
    pub(super) async fn save_logs(&self, container: &str) -> Option<String> {
        let text = self.engine.logs(container, MAX_LOG_BYTES).await.ok()?;
        let text = self.redact_output(container, text).await?;
        let last_line = text.lines().rev().find(|line| !line.trim().is_empty())?;
        let path = self.logs.join(format!("{container}.log"));
        let saved = fs::create_dir_all(&self.logs).and_then(|()| fs::write(path, &text));
        if let Err(error) = saved {
            tracing::warn!(container, %error, "cannot save the container's output");
        }
        let end = last_line.floor_char_boundary(MAX_LAST_LINE_BYTES);
        Some(last_line[..end].to_owned())
    }

    /// The output without its owner's secrets; `None` if it could not be searched, and then it is not kept.
    async fn redact_output(&self, container: &str, mut text: String) -> Option<String> {
        let name: Option<ContainerName> = container.parse().ok();
        // A container whose job is not known any more has no owner: the formats of credentials are still looked for.
        let owner = match name.and_then(|name| name.job_id()) {
            Some(job) => self.store.job(job).await.ok()?.map(|job| job.brief.user_id.clone()).unwrap_or_default(),
            None => String::new(),
        };
        let redacted = match self.detectors.of(&owner).await {
            Ok(detector) => {
                search(text.len(), move || {
                    detector.redact_text(&mut text);
                    text
                })
                .await
            }
            Err(error) => Err(error),
        };
        if let Err(error) = &redacted {
            let error = error as &dyn std::error::Error;
            tracing::warn!(
                container,
                error,
                "the container's output is not kept: it could not be searched for secrets"
            );
        }
        redacted.ok()
    }

    /// Records the container's exit code in the job's row.
    pub(super) async fn record_exit(&self, job: &JobRecord, container: &ContainerInfo) -> Result<(), ActionError> {
        let observed = self.engine.observe(&container.name).await?;
        if let Some(ContainerStatus::Exited { code, oom_killed }) = observed.map(|view| view.status) {
            let container = ContainerInfo { exit_code: Some(code), oom_killed: Some(oom_killed), ..container.clone() };
            self.store.set_container(job.id, job.attempt, &container).await?;
        }
        Ok(())
    }
}
