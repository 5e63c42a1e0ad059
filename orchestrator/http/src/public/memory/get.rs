//! `GET /api/memory`: reads a document.

use axum::{
    Json,
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use protocol::MemoryDocument;
use serde::Deserialize;
use utoipa::IntoParams;

use super::document::{etag, not_found, path};
use crate::{
    extract::ApiQuery,
    problem::ApiError,
    public::{PublicApi, caller::Caller},
};

/// Query parameters.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Params {
    /// Path of the document, such as `notes/today.md`.
    path: String,
    /// Number of an older version; default: the current one.
    #[param(minimum = 1)]
    version: Option<u64>,
}

/// Reads a document of the caller's memory.
///
/// The current version, or the one that `version` names.
#[utoipa::path(
    get, path = "/api/memory", operation_id = "read_memory", tag = "memory", params(Params),
    responses(
        (status = 200, body = MemoryDocument, description = "The document.",
            headers(("ETag" = String, description = "The version in quotes, for If-Match."))),
        (status = 404, description = "No such document or version."),
    )
)]
pub(super) async fn get(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiQuery(params): ApiQuery<Params>,
) -> Result<Response, ApiError> {
    let path = path(&params.path)?;
    let document = api.store.memory_document(&who.user, &path, params.version).await?.ok_or_else(not_found)?;
    Ok(([(header::ETAG, etag(document.version)?)], Json(document)).into_response())
}
