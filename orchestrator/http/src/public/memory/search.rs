//! `GET /api/memory/search`: finds documents by their words.

use axum::{Json, extract::State};
use domain::memory::MemoryQuery;
use protocol::{MemoryMatch, Page};
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
    /// Words; at most 64 and 1,000 bytes. There are no operators.
    q: String,
    /// Maximum number of items, 1 to 200; default 50.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<u32>,
}

/// Searches the caller's memory, best match first.
///
/// Finds the current versions of documents that have all words in the path or the text; if there are none, those that have some.
/// Case, accents and English word endings do not matter. Any part of a Chinese, Japanese or Korean text is found.
#[utoipa::path(
    get, path = "/api/memory/search", operation_id = "search_memory", tag = "memory", params(Params),
    responses(
        (status = 200, body = Page<MemoryMatch>, description = "The best matches. There are no further pages."),
    )
)]
pub(super) async fn search(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiQuery(params): ApiQuery<Params>,
) -> Result<Json<Page<MemoryMatch>>, ApiError> {
    let limit = cursor::limit(params.limit)?;
    let query = MemoryQuery::parse(&params.q).map_err(|rule| ApiError::field("q", rule))?;
    let _permit = api.read_permit(&who).await?;
    let items = api.store.search_memory(&who.user, query, limit).await?;
    Ok(Json(Page { items, next_cursor: None }))
}
