//! `GET /api/jobs/{id}/files/{path}`: one file of the workspace.

use axum::{
    body::Body,
    extract::State,
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use protocol::{ErrorCode, JobId, Problem};
use tokio::io::AsyncReadExt as _;
use tokio_util::io::ReaderStream;

use super::workspace::{path, readable};
use crate::{
    http::{
        extract::ApiPath,
        problem::ApiError,
        public::{PublicApi, caller::Caller},
    },
    workspace::WorkspacePath,
};

/// Contract: api, Jobs.
const MAX_READ_BYTES: u64 = 64 * 1024 * 1024;
const PIECE_BYTES: usize = 64 * 1024;

/// Reads a file of the job's workspace. Links are not followed.
#[utoipa::path(
    get, path = "/api/jobs/{id}/files/{*path}", tag = "files",
    params(("id" = String, Path, description = "The job."), ("path" = String, Path, description = "Relative to the workspace.")),
    responses(
        (status = 200, body = String, content_type = "application/octet-stream", description = "Its content, as long as it was when it was opened.",
            headers(("Content-Length" = u64))),
        (status = 404, body = Problem, content_type = "application/problem+json", description = "Missing, or another user's."),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "A directory, a link or something else that is no file."),
        (status = 410, body = Problem, content_type = "application/problem+json", description = "The files are no longer kept."),
        (status = 413, body = Problem, content_type = "application/problem+json", description = "Over 64 MiB: take the archive."),
        (status = 422, body = Problem, content_type = "application/problem+json", description = "The path is none."),
    )
)]
pub(in crate::http::public) async fn read(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiPath((id, name)): ApiPath<(JobId, String)>,
) -> Result<Response, ApiError> {
    readable(&api, &who, id).await?;
    let path = path(WorkspacePath::to_read(&name))?;
    let disposition = disposition(path.file_name());
    let workspaces = api.workspaces.clone();
    let (file, entry) = api.file_work.run(&who.user, move || workspaces.read(id, &path)).await?;
    if entry.size_bytes > MAX_READ_BYTES {
        let detail = format!("the file has {} bytes; over 64 MiB take GET /api/jobs/{id}/archive", entry.size_bytes);
        return Err(ApiError::new(ErrorCode::TooLarge, detail));
    }
    // What is written while it is read is not sent; when it is cut meanwhile, the answer is cut too.
    let content = tokio::fs::File::from_std(file).take(entry.size_bytes);
    let mut response = Body::from_stream(ReaderStream::with_capacity(content, PIECE_BYTES)).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(entry.size_bytes));
    headers.insert(header::CONTENT_DISPOSITION, disposition);
    Ok(response)
}

/// To be kept and never shown as a page; under its own name when that is a plain one.
pub(super) fn disposition(name: &str) -> HeaderValue {
    let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
    let named = plain.then(|| HeaderValue::from_str(&format!("attachment; filename=\"{name}\"")).ok()).flatten();
    named.unwrap_or(HeaderValue::from_static("attachment"))
}
