//! `GET /api/memory/versions`: lists the versions of a document.

use axum::{Json, extract::State};
use protocol::{MemoryVersion, Page};

use super::document::{DocumentParams, not_found};
use crate::{
    extract::ApiQuery,
    problem::ApiError,
    public::{PublicApi, caller::Caller},
};

/// Lists the versions of a document, newest first.
///
/// The current version is the first one. The last 50 are kept.
#[utoipa::path(
    get, path = "/api/memory/versions", operation_id = "list_memory_versions", tag = "memory", params(DocumentParams),
    responses(
        (status = 200, body = Page<MemoryVersion>, description = "All versions, at most 50."),
        (status = 404, description = "No such document."),
    )
)]
pub(super) async fn versions(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiQuery(params): ApiQuery<DocumentParams>,
) -> Result<Json<Page<MemoryVersion>>, ApiError> {
    let items = api.store.memory_versions(&who.user, &params.path()?).await?.ok_or_else(not_found)?;
    Ok(Json(Page { items, next_cursor: None }))
}
