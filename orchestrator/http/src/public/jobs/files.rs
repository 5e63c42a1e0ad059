//! A job's files: listed, searched and written. Owns who may use them, for how long, and the errors of file work.

use std::{ffi::OsString, os::unix::ffi::OsStringExt, str::FromStr, time::Duration};

use auth::Identity;
use axum::{
    Json,
    body::Body,
    extract::State,
    http::{HeaderValue, StatusCode},
    response::{IntoResponse, Response},
};
use domain::job::JobRecord;
use protocol::{ErrorCode, FileEntry, FileList, JobId, limits::MAX_COMPONENT_BYTES};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;
use utoipa::IntoParams;
use workspace::{FileError, NameSearch, WorkspacePath};

use super::{
    file_path::{FileUrl, PathParam},
    receive::receive,
};
use crate::{
    completion::run_to_completion,
    problem::ApiError,
    public::{
        PublicApi,
        request::{ApiPath, ApiQuery, AuditedCaller, Caller, authorize_job, cursor},
    },
};

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListParams {
    /// Directory relative to the workspace; default: the workspace itself.
    #[serde(default)]
    #[param(value_type = String)]
    path: PathParam,
    /// A part of a name, in any case: finds entries of the directory and of all below it.
    #[param(min_length = 1, max_length = 255)]
    q: Option<String>,
    /// Maximum number of items, 1 to 200; default 50.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<u32>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// Lists a directory of the workspace, or finds entries by name.
///
/// Symbolic links are listed as links and not followed. A search with `q` looks at 200,000 entries and for 2 s at most; `incomplete` says
/// that it ended before it had looked at all.
#[utoipa::path(
    get, path = "/api/jobs/{id}/files", operation_id = "list_files", tag = "files",
    params(("id" = String, Path, description = "Job id."), ListParams),
    responses(
        (status = 200, body = FileList, description = "A page, ordered by name; of a search, by path."),
        (status = 409, description = "Not a directory. `no_workspace`: the job runs without a container."),
        (status = 410, description = "The job's files have been deleted after the retention period."),
    )
)]
pub(super) async fn list(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiPath(id): ApiPath<JobId>,
    ApiQuery(params): ApiQuery<ListParams>,
) -> Result<Json<FileList>, ApiError> {
    readable(&api, &who, id).await?;
    let limit = cursor::limit(params.limit)? as usize;
    let directory = path(WorkspacePath::parse_for_list(&params.path.0))?;
    let after = params.cursor.as_deref().map(cursor::read::<Name>).transpose()?;
    let text = params.q.map(searched).transpose()?;
    let cancelled = CancellationToken::new();
    let _client_gone = cancelled.clone().drop_guard();
    let workspaces = api.workspaces.clone();
    let list = move || {
        let after = after.as_ref().map(|Name(name)| name.as_os_str());
        match &text {
            None => workspaces.list(id, &directory, after, limit),
            Some(text) => workspaces.search(id, &directory, &NameSearch { text, after, limit }, &cancelled),
        }
    };
    let page = api.file_work.run(&who.user, list).await.map_err(to_api_error)?;
    let next_cursor = page.next_after.map(|name| cursor::write(&Name(name).to_string()));
    Ok(Json(FileList { items: page.entries, next_cursor, incomplete: !page.is_complete }))
}

/// A part of a name, as a search can find it.
fn searched(text: String) -> Result<String, ApiError> {
    match text.len() {
        1..=MAX_COMPONENT_BYTES if !text.contains(['/', '\0']) => Ok(text),
        1..=MAX_COMPONENT_BYTES => Err(ApiError::field("q", "must be a part of a name, without / and NUL characters")),
        _ => Err(ApiError::field("q", format!("must have 1 to {MAX_COMPONENT_BYTES} bytes"))),
    }
}

/// A name or path of any bytes, in hexadecimal.
struct Name(OsString);

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.as_encoded_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Name {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let pairs = text.as_bytes().chunks(2).map(|pair| match pair {
            [high, low] => Some(digit(*high)? * 16 + digit(*low)?),
            _ => None,
        });
        pairs.collect::<Option<Vec<u8>>>().map(|bytes| Self(OsString::from_vec(bytes))).ok_or(())
    }
}

