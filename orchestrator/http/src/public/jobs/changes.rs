//! What a job has changed in its workspace. Owns how long an answer is known to stay the same.

use std::time::Duration;

use axum::{
    Json,
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use base::digest::sha256_hex;
use domain::job::JobRecord;
use protocol::{FileChanges, JobId};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;
use utoipa::IntoParams;
use workspace::{Comparison, WorkspacePath};

use super::{
    file_path::PathParam,
    files::{path, readable, to_api_error},
};
use crate::{
    problem::ApiError,
    public::{
        PublicApi,
        request::{ApiPath, ApiQuery, Caller},
        response::etag,
    },
};

/// The container of a job that ended before has been removed, so nothing can change the job's files.
const SETTLED_AFTER: Duration = Duration::from_mins(5);

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ChangesParams {
    /// Only this file, or this directory and what is below it.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    path: PathParam,
}

/// Lists the files that changed since the job first started.
///
/// The files of the workspace that were added, modified or deleted. Works while the job is running and for as long as its files are kept. Directories and special files are not compared. A symbolic
/// link has its target as its content. A repeated request with `If-None-Match` compares nothing if the job ended some minutes ago.
#[utoipa::path(
    get, path = "/api/jobs/{id}/changes", operation_id = "list_changes", tag = "files",
    params(
        ("id" = String, Path, description = "Job id."), ChangesParams,
        ("If-None-Match" = Option<String>, Header, description = "`ETag` of an earlier answer."),
    ),
    responses(
        (status = 200, body = FileChanges, description = "The changes, ordered by path.",
            headers(("ETag" = String, description = "For If-None-Match."))),
        (status = 304, description = "The changes are those that `If-None-Match` names."),
        (status = 409, description = "`no_workspace`: the job runs without a container."),
        (status = 410, description = "The job's files have been deleted after the retention period."),
    )
)]
pub(super) async fn changes(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiPath(id): ApiPath<JobId>,
    ApiQuery(params): ApiQuery<ChangesParams>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let within = path(WorkspacePath::parse_for_list(&params.path.0))?;
    let job = readable(&api, &who, id).await?;
    let settled = settled_tag(&api, &job)?;
    if let Some(tag) = settled.as_ref().filter(|tag| etag::is_known(&headers, tag)) {
        return Ok(not_modified(tag));
    }
    let compared = if job.attempt == 0 { Comparison::default() } else { compare(&api, &who.user, id, within).await? };
    let tag = match settled.filter(|_| compared.is_in_time) {
        Some(tag) => tag,
        None => content_tag(&compared.changes)?,
    };
    if etag::is_known(&headers, &tag) {
        return Ok(not_modified(&tag));
    }
    Ok(([(header::ETAG, tag)], Json::<FileChanges>(compared.changes)).into_response())
}

async fn compare(api: &PublicApi, user: &str, id: JobId, within: WorkspacePath) -> Result<Comparison, ApiError> {
    let cancelled = CancellationToken::new();
    let _client_gone = cancelled.clone().drop_guard();
    let workspaces = api.workspaces.clone();
    let compare = move || workspaces.changes(id, &within, &cancelled);
    api.file_work.run(user, compare).await.map_err(to_api_error)
}

/// The tag of all later answers, if the job's files cannot change any more. Weak, as all of them: the answer may be compressed.
fn settled_tag(api: &PublicApi, job: &JobRecord) -> Result<Option<HeaderValue>, ApiError> {
    let ended = job.finished_at().filter(|at| *at + SETTLED_AFTER <= api.clock.now());
    ended.map(|at| tag(&format!("ended-{:x}", at.timestamp_micros()))).transpose()
}

fn content_tag(changes: &FileChanges) -> Result<HeaderValue, ApiError> {
    let content = serde_json::to_vec(changes).map_err(ApiError::internal)?;
    tag(&sha256_hex(&content)[..32])
}

fn tag(name: &str) -> Result<HeaderValue, ApiError> {
    HeaderValue::from_str(&format!("W/\"{name}\"")).map_err(ApiError::internal)
}

fn not_modified(tag: &HeaderValue) -> Response {
    (StatusCode::NOT_MODIFIED, [(header::ETAG, tag.clone())]).into_response()
}
