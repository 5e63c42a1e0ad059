//! `GET /api/jobs/{id}/files`: lists a directory of the workspace, by name.

use std::{ffi::OsString, os::unix::ffi::OsStringExt, str::FromStr};

use axum::{Json, extract::State};
use protocol::{FileEntry, JobId, Page};
use serde::Deserialize;
use utoipa::IntoParams;

use super::workspace::{path, readable, to_api_error};
use workspace::WorkspacePath;

use crate::{
    extract::{ApiPath, ApiQuery},
    problem::ApiError,
    public::{PublicApi, caller::Caller, cursor},
};

/// Query parameters.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::public) struct Params {
    /// Directory relative to the workspace; default: the workspace itself.
    #[serde(default)]
    path: String,
    /// Maximum number of items, 1 to 200; default 50.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<u32>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// Lists a directory of the job's workspace.
///
/// Symbolic links are listed as links and not followed.
#[utoipa::path(
    get, path = "/api/jobs/{id}/files", operation_id = "list_files", tag = "files",
    params(("id" = String, Path, description = "Job id."), Params),
    responses(
        (status = 200, body = Page<FileEntry>, description = "A page, ordered by name."),
        (status = 409, description = "Not a directory. `no_workspace`: the job runs without a container."),
        (status = 410, description = "The job's files have been deleted after the retention period."),
    )
)]
pub(in crate::public) async fn list(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiPath(id): ApiPath<JobId>,
    ApiQuery(params): ApiQuery<Params>,
) -> Result<Json<Page<FileEntry>>, ApiError> {
    readable(&api, &who, id).await?;
    let limit = cursor::limit(params.limit)? as usize;
    let directory = path(WorkspacePath::parse_for_list(&params.path))?;
    let after = params.cursor.as_deref().map(cursor::read::<Name>).transpose()?;
    let workspaces = api.workspaces.clone();
    let list = move || workspaces.list(id, &directory, after.as_ref().map(|Name(name)| name.as_os_str()), limit);
    let page = api.file_work.run(&who.user, list).await.map_err(to_api_error)?;
    let next_cursor = page.next_after.map(|name| cursor::write(&Name(name).to_string()));
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
