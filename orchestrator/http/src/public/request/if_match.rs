//! Entity tags of objects that have versions, and the `If-Match` header that names one.

use axum::{
    extract::FromRequestParts,
    http::{HeaderValue, header, request::Parts},
};
use domain::ExpectedVersion;
use protocol::ErrorCode;

use crate::problem::ApiError;

/// The `ETag` of a version.
pub(in crate::public) fn etag(version: u64) -> Result<HeaderValue, ApiError> {
    HeaderValue::from_str(&format!("\"{version}\"")).map_err(ApiError::internal)
}

/// The `If-Match` header, if there is one.
pub(in crate::public) struct IfMatch(pub(in crate::public) Option<ExpectedVersion>);

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
