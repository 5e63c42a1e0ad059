//! Shared by the endpoints of documents: the path, the version that the caller expects, and the errors of both.

use axum::{
    extract::FromRequestParts,
    http::{HeaderValue, header, request::Parts},
};
use domain::memory::{ExpectedVersion, MemoryPath};
use protocol::ErrorCode;
use serde::Deserialize;
use utoipa::IntoParams;

use crate::problem::ApiError;

/// Query parameters of an endpoint for one document.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct DocumentParams {
    /// Path of the document, such as `notes/today.md`.
    path: String,
}

impl DocumentParams {
    /// The path, if it is valid.
    pub(super) fn path(&self) -> Result<MemoryPath, ApiError> {
        path(&self.path)
    }
}

/// Checks a path of the request.
pub(super) fn path(path: &str) -> Result<MemoryPath, ApiError> {
    MemoryPath::parse(path).map_err(|rule| ApiError::field("path", rule))
}

/// 404: there is no document, or no such version of it.
pub(super) fn not_found() -> ApiError {
    ApiError::new(
        ErrorCode::NotFound,
        "no such document or version; list the documents with GET /api/memory/tree or `gantry memory ls`",
    )
}

/// The `ETag` of a version.
pub(super) fn etag(version: u64) -> Result<HeaderValue, ApiError> {
    HeaderValue::from_str(&format!("\"{version}\"")).map_err(ApiError::internal)
}

/// 412: the document has another version than the caller expects.
pub(super) fn version_mismatch(current: Option<u64>) -> ApiError {
    let detail = match current {
        Some(version) => format!("the document has version {version} now; read it again and repeat the change"),
        None => "the document does not exist; write it without If-Match".to_owned(),
    };
    ApiError::new(ErrorCode::PreconditionFailed, detail)
}

/// The `If-Match` header, if there is one.
pub(super) struct IfMatch(pub(super) Option<ExpectedVersion>);

impl<S: Send + Sync> FromRequestParts<S> for IfMatch {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, ApiError> {
        let Some(value) = parts.headers.get(header::IF_MATCH) else { return Ok(Self(None)) };
        let expected = value.to_str().map_err(|_| "must be ASCII").and_then(ExpectedVersion::parse);
        expected
            .map(|expected| Self(Some(expected)))
            .map_err(|rule| ApiError::new(ErrorCode::BadRequest, format!("If-Match {rule}")))
    }
}
