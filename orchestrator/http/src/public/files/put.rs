//! `PUT /api/jobs/{id}/files/{path}`: a file into the workspace.

use axum::{
    Json,
    body::Body,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use protocol::{FileEntry, JobId};
use tokio_util::sync::CancellationToken;

use super::{
    receive::receive,
    workspace::{path, to_api_error, writable},
};
use workspace::WorkspacePath;

use crate::{
    completion::run_to_completion,
    extract::ApiPath,
    problem::ApiError,
    public::{PublicApi, audit_entry::AuditedCaller},
};

/// Writes a file in the workspace of an unfinished job.
///
/// The file is replaced atomically, and missing parent directories are created.
#[utoipa::path(
    put, path = "/api/jobs/{id}/files/{*path}", operation_id = "write_file", tag = "files",
    params(("id" = String, Path, description = "Job id."), ("path" = String, Path, description = "Path relative to the workspace.")),
    request_body(content = String, content_type = "application/octet-stream"),
    responses(
        (status = 200, body = FileEntry, description = "The file was replaced."),
        (status = 201, body = FileEntry, description = "The file was created."),
        (status = 400, description = "The body is incomplete."),
        (status = 408, description = "The body arrived too slowly: less than 16 KiB/s over 30 s."),
        (status = 409, description = "The job has finished, the path is a directory or passes through a file or link, or another upload to the job is in progress. `no_workspace`: the job runs without a container."),
        (status = 413, description = "The file exceeds what remains of `limits.disk_mb`."),
        (status = 422, description = "Invalid path."),
        (status = 429, description = "Too many concurrent uploads."),
        (status = 507, description = "The server is out of disk space."),
    )
)]
pub(in crate::public) async fn put(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    ApiPath((id, name)): ApiPath<(JobId, String)>,
    body: Body,
) -> Result<Response, ApiError> {
    let job = writable(&api, &who, id).await?;
    let path = path(WorkspacePath::parse_for_write(&name))?;
    let cancelled = CancellationToken::new();
    let _client_gone = cancelled.clone().drop_guard();
    let upload = api.uploads.begin(&who.user, id, job.brief.limits, cancelled).map_err(to_api_error)?;
    let (workspaces, wanted) = (api.workspaces.clone(), path.clone());
    let begin = move || {
        let room = workspaces.remaining_quota(&upload, Some(&wanted))?;
        let staged = workspaces.stage()?;
        let content = staged.create_body_file()?;
        Ok((upload, room, staged, content))
    };
    let (mut upload, room, staged, content) = api.file_work.run(&who.user, begin).await.map_err(to_api_error)?;
    receive(body, content, room.bytes, &mut upload).await?;
    // It may have finished meanwhile.
    writable(&api, &who, id).await?;
    let server = api.clone();
    let place_and_record = async move {
        let workspaces = server.workspaces.clone();
        let placed = server.file_work.run(&who.user, move || workspaces.put(&upload, &path, &staged)).await;
        let placed = placed.map_err(to_api_error)?;
        server.store.record_done(&entry).await?;
        Ok(placed)
    };
    let (entry, new) = run_to_completion(&api.tasks, place_and_record).await?;
    let status = if new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json::<FileEntry>(entry)).into_response())
}
