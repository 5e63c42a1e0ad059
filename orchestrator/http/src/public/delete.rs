//! `DELETE /api/jobs/{id}`: deletes a finished job.

use axum::{extract::State, http::StatusCode};
use protocol::{ErrorCode, JobId};

use super::{PublicApi, audit_entry::AuditedCaller, caller::authorize_job};
use store::JobDeletion;
use workspace::remove_container_logs;

use crate::{extract::ApiPath, problem::ApiError};

/// Deletes a finished job with its events, calls, files and saved output.
///
/// What it used stays counted in the totals by day and model and in budgets. A child's `parent_id` and a notification's `job_id` become
/// null; `restarted_from` and the `job_id` of a run keep the id, which is 404 then.
#[utoipa::path(
    delete, path = "/api/jobs/{id}", operation_id = "delete_job", tag = "jobs", params(("id" = String, Path, description = "Job id.")),
    responses(
        (status = 204, description = "The job is deleted."),
        (status = 409, description = "The job, one of its model calls or a child job has not finished."),
    )
)]
pub(super) async fn delete(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    ApiPath(id): ApiPath<JobId>,
) -> Result<StatusCode, ApiError> {
    authorize_job(&api, &who, id).await?;
    let refused = |detail: String| Err(ApiError::new(ErrorCode::NotFinished, detail));
    match api.store.delete_job(id, entry).await? {
        JobDeletion::Deleted => {}
        JobDeletion::NotFinished(state) => return refused(format!("the job is {state}; cancel it first")),
        JobDeletion::CallInFlight => {
            return refused("a model call of the job has not ended yet; try again later".to_owned());
        }
        JobDeletion::UnfinishedChild => {
            return refused("a child job has not finished; cancel the child job or wait for it".to_owned());
        }
        JobDeletion::Missing => return Err(ApiError::not_found()),
    }
    tracing::info!(job.id = %id, user = who.user, "job deleted");
    let (workspaces, logs) = (api.workspaces.clone(), api.logs.clone());
    // What cannot be removed now, since its container has not ended or the process stops, is removed by the retention sweep.
    let remove = move || {
        workspaces.remove(id);
        remove_container_logs(&logs, id);
    };
    tokio::task::spawn_blocking(remove).await.map_err(ApiError::internal)?;
    Ok(StatusCode::NO_CONTENT)
}
