//! `DELETE /api/secrets/{name}`: deletes a secret.

use axum::{extract::State, http::StatusCode};

use crate::{
    extract::ApiPath,
    problem::ApiError,
    public::{PublicApi, audit_entry::AuditedCaller},
};

/// Deletes a secret of the caller.
///
/// It is removed at once, and tools no longer get its value.
#[utoipa::path(
    delete, path = "/api/secrets/{name}", operation_id = "delete_secret", tag = "secrets",
    params(("name" = String, Path, description = "Name of the secret.")),
    responses(
        (status = 204, description = "The secret is deleted."),
    )
)]
pub(in crate::public) async fn delete(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    ApiPath(name): ApiPath<String>,
) -> Result<StatusCode, ApiError> {
    if api.secrets.delete(&who.user, &name, &entry).await? {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(ApiError::not_found())
    }
}
