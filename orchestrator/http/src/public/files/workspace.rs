//! Shared by the endpoints for a job's files: authorization, retention, and the mapping of file errors.

use std::time::Duration;

use auth::Identity;
use domain::job::JobRecord;
use protocol::{ErrorCode, JobId};
use workspace::{FileError, WorkspacePath};

use crate::{
    problem::ApiError,
    public::{PublicApi, caller::authorize_job},
};

/// `Retry-After` for an upload that conflicts with another one.
const RETRY_UPLOAD: Duration = Duration::from_secs(5);

/// Returns the job if the caller may see it and it has files at all.
async fn with_workspace(api: &PublicApi, who: &Identity, id: JobId) -> Result<JobRecord, ApiError> {
    let job = authorize_job(api, who, id).await?;
    if job.is_on_host() {
        let detail = "the job runs without a container, because the sandbox is disabled, so it has no files";
        return Err(ApiError::new(ErrorCode::NoWorkspace, detail));
    }
    Ok(job)
}

/// Returns the job if the caller may see it and its files are still kept.
pub(super) async fn readable(api: &PublicApi, who: &Identity, id: JobId) -> Result<JobRecord, ApiError> {
    let job = with_workspace(api, who, id).await?;
    let Some(finished_at) = job.finished_at() else { return Ok(job) };
    // By time, not by the sweep's progress. A missing workspace within the retention period was removed by someone else.
    let kept = api.retention.contains(finished_at, api.clock.now());
    if kept && (job.attempt == 0 || api.workspaces.exists(id)) {
        return Ok(job);
    }
    Err(ApiError::new(
        ErrorCode::WorkspaceGone,
        "the job's files have been deleted after the retention period (GANTRY_WORKSPACE_RETENTION_DAYS)",
    ))
}

/// Returns the job if the caller may see it and its files can still be changed.
pub(super) async fn writable(api: &PublicApi, who: &Identity, id: JobId) -> Result<JobRecord, ApiError> {
    let job = with_workspace(api, who, id).await?;
    if job.state().is_finished() {
        let detail = format!("the job is {}; its files are as it left them", job.state());
        return Err(ApiError::new(ErrorCode::JobFinished, detail));
    }
    Ok(job)
}

/// Checks a path of the request.
pub(super) fn path(parsed: Result<WorkspacePath, &'static str>) -> Result<WorkspacePath, ApiError> {
    parsed.map_err(|rule| ApiError::field("path", rule))
}

/// Maps a file error to an API error.
pub(in crate::public) fn to_api_error(error: FileError) -> ApiError {
    let detail = error.to_string();
    match error {
        FileError::NotFound => ApiError::new(ErrorCode::NotFound, "file or directory not found in the workspace"),
        FileError::NotAFile(_) | FileError::PermissionDenied => ApiError::new(ErrorCode::NotAFile, detail),
        FileError::NotADirectory => ApiError::new(ErrorCode::NotADirectory, detail),
        FileError::TooLarge(_) | FileError::TimedOut => ApiError::new(ErrorCode::TooLarge, detail),
        FileError::NoSpace(_) => ApiError::new(ErrorCode::InsufficientStorage, detail),
        FileError::UploadInProgress => ApiError::new(ErrorCode::Conflict, detail).with_retry_after(RETRY_UPLOAD),
        FileError::StagingFull(_) => ApiError::new(ErrorCode::RateLimited, detail).with_retry_after(RETRY_UPLOAD),
        FileError::RejectedEntry { entry, reason } => ApiError::field(entry, reason),
        FileError::MalformedArchive(_) => ApiError::field("body", detail),
        FileError::Io(error) => ApiError::internal(error),
    }
}
