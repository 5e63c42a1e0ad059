//! `PUT /api/jobs/{id}/archive`: extracts a tar archive into the workspace.

use axum::{Json, body::Body, extract::State, http::HeaderMap};
use protocol::{ErrorCode, JobId, Unpacked};
use tokio_util::sync::CancellationToken;

use super::{
    receive::{empty, gzip, receive},
    workspace::{to_api_error, writable},
};
use workspace::Quota;

use crate::{
    completion::run_to_completion,
    extract::ApiPath,
    problem::ApiError,
    public::{PublicApi, audit_entry::AuditedCaller},
};

/// Headers, padding and long names of an uploaded archive, in addition to its content.
const MAX_OVERHEAD_BYTES: u64 = 128 * 1024 * 1024;

/// Extracts a tar archive into the workspace of an unfinished job.
///
/// Gzip is recognised by `Content-Type: application/gzip` or `Content-Encoding: gzip`. One invalid entry (an absolute path, `..`, a link that
/// points outside, a device, a sparse file) rejects the whole archive. Permissions are kept except setuid and setgid; owners are not.
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
pub(in crate::public) async fn unpack(
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
