//! `PUT /api/jobs/{id}/files/{path}`: a file into the workspace.

use axum::{
    Json,
    body::Body,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use protocol::{FileEntry, JobId, Problem};
use tokio_util::sync::CancellationToken;

use super::{
    receive::receive,
    workspace::{path, told, writable},
};
use crate::{
    http::{
        extract::ApiPath,
        problem::ApiError,
        public::{
            PublicApi,
            deeds::{Doer, to_the_end},
        },
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
        (status = 408, body = Problem, content_type = "application/problem+json", description = "The body took too long: less than 16 KiB/s over 30 s."),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "The job has finished, or a directory is there, or a file or link on the way, or another upload to the job is under way."),
        (status = 413, body = Problem, content_type = "application/problem+json", description = "Over what is left of limits.disk_mb."),
        (status = 422, body = Problem, content_type = "application/problem+json", description = "The path is none."),
        (status = 429, body = Problem, content_type = "application/problem+json", description = "Uploads under way take all of the staging space."),
        (status = 507, body = Problem, content_type = "application/problem+json", description = "The server's disk is full, or nearly so."),
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
    let cancelled = CancellationToken::new();
    let _client_gone = cancelled.clone().drop_guard();
    let upload = api.uploads.begin(&who.user, id, job.limits, cancelled).map_err(told)?;
    let (workspaces, wanted) = (api.workspaces.clone(), path.clone());
    let begin = move || {
        let room = workspaces.room(&upload, Some(&wanted))?;
        let staged = workspaces.stage()?;
        let content = staged.content()?;
        Ok((upload, room, staged, content))
    };
    let (mut upload, room, staged, content) = api.file_work.run(&who.user, begin).await?;
    receive(body, content, room.bytes, &mut upload).await?;
    // It may have finished meanwhile.
    writable(&api, &who, id).await?;
    let server = api.clone();
    let place_and_record = async move {
        let workspaces = server.workspaces.clone();
        let placed = server.file_work.run(&who.user, move || workspaces.put(&upload, &path, &staged)).await?;
        server.store.done(&deed).await?;
        Ok(placed)
    };
    let (entry, new) = to_the_end(&api, place_and_record).await?;
    let status = if new { StatusCode::CREATED } else { StatusCode::OK };
    Ok((status, Json::<FileEntry>(entry)).into_response())
}
