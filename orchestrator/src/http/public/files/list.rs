//! `GET /api/jobs/{id}/files`: one directory of the workspace, by name.

use std::{ffi::OsString, os::unix::ffi::OsStringExt, str::FromStr};

use axum::{Json, extract::State};
use protocol::{FileEntry, JobId, Page, Problem};
use serde::Deserialize;
use utoipa::IntoParams;

use super::workspace::{path, readable};
use crate::{
    http::{
        extract::{ApiPath, ApiQuery},
        problem::ApiError,
        public::{PublicApi, caller::Caller, cursor},
    },
    workspace::WorkspacePath,
};

/// Which directory.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::http::public) struct Params {
    /// Relative to the workspace; the workspace itself when left out.
    #[serde(default)]
    path: String,
    /// 1 to 200; 50 when left out.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<u32>,
    /// From the last page's `next_cursor`.
    cursor: Option<String>,
}

/// Lists a directory of the job's workspace. Links are told as links and not followed.
#[utoipa::path(
    get, path = "/api/jobs/{id}/files", tag = "files",
    params(("id" = String, Path, description = "The job."), Params),
    responses(
        (status = 200, body = Page<FileEntry>, description = "One page, by name."),
        (status = 404, body = Problem, content_type = "application/problem+json", description = "Missing, or another user's."),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "Not a directory."),
        (status = 410, body = Problem, content_type = "application/problem+json", description = "The files are no longer kept."),
        (status = 422, body = Problem, content_type = "application/problem+json", description = "A parameter is wrong."),
    )
)]
pub(in crate::http::public) async fn list(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiPath(id): ApiPath<JobId>,
    ApiQuery(params): ApiQuery<Params>,
) -> Result<Json<Page<FileEntry>>, ApiError> {
    readable(&api, &who, id).await?;
    let limit = cursor::limit(params.limit)? as usize;
    let folder = path(WorkspacePath::to_list(&params.path))?;
    let after = params.cursor.as_deref().map(cursor::read::<Name>).transpose()?;
    let workspaces = api.workspaces.clone();
    let list = move || workspaces.list(id, &folder, after.as_ref().map(|Name(name)| name.as_os_str()), limit);
    let page = api.file_work.run(&who.user, list).await?;
    let next_cursor = page.last.map(|name| cursor::write(&Name(name).to_string()));
    Ok(Json(Page { items: page.entries, next_cursor }))
}

/// A name of any bytes, in hexadecimal.
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
