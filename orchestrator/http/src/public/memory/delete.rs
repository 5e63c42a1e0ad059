//! `DELETE /api/memory`: deletes a document.

use axum::{extract::State, http::StatusCode};

use super::document::{DocumentParams, IfMatch, not_found, version_mismatch};
use store::{MemoryDeleteOutcome, MemoryDeletion};

use crate::{
    extract::ApiQuery,
    problem::ApiError,
    public::{PublicApi, audit_entry::AuditedCaller},
};

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
pub(super) async fn delete(
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
