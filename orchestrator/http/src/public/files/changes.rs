//! `GET /api/jobs/{id}/changes`: what has changed in the workspace since the job first started.

use axum::{Json, extract::State};
use protocol::{FileChanges, JobId};
use tokio_util::sync::CancellationToken;

use super::workspace::{readable, to_api_error};
use crate::{
    extract::ApiPath,
    problem::ApiError,
    public::{PublicApi, caller::Caller},
};

/// Lists the files that changed since the job first started.
///
/// The files of the workspace that were added, modified or deleted. Works while the job is running and for as long as its files are kept. Directories and special files are not compared. A symbolic
/// link has its target as its content.
#[utoipa::path(
    get, path = "/api/jobs/{id}/changes", operation_id = "list_changes", tag = "files", params(("id" = String, Path, description = "Job id.")),
    responses(
        (status = 200, body = FileChanges, description = "The changes, ordered by path."),
        (status = 409, description = "`no_workspace`: the job runs without a container."),
        (status = 410, description = "The job's files have been deleted after the retention period."),
    )
)]
pub(in crate::public) async fn changes(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiPath(id): ApiPath<JobId>,
) -> Result<Json<FileChanges>, ApiError> {
    let job = readable(&api, &who, id).await?;
    if job.attempt == 0 {
        return Ok(Json(FileChanges { items: Vec::new(), truncated: false }));
    }
    let cancelled = CancellationToken::new();
    let _client_gone = cancelled.clone().drop_guard();
    let workspaces = api.workspaces.clone();
    let compare = move || workspaces.changes(id, &cancelled);
    Ok(Json(api.file_work.run(&who.user, compare).await.map_err(to_api_error)?))
}
