//! The content of a job's file: the whole or a part. Owns what tells its versions apart.

use std::{
    io::{Seek as _, SeekFrom},
    ops::RangeInclusive,
    time::Duration,
};

use axum::{
    body::Body,
    extract::State,
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    response::{IntoResponse, Response},
};
use chrono::{DateTime, Utc};
use protocol::ErrorCode;
use tokio::io::AsyncReadExt as _;
use tokio_util::io::ReaderStream;
use workspace::{OpenFile, WorkspacePath};

use super::{
    file_path::FileUrl,
    files::{disposition, path, readable, to_api_error},
};
use crate::{
    problem::ApiError,
    public::{
        PublicApi,
        request::Caller,
        response::{
            etag,
            range::{self, Requested, Validators},
        },
    },
};

/// Most bytes of one answer.
const MAX_READ_BYTES: u64 = 64 * 1024 * 1024;
const PIECE_BYTES: usize = 64 * 1024;
/// A file that changed later has no validators: its content may change again within the same tick of the file system's clock, and
/// writes through a mapping are seen with a delay.
const SETTLED_AFTER: Duration = Duration::from_mins(1);
/// IMF-fixdate of RFC 9110.
const HTTP_DATE: &str = "%a, %d %b %Y %H:%M:%S GMT";

/// Reads a file of the job's workspace, or a part of it.
///
/// Symbolic links are not followed. Files are kept after the end of the job for the retention period. One range of `Range` is served; several
/// are ignored. A file that has not changed for a minute has an `ETag`, which `If-Range` and `If-None-Match` take.
#[utoipa::path(
    get, path = "/api/jobs/{id}/files/{*path}", operation_id = "read_file", tag = "files",
    params(
        ("id" = String, Path, description = "Job id."), ("path" = String, Path, description = "Path relative to the workspace: its bytes, percent-encoded."),
        ("Range" = Option<String>, Header, description = "A part, such as `bytes=0-1023`, `bytes=1024-` or `bytes=-1024`."),
        ("If-Range" = Option<String>, Header, description = "`ETag` or `Last-Modified` of the version that the range is of; of another one, the whole file is sent."),
        ("If-None-Match" = Option<String>, Header, description = "`ETag` of an earlier answer."),
    ),
    responses(
        (status = 200, body = String, content_type = "application/octet-stream", description = "The content of the file when it was opened.",
            headers(("Content-Length" = u64), ("Accept-Ranges" = String), ("ETag" = String), ("Last-Modified" = String))),
        (status = 206, body = String, content_type = "application/octet-stream", description = "The part that `Range` names.",
            headers(("Content-Length" = u64), ("Content-Range" = String), ("ETag" = String), ("Last-Modified" = String))),
        (status = 304, description = "The file is the one that `If-None-Match` names."),
        (status = 409, description = "Not a regular file. `no_workspace`: the job runs without a container."),
        (status = 410, description = "The job's files have been deleted after the retention period."),
        (status = 413, description = "The file, or the part of it, is larger than 64 MiB; read it in parts, or download the archive."),
        (status = 416, description = "The file ends before the range; `Content-Range` has its size.", headers(("Content-Range" = String))),
        (status = 422, description = "Invalid path."),
    )
)]
pub(super) async fn read(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    FileUrl { job: id, path: name }: FileUrl,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    readable(&api, &who, id).await?;
    let path = path(WorkspacePath::parse_for_read(&name))?;
    let disposition = disposition(&path.file_name());
    let (workspaces, now) = (api.workspaces.clone(), api.clock.now());
    // RFC 9110 defines ranges for GET only.
    let ranges = if method == Method::GET { headers.clone() } else { HeaderMap::new() };
    let open = move || {
        let mut opened = workspaces.open_file(id, &path)?;
        // A job can set any time.
        opened.entry.modified_at = opened.entry.modified_at.min(now).max(DateTime::UNIX_EPOCH);
        let validators = validators(&opened, now);
        let requested = range::requested(&ranges, opened.entry.size_bytes, &validators);
        if let Requested::Part(part) = &requested {
            opened.file.seek(SeekFrom::Start(*part.start()))?;
        }
        Ok((opened, validators, requested))
    };
    let (opened, validators, requested) = api.file_work.run(&who.user, open).await.map_err(to_api_error)?;
    let mut response = if validators.etag.as_ref().is_some_and(|tag| etag::is_known(&headers, tag)) {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        content(opened, requested, disposition)?
    };
    let headers = response.headers_mut();
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.extend(validators.etag.map(|tag| (header::ETAG, tag)));
    Ok(response)
}

/// The content that is asked for.
fn content(opened: OpenFile, requested: Requested, disposition: HeaderValue) -> Result<Response, ApiError> {
    let size = opened.entry.size_bytes;
    let (status, length, part) = match requested {
        Requested::Whole => (StatusCode::OK, size, None),
        Requested::Part(part) => (StatusCode::PARTIAL_CONTENT, part.end() - part.start() + 1, Some(part)),
        Requested::Unsatisfiable => {
            let detail = format!("the file has {size} bytes and ends before the range");
            let mut response = ApiError::new(ErrorCode::RangeNotSatisfiable, detail).into_response();
            response.headers_mut().insert(header::CONTENT_RANGE, text(&format!("bytes */{size}"))?);
            return Ok(response);
        }
    };
    if length > MAX_READ_BYTES {
        let detail = format!(
            "{length} bytes are more than 64 MiB; read parts of the file with Range, or the archive of the job"
        );
        return Err(ApiError::new(ErrorCode::TooLarge, detail));
    }
    // Bytes appended after the file was opened are not sent; if the file is truncated, the response ends early.
    let content = tokio::fs::File::from_std(opened.file).take(length);
    let body = Body::from_stream(ReaderStream::with_capacity(content, PIECE_BYTES));
    let mut response = (status, body).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    headers.insert(header::CONTENT_DISPOSITION, disposition);
    headers.insert(header::LAST_MODIFIED, http_date(opened.entry.modified_at)?);
    if let Some(part) = part {
        headers.insert(header::CONTENT_RANGE, content_range(&part, size)?);
    }
    Ok(response)
}

/// By the time of the kernel. The job can set `modified_at` to anything, so it counts only where it is the same.
fn validators(opened: &OpenFile, now: DateTime<Utc>) -> Validators {
    let OpenFile { entry, inode, changed_at, .. } = opened;
    if *changed_at + SETTLED_AFTER > now {
        return Validators { etag: None, date: None };
    }
    let nanos = changed_at.timestamp_nanos_opt().unwrap_or_default();
    let tag = format!("\"{inode:x}-{:x}-{nanos:x}\"", entry.size_bytes);
    let is_own_date = changed_at.timestamp() == entry.modified_at.timestamp();
    let date = is_own_date.then(|| http_date(entry.modified_at).ok()).flatten();
    Validators { etag: HeaderValue::from_str(&tag).ok(), date }
}

fn http_date(at: DateTime<Utc>) -> Result<HeaderValue, ApiError> {
    text(&at.format(HTTP_DATE).to_string())
}

fn content_range(part: &RangeInclusive<u64>, size: u64) -> Result<HeaderValue, ApiError> {
    text(&format!("bytes {}-{}/{size}", part.start(), part.end()))
}

fn text(value: &str) -> Result<HeaderValue, ApiError> {
    HeaderValue::from_str(value).map_err(ApiError::internal)
}
