//! The workspace of a job that starts with files: provisional until the job is stored.

use protocol::JobId;
use tokio_util::sync::CancellationToken;

use super::{JobSubmitter, NewJob, SubmitError};
use domain::request::WorkspaceFile;
use workspace::{FileError, Upload, WorkspaceError, Workspaces};

impl JobSubmitter {
    /// Creates the provisional workspace of a job that starts with files; any other gets its workspace when it starts.
    pub(super) async fn create_workspace(&self, id: JobId, job: &mut NewJob) -> Result<(), SubmitError> {
        let files = std::mem::take(&mut job.accepted.files);
        let restarted_from = job.restarted_from;
        if restarted_from.is_none() && files.is_empty() {
            return Ok(());
        }
        // Never cancelled: a submission runs to its end.
        let upload = self.uploads.begin(&job.owner, id, job.accepted.limits, CancellationToken::new())?;
        let workspaces = self.workspaces.clone();
        let fill = move || {
            workspaces.mark_provisional(id)?;
            fill_workspace(&workspaces, upload, restarted_from, &files)
        };
        Ok(self.file_work.run(&job.owner, fill).await?)
    }

    /// Removes what was created for a job that is not stored. A process that dies meanwhile leaves the mark to the next
    /// one.
    pub(super) async fn discard_workspace(&self, id: JobId) {
        let workspaces = self.workspaces.clone();
        let _ = tokio::task::spawn_blocking(move || workspaces.discard_provisional(id)).await;
    }
}

fn fill_workspace(
    workspaces: &Workspaces,
    mut upload: Upload,
    restarted_from: Option<JobId>,
    files: &[WorkspaceFile],
) -> Result<(), FileError> {
    if let Some(earlier) = restarted_from {
        return workspaces.copy_from(earlier, &mut upload).map_err(WorkspaceError::into_source);
    }
    let bytes: usize = files.iter().map(|file| file.content.len()).sum();
    upload.count_written(bytes as u64)?;
    workspaces.create(upload.job(), files).map_err(WorkspaceError::into_source)
}
