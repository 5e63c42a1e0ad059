//! `/api/memory`: a user's documents and their versions.

use axum::{
    Json,
    extract::{DefaultBodyLimit, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use domain::memory::{MAX_DOCUMENTS, MAX_MEMORY_DOCUMENT_BYTES, MemoryPath, MemoryQuery};
use protocol::{
    ErrorCode, MemoryAuthor, MemoryContent, MemoryDocument, MemoryEntry, MemoryMatch, MemoryVersion, Page, UserId,
};
use serde::Deserialize;
use store::{MemoryDeleteOutcome, MemoryDeletion, MemoryText, MemoryWrite, MemoryWriteOutcome};
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    PublicApi,
    request::{ApiJson, ApiQuery, AuditedCaller, Caller, IfMatch, audited, cursor, etag},
};
use crate::problem::ApiError;

/// Maximum body of a write: JSON makes six bytes of a control character.
const MAX_WRITE_BODY_BYTES: usize = 6 * MAX_MEMORY_DOCUMENT_BYTES + 1024;

pub(super) fn routes() -> OpenApiRouter<PublicApi> {
    let put = audited("memory.write", routes!(put)).layer(DefaultBodyLimit::max(MAX_WRITE_BODY_BYTES));
    OpenApiRouter::new()
        .routes(routes!(get))
        .merge(put)
        .merge(audited("memory.delete", routes!(delete)))
        .routes(routes!(search))
        .routes(routes!(tree))
        .routes(routes!(versions))
}

/// Query parameters of an endpoint for one document.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct DocumentParams {
    /// Path of the document, such as `notes/today.md`.
    path: String,
}

impl DocumentParams {
    /// The path, if it is valid.
    fn path(&self) -> Result<MemoryPath, ApiError> {
        path(&self.path)
    }
}

/// Checks a path of the request.
fn path(path: &str) -> Result<MemoryPath, ApiError> {
    MemoryPath::parse(path).map_err(|rule| ApiError::field("path", rule))
}

/// 404: there is no document, or no such version of it.
fn not_found() -> ApiError {
    ApiError::new(
        ErrorCode::NotFound,
        "no such document or version; list the documents with GET /api/memory/tree or `gantry memory ls`",
    )
}

/// 412: the document has another version than the caller expects.
fn version_mismatch(current: Option<u64>) -> ApiError {
    let detail = match current {
        Some(version) => format!("the document has version {version} now; read it again and repeat the change"),
        None => "the document does not exist; write it without If-Match".to_owned(),
    };
    ApiError::new(ErrorCode::PreconditionFailed, detail)
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct GetParams {
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
    get, path = "/api/memory", operation_id = "read_memory", tag = "memory", params(GetParams),
    responses(
        (status = 200, body = MemoryDocument, description = "The document.",
            headers(("ETag" = String, description = "The version in quotes, for If-Match."))),
        (status = 404, description = "No such document or version."),
    )
)]
async fn get(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiQuery(params): ApiQuery<GetParams>,
) -> Result<Response, ApiError> {
    let path = path(&params.path)?;
    let document = api.store.memory_document(&who.user, &path, params.version).await?.ok_or_else(not_found)?;
    Ok(([(header::ETAG, etag(document.version)?)], Json(document)).into_response())
}

