//! `GET /api/memory/tree`: lists documents.

use axum::{Json, extract::State};
use domain::memory::MemoryPath;
use protocol::{MemoryEntry, Page};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::{
    extract::ApiQuery,
    problem::ApiError,
    public::{PublicApi, caller::Caller, cursor},
};

/// Query parameters.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Params {
    /// Directory, such as `notes`; default: all documents.
    #[serde(default)]
    path: String,
    /// Maximum number of items, 1 to 200; default 50.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<u32>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// Lists documents of the caller's memory by path.
///
/// Those in a directory and below it; by default all.
#[utoipa::path(
    get, path = "/api/memory/tree", operation_id = "list_memory", tag = "memory", params(Params),
    responses(
        (status = 200, body = Page<MemoryEntry>, description = "A page; empty if there is no such directory."),
    )
)]
pub(super) async fn tree(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiQuery(params): ApiQuery<Params>,
) -> Result<Json<Page<MemoryEntry>>, ApiError> {
    let limit = cursor::limit(params.limit)?;
    let directory = MemoryPath::parse_directory(&params.path).map_err(|rule| ApiError::field("path", rule))?;
    let after: String = params.cursor.as_deref().map(cursor::read).transpose()?.unwrap_or_default();
    let _permit = api.read_permit(&who).await?;
    let entries = api.store.memory_tree(&who.user, directory.as_ref(), &after, limit + 1).await?;
    let items = entries.into_iter().map(|entry| (entry.path.clone(), entry)).collect();
    Ok(Json(cursor::page(items, limit, String::clone)))
}
