//! A job's workspace as a tar archive: sent and received.

use std::time::Duration;

use axum::{
    Json,
    body::Body,
    extract::State,
    http::{HeaderMap, HeaderValue, header},
    response::{IntoResponse, Response},
};
use base::per_user_semaphore::Permit;
use futures_util::stream;
use protocol::{ErrorCode, JobId, Unpacked};
use serde::Deserialize;
use tokio_util::sync::{CancellationToken, DropGuard};
use utoipa::IntoParams;
use workspace::{Cutoff, FileError, Quota, TarStream, WorkspacePath};

use super::{
    file_path::PathParam,
    files::{disposition, path, readable, to_api_error, writable},
    receive::{empty, gzip, receive},
};
use crate::{
    completion::run_to_completion,
    problem::ApiError,
    public::{
        PublicApi,
        request::{ApiPath, ApiQuery, AuditedCaller, Caller},
    },
};

/// Time limit for one piece of 64 KiB: there may be many directories before the next file.
const PIECE_LIMIT: Duration = Duration::from_secs(20);

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ArchiveParams {
    /// Only this directory of the workspace; its paths are relative to it.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    path: PathParam,
}

/// Downloads the job's workspace, or a directory of it, as a tar archive.
///
/// It contains files, directories and symbolic links. It is created while it is sent, and ends early when the workspace cannot be read.
#[utoipa::path(
    get, path = "/api/jobs/{id}/archive", operation_id = "download_archive", tag = "files", params(("id" = String, Path, description = "Job id."), ArchiveParams),
    responses(
        (status = 200, body = String, content_type = "application/octet-stream", description = "The tar archive."),
        (status = 409, description = "`no_workspace`: the job runs without a container."),
        (status = 410, description = "The job's files have been deleted after the retention period."),
        (status = 404, description = "The job or the directory was not found."),
        (status = 413, description = "The files are far larger than `limits.disk_mb`."),
    )
)]
pub(super) async fn pack(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiPath(id): ApiPath<JobId>,
    ApiQuery(params): ApiQuery<ArchiveParams>,
) -> Result<Response, ApiError> {
    let path = path(WorkspacePath::parse_for_list(&params.path.0))?;
    let job = readable(&api, &who, id).await?;
    let permit = api.file_work.archive(&who.user).await.map_err(to_api_error)?;
    let cancelled = CancellationToken::new();
    let client_gone = cancelled.clone().drop_guard();
    let (workspaces, stop) = (api.workspaces.clone(), cancelled.clone());
    let pack = api.file_work.run(&who.user, move || workspaces.archive(id, &path, &job.brief.limits, &stop)).await;
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

/// Headers, padding and long names of an uploaded archive, in addition to its content.
const MAX_OVERHEAD_BYTES: u64 = 128 * 1024 * 1024;

/// Extracts a tar archive into the workspace of an unfinished job.
///
/// Gzip is recognised by `Content-Type: application/gzip` or `Content-Encoding: gzip`. One invalid entry (an absolute path, `..`, a path
/// through a link, a hard link to something outside the archive, a device, a sparse file) rejects the whole archive. Symbolic links are kept
/// as they are, whatever they name. Permissions are kept except setuid and setgid; owners are not.
#[utoipa::path(
    put, path = "/api/jobs/{id}/archive", operation_id = "upload_archive", tag = "files", params(("id" = String, Path, description = "Job id.")),
    request_body(content = String, content_type = "application/octet-stream", description = "A tar archive, also as `application/x-tar`, or as `application/gzip` when compressed."),
    responses(
        (status = 200, body = Unpacked, description = "The archive was extracted."),
        (status = 400, description = "The body is incomplete."),
        (status = 408, description = "The body arrived too slowly: less than 16 KiB/s over 30 s."),
        (status = 409, description = "The job has finished, a file and a directory conflict, or another upload to the job is in progress. `no_workspace`: the job runs without a container."),
        (status = 413, description = "The archive exceeds what remains of `limits.disk_mb`, or has too many entries."),
        (status = 415, description = "Unsupported Content-Type or Content-Encoding."),
        (status = 422, description = "Not a tar archive, or an invalid entry, which is named."),
        (status = 429, description = "Too many concurrent uploads."),
        (status = 507, description = "The server is out of disk space."),
    )
)]
pub(super) async fn unpack(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    ApiPath(id): ApiPath<JobId>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Unpacked>, ApiError> {
    let job = writable(&api, &who, id).await?;
    let gzip = gzip(&headers).ok_or_else(|| {
        ApiError::new(
            ErrorCode::UnsupportedMediaType,
            "send a tar archive as application/octet-stream or application/x-tar, or as application/gzip when compressed",
        )
    })?;
    let cancelled = CancellationToken::new();
    let _client_gone = cancelled.clone().drop_guard();
    let upload = api.uploads.begin(&who.user, id, job.brief.limits, cancelled).map_err(to_api_error)?;
    let workspaces = api.workspaces.clone();
    let begin = move || {
        workspaces.remaining_quota(&upload, None)?;
        let staged = workspaces.stage()?;
        let content = staged.create_body_file()?;
        Ok((upload, staged, content))
    };
    let (mut upload, staged, content) = api.file_work.run(&who.user, begin).await.map_err(to_api_error)?;
    let max_bytes = Quota::from_limits(&job.brief.limits).bytes.saturating_add(MAX_OVERHEAD_BYTES);
    let content = receive(body, content, max_bytes, &mut upload).await?;
    let workspaces = api.workspaces.clone();
    let unpack = move || {
        if content.metadata()?.len() == 0 {
            return Err(empty());
        }
        let unpacked = workspaces.unpack(&mut upload, content, gzip, &staged)?;
        Ok((upload, staged, unpacked))
    };
    let (upload, staged, unpacked) = api.file_work.run(&who.user, unpack).await.map_err(to_api_error)?;
    // It may have finished meanwhile.
    writable(&api, &who, id).await?;
    let server = api.clone();
    let place_and_record = async move {
        let workspaces = server.workspaces.clone();
        let installed = server.file_work.run(&who.user, move || workspaces.install(&upload, &staged)).await;
        installed.map_err(to_api_error)?;
        server.store.record_done(&entry).await?;
        tracing::info!(job.id = %id, user = who.user, entries = unpacked.entries, "archive unpacked");
        Ok(unpacked)
    };
    run_to_completion(&api.tasks, place_and_record).await.map(Json)
}
