//! `PUT /api/jobs/{id}/files/{path}`: a file into the workspace.

use axum::{
    Json,
    body::Body,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use protocol::{FileEntry, JobId, Problem};

use super::{
    receive::receive,
    workspace::{on_disk, path, writable},
};
use crate::{
    http::{
        extract::ApiPath,
        problem::ApiError,
        public::{PublicApi, deeds::Doer},
    },
    workspace::WorkspacePath,
};

/// Writes a file into the workspace of a job that has not finished: there whole, or as it was before.
#[utoipa::path(
    put, path = "/api/jobs/{id}/files/{*path}", tag = "files",
    params(("id" = String, Path, description = "The job."), ("path" = String, Path, description = "Relative to the workspace; missing directories are made.")),
    request_body(content = String, content_type = "application/octet-stream"),
    responses(
        (status = 200, body = FileEntry, description = "It replaced what was there."),
        (status = 201, body = FileEntry, description = "It is new."),
        (status = 400, body = Problem, content_type = "application/problem+json", description = "The body did not arrive whole."),
        (status = 404, body = Problem, content_type = "application/problem+json", description = "Missing, or another user's."),
        (status = 408, body = Problem, content_type = "application/problem+json", description = "The body took too long."),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "The job has finished, or a directory is there, or a file or link on the way."),
        (status = 413, body = Problem, content_type = "application/problem+json", description = "Over what is left of limits.disk_mb."),
        (status = 422, body = Problem, content_type = "application/problem+json", description = "The path is none."),
    )
)]
pub(in crate::http::public) async fn put(
    State(api): State<PublicApi>,
    Doer { who, deed }: Doer,
    ApiPath((id, name)): ApiPath<(JobId, String)>,
    body: Body,
) -> Result<Response, ApiError> {
    let job = writable(&api, &who, id).await?;
    let path = path(WorkspacePath::to_write(&name))?;
    let (workspaces, wanted) = (api.workspaces.clone(), path.clone());
    let (room, staged, content) = on_disk(move || {
        let room = workspaces.room(id, &job.limits, Some(&wanted))?;
        let staged = workspaces.stage()?;
        let content = staged.content()?;
        Ok((room, staged, content))
    })
    .await?;
    receive(body, content, room.bytes).await?;
    // It may have finished meanwhile.
    let job = writable(&api, &who, id).await?;
    let workspaces = api.workspaces.clone();
    let (entry, new) = on_disk(move || workspaces.put(id, &path, &staged, &job.limits)).await?;
    api.store.done(&deed).await?;
    let status = if new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json::<FileEntry>(entry)).into_response())
}
