//! `GET /api/jobs/{id}/archive`: the workspace as a tar archive.

use std::time::Duration;

use axum::{
    body::Body,
    extract::State,
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use futures_util::stream;
use protocol::JobId;
use serde::Deserialize;
use tokio_util::sync::{CancellationToken, DropGuard};
use utoipa::IntoParams;

use super::{
    read::disposition,
    workspace::{path, readable, to_api_error},
};
use base::per_user_semaphore::Permit;
use workspace::{Cutoff, FileError, TarStream, WorkspacePath};

use crate::{
    extract::{ApiPath, ApiQuery},
    problem::ApiError,
    public::{PublicApi, caller::Caller},
};

/// Time limit for one piece of 64 KiB: there may be many directories before the next file.
const PIECE_LIMIT: Duration = Duration::from_secs(20);

/// Query parameters.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::public) struct Params {
    /// Only this directory of the workspace; its paths are relative to it.
    path: Option<String>,
}

/// Downloads the job's workspace, or a directory of it, as a tar archive.
///
/// It contains files, directories and symbolic links. It is created while it is sent, and ends early when the workspace cannot be read.
#[utoipa::path(
    get, path = "/api/jobs/{id}/archive", operation_id = "download_archive", tag = "files", params(("id" = String, Path, description = "Job id."), Params),
    responses(
        (status = 200, body = String, content_type = "application/octet-stream", description = "The tar archive."),
        (status = 409, description = "`no_workspace`: the job runs without a container."),
        (status = 410, description = "The job's files have been deleted after the retention period."),
        (status = 404, description = "The job or the directory was not found."),
        (status = 413, description = "The files are far larger than `limits.disk_mb`."),
    )
)]
pub(in crate::public) async fn pack(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiPath(id): ApiPath<JobId>,
    ApiQuery(params): ApiQuery<Params>,
) -> Result<Response, ApiError> {
    let path = path(WorkspacePath::parse_for_list(params.path.as_deref().unwrap_or_default()))?;
    let job = readable(&api, &who, id).await?;
    let permit = api.file_work.archive(&who.user).await.map_err(to_api_error)?;
    let cancelled = CancellationToken::new();
    let client_gone = cancelled.clone().drop_guard();
    let (workspaces, looks) = (api.workspaces.clone(), cancelled.clone());
    let pack = api.file_work.run(&who.user, move || workspaces.archive(id, &path, &job.brief.limits, &looks)).await;
    let pack = pack.map_err(to_api_error)?;
    let sending = Sending { api: api.clone(), user: who.user, cancelled, _client_gone: client_gone, _permit: permit };
    // A piece is read only after the previous one was sent: a slow reader holds no thread.
    let pieces = stream::try_unfold((sending, pack), async |(sending, pack)| {
        let piece = sending.next(pack).await;
        piece.map(|piece| piece.map(|(piece, pack)| (piece, (sending, pack)))).map_err(std::io::Error::other)
    });
    let mut response = Body::from_stream(pieces).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::CONTENT_DISPOSITION, disposition(&format!("{id}.tar")));
    Ok(response)
}

/// A download in progress. Dropped with the response body, which cancels the piece that is being read.
struct Sending {
    api: PublicApi,
    user: String,
    cancelled: CancellationToken,
    _client_gone: DropGuard,
    _permit: Permit,
}

impl Sending {
    async fn next(&self, mut pack: TarStream) -> Result<Option<(Vec<u8>, TarStream)>, FileError> {
        let cutoff = Cutoff::after(PIECE_LIMIT, &self.cancelled);
        let work = move || pack.next_chunk(cutoff).map(|piece| piece.map(|piece| (piece, pack)));
        let made = self.api.file_work.run(&self.user, work).await;
        made.inspect_err(|error| {
            tracing::warn!(error = error as &dyn std::error::Error, "archive download ended early");
        })
    }
}