/// `attachment`, so that a browser never renders it; with the file's name when that is plain ASCII.
pub(super) fn disposition(name: &str) -> HeaderValue {
    let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'));
    let named = plain.then(|| HeaderValue::from_str(&format!("attachment; filename=\"{name}\"")).ok()).flatten();
    named.unwrap_or(HeaderValue::from_static("attachment"))
}

/// Writes a file in the workspace of an unfinished job.
///
/// The file is replaced atomically, and missing parent directories are created.
#[utoipa::path(
    put, path = "/api/jobs/{id}/files/{*path}", operation_id = "write_file", tag = "files",
    params(("id" = String, Path, description = "Job id."), ("path" = String, Path, description = "Path relative to the workspace: its bytes, percent-encoded.")),
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
pub(super) async fn put(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    FileUrl { job: id, path: name }: FileUrl,
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

/// `Retry-After` for an upload that conflicts with another one.
const RETRY_UPLOAD: Duration = Duration::from_secs(5);

/// Returns the job if the caller may see it and it has files at all.
async fn with_workspace(api: &PublicApi, who: &Identity, id: JobId) -> Result<JobRecord, ApiError> {
    let job = authorize_job(api, who, id).await?;
    if job.is_on_host() {
        let detail = "the job runs without a container, because the sandbox is disabled, so it has no files";
        return Err(ApiError::new(ErrorCode::NoWorkspace, detail));
    }
    Ok(job)
}

/// Returns the job if the caller may see it and its files are still kept.
pub(super) async fn readable(api: &PublicApi, who: &Identity, id: JobId) -> Result<JobRecord, ApiError> {
    let job = with_workspace(api, who, id).await?;
    let Some(finished_at) = job.finished_at() else { return Ok(job) };
    // By time, not by the sweep's progress. A missing workspace within the retention period was removed by someone else.
    let kept = api.retention.contains(finished_at, api.clock.now());
    if kept && (job.attempt == 0 || api.workspaces.exists(id)) {
        return Ok(job);
    }
    Err(ApiError::new(
        ErrorCode::WorkspaceGone,
        "the job's files have been deleted after the retention period (GANTRY_WORKSPACE_RETENTION_DAYS)",
    ))
}

/// Returns the job if the caller may see it and its files can still be changed.
pub(super) async fn writable(api: &PublicApi, who: &Identity, id: JobId) -> Result<JobRecord, ApiError> {
    let job = with_workspace(api, who, id).await?;
    if job.state().is_finished() {
        let detail = format!("the job is {}; its files are as it left them", job.state());
        return Err(ApiError::new(ErrorCode::JobFinished, detail));
    }
    Ok(job)
}

/// Checks a path of the request.
pub(super) fn path(parsed: Result<WorkspacePath, &'static str>) -> Result<WorkspacePath, ApiError> {
    parsed.map_err(|rule| ApiError::field("path", rule))
}

/// Maps a file error to an API error.
pub(in crate::public) fn to_api_error(error: FileError) -> ApiError {
    let detail = error.to_string();
    match error {
        FileError::NotFound => ApiError::new(ErrorCode::NotFound, "file or directory not found in the workspace"),
        FileError::NotAFile(_) | FileError::PermissionDenied => ApiError::new(ErrorCode::NotAFile, detail),
        FileError::NotADirectory => ApiError::new(ErrorCode::NotADirectory, detail),
        FileError::TooLarge(_) | FileError::TimedOut => ApiError::new(ErrorCode::TooLarge, detail),
        FileError::NoSpace(_) => ApiError::new(ErrorCode::InsufficientStorage, detail),
        FileError::UploadInProgress => ApiError::new(ErrorCode::Conflict, detail).with_retry_after(RETRY_UPLOAD),
        FileError::StagingFull(_) => ApiError::new(ErrorCode::RateLimited, detail).with_retry_after(RETRY_UPLOAD),
        FileError::RejectedEntry { entry, reason } => ApiError::field(entry, reason),
        FileError::MalformedArchive(_) => ApiError::field("body", detail),
        FileError::Io(error) => ApiError::internal(error),
    }
}
