//! `GET /api/jobs/{id}/files/{path}`: reads a file of the workspace.

use axum::{
    body::Body,
    extract::State,
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use protocol::{ErrorCode, JobId};
use tokio::io::AsyncReadExt as _;
use tokio_util::io::ReaderStream;

use super::workspace::{path, readable, to_api_error};
use workspace::WorkspacePath;

use crate::{
    extract::ApiPath,
    problem::ApiError,
    public::{PublicApi, caller::Caller},
};

/// Maximum size of a file (contract: api, Jobs).
const MAX_READ_BYTES: u64 = 64 * 1024 * 1024;
const PIECE_BYTES: usize = 64 * 1024;

/// Reads a file of the job's workspace.
///
/// Symbolic links are not followed. Files are kept after the end of the job for the retention period.
#[utoipa::path(
    get, path = "/api/jobs/{id}/files/{*path}", operation_id = "read_file", tag = "files",
    params(("id" = String, Path, description = "Job id."), ("path" = String, Path, description = "Path relative to the workspace.")),
    responses(
        (status = 200, body = String, content_type = "application/octet-stream", description = "The content of the file when it was opened.",
            headers(("Content-Length" = u64))),
        (status = 409, description = "Not a regular file. `no_workspace`: the job runs without a container."),
        (status = 410, description = "The job's files have been deleted after the retention period."),
        (status = 413, description = "The file is larger than 64 MiB; download the archive instead."),
        (status = 422, description = "Invalid path."),
    )
)]
pub(in crate::public) async fn read(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiPath((id, name)): ApiPath<(JobId, String)>,
) -> Result<Response, ApiError> {
    readable(&api, &who, id).await?;
    let path = path(WorkspacePath::parse_for_read(&name))?;
    let disposition = disposition(path.file_name());
    let workspaces = api.workspaces.clone();
    let opened = api.file_work.run(&who.user, move || workspaces.open_file(id, &path)).await;
    let (file, entry) = opened.map_err(to_api_error)?;
    if entry.size_bytes > MAX_READ_BYTES {
        let detail =
            format!("the file has {} bytes, more than 64 MiB; use GET /api/jobs/{id}/archive", entry.size_bytes);
        return Err(ApiError::new(ErrorCode::TooLarge, detail));
    }
    // Bytes appended after the file was opened are not sent; if the file is truncated, the response ends early.
    let content = tokio::fs::File::from_std(file).take(entry.size_bytes);
    let mut response = Body::from_stream(ReaderStream::with_capacity(content, PIECE_BYTES)).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(entry.size_bytes));
    headers.insert(header::CONTENT_DISPOSITION, disposition);
    Ok(response)
}

/// `attachment`, so that a browser never renders it; with the file's name when that is plain ASCII.
pub(super) fn disposition(name: &str) -> HeaderValue {
    let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
    let named = plain.then(|| HeaderValue::from_str(&format!("attachment; filename=\"{name}\"")).ok()).flatten();
    named.unwrap_or(HeaderValue::from_static("attachment"))
}
