//! `PUT /api/memory`: writes a document.

use axum::{
    Json,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use protocol::{ErrorCode, MemoryAuthor, MemoryContent, MemoryEntry, UserId};

use super::document::{DocumentParams, IfMatch, etag, version_mismatch};
use domain::memory::{MAX_DOCUMENTS, MAX_MEMORY_DOCUMENT_BYTES, MAX_USER_BYTES};
use store::{MemoryText, MemoryWrite, MemoryWriteOutcome};

use crate::{
    extract::{ApiJson, ApiQuery},
    problem::ApiError,
    public::{PublicApi, audit_entry::AuditedCaller},
};

/// Writes a new version of a document.
///
/// The last 50 versions are kept. A document has at most 1 MiB, and a user at most 20,000 documents.
#[utoipa::path(
    put, path = "/api/memory", operation_id = "write_memory", tag = "memory", request_body = MemoryContent,
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
pub(super) async fn put(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    ApiQuery(params): ApiQuery<DocumentParams>,
    IfMatch(expected): IfMatch,
    body: ApiJson<MemoryContent>,
) -> Result<Response, ApiError> {
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
        MemoryWriteOutcome::StorageFull => {
            let detail =
                format!("the documents and their versions have the maximum of {MAX_USER_BYTES} bytes; delete some");
            Err(ApiError::new(ErrorCode::Conflict, detail))
        }
    }
}