/// Writes a new version of a document.
///
/// The last 50 versions are kept. A document has at most 1 MiB, and a user at most 20,000 documents.
#[utoipa::path(
    put, path = "/api/memory", operation_id = "write_memory", tag = "memory",
    request_body(content = MemoryContent, example = json!({"content": "The team meets on Mondays."})),
    params(
        DocumentParams,
        ("If-Match" = Option<String>, Header, description = "The version to replace, from ETag; * for any."),
    ),
    responses(
        (status = 200, body = MemoryEntry, description = "The document has a new version.",
            headers(("ETag" = String, description = "The new version in quotes."))),
        (status = 201, body = MemoryEntry, description = "The document is new.",
            headers(("ETag" = String, description = "The new version in quotes."))),
        (status = 409, description = "The user has the maximum number of documents, or they have the maximum size."),
        (status = 412, description = "The document has another version than If-Match says."),
        (status = 413, description = "The document would exceed 1 MiB."),
    )
)]
async fn put(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    ApiQuery(params): ApiQuery<DocumentParams>,
    IfMatch(expected): IfMatch,
    body: ApiJson<MemoryContent>,
) -> Result<Response, ApiError> {
    let kib = body.value.content.len().div_ceil(1024) as u64;
    if let Err(wait) = api.limits.memory_kib.take(&who.user, kib, api.clock.monotonic()) {
        let detail = "too much text is written to memory; try again later";
        return Err(ApiError::new(ErrorCode::RateLimited, detail).with_retry_after(wait));
    }
    let write = MemoryWrite {
        path: params.path()?,
        text: MemoryText::Replace(body.value.content),
        author: MemoryAuthor::User(UserId(who.user.clone())),
        user: who.user,
        expected,
        audit: entry,
    };
    match api.store.write_memory(write).await? {
        MemoryWriteOutcome::Stored { entry, is_new } => {
            let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
            Ok((status, [(header::ETAG, etag(entry.version)?)], Json::<MemoryEntry>(entry)).into_response())
        }
        MemoryWriteOutcome::VersionMismatch { current } => Err(version_mismatch(current)),
        MemoryWriteOutcome::TooLarge { bytes } => {
            let detail = format!("the document has {bytes} bytes; the maximum is {MAX_MEMORY_DOCUMENT_BYTES}");
            Err(ApiError::new(ErrorCode::TooLarge, detail))
        }
        MemoryWriteOutcome::TooManyDocuments => {
            let detail = format!("there are {MAX_DOCUMENTS} documents, which is the maximum; delete some");
            Err(ApiError::new(ErrorCode::Conflict, detail))
        }
    }
}

/// Deletes a document with all its versions.
///
/// With `If-Match` only if its current version is the named one.
#[utoipa::path(
    delete, path = "/api/memory", operation_id = "delete_memory", tag = "memory",
    params(
        DocumentParams,
        ("If-Match" = Option<String>, Header, description = "The version to delete, from ETag; * for any."),
    ),
    responses(
        (status = 204, description = "The document is deleted."),
        (status = 400, description = "Malformed If-Match."),
        (status = 404, description = "No such document."),
        (status = 412, description = "The document has another version than If-Match says."),
    )
)]
async fn delete(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    ApiQuery(params): ApiQuery<DocumentParams>,
    IfMatch(expected): IfMatch,
) -> Result<StatusCode, ApiError> {
    let deletion = MemoryDeletion { user: who.user, path: params.path()?, expected, audit: entry };
    match api.store.delete_memory(deletion).await? {
        MemoryDeleteOutcome::Deleted => Ok(StatusCode::NO_CONTENT),
        MemoryDeleteOutcome::VersionMismatch { current } => Err(version_mismatch(Some(current))),
        MemoryDeleteOutcome::Missing => Err(not_found()),
    }
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct SearchParams {
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
    get, path = "/api/memory/search", operation_id = "search_memory", tag = "memory", params(SearchParams),
    responses(
        (status = 200, body = Page<MemoryMatch>, description = "The best matches. There are no further pages."),
    )
)]
async fn search(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiQuery(params): ApiQuery<SearchParams>,
) -> Result<Json<Page<MemoryMatch>>, ApiError> {
    let limit = cursor::limit(params.limit)?;
    let query = MemoryQuery::parse(&params.q).map_err(|rule| ApiError::field("q", rule))?;
    let _permit = api.read_permit(&who).await?;
    let items = api.store.search_memory(&who.user, query, limit).await?;
    Ok(Json(Page { items, next_cursor: None }))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct TreeParams {
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
    get, path = "/api/memory/tree", operation_id = "list_memory", tag = "memory", params(TreeParams),
    responses(
        (status = 200, body = Page<MemoryEntry>, description = "A page; empty if there is no such directory."),
    )
)]
async fn tree(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiQuery(params): ApiQuery<TreeParams>,
) -> Result<Json<Page<MemoryEntry>>, ApiError> {
    let limit = cursor::limit(params.limit)?;
    let directory = MemoryPath::parse_directory(&params.path).map_err(|rule| ApiError::field("path", rule))?;
    let after: String = params.cursor.as_deref().map(cursor::read).transpose()?.unwrap_or_default();
    let _permit = api.read_permit(&who).await?;
    let entries = api.store.memory_tree(&who.user, directory.as_ref(), &after, limit + 1).await?;
    Ok(Json(cursor::page(entries, limit, String::clone)))
}

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
async fn versions(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiQuery(params): ApiQuery<DocumentParams>,
) -> Result<Json<Page<MemoryVersion>>, ApiError> {
    let items = api.store.memory_versions(&who.user, &params.path()?).await?.ok_or_else(not_found)?;
    Ok(Json(Page { items, next_cursor: None }))
}
