//! Error responses: `application/problem+json`.
//!
//! Owns the shape of every error response. A handler returns an `ApiError`; the layers in `layers` add the request id, render it and
//! log it, once. Never shows a cause to the caller.

use std::{error::Error, sync::Arc, time::Duration};

use axum::{
    Json,
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use base::error_chain;
use protocol::{ErrorCode, FieldError, Problem};

/// An error of an endpoint: what the caller sees, and the cause for the log.
#[derive(Debug)]
pub struct ApiError {
    code: ErrorCode,
    detail: String,
    reason: Option<String>,
    errors: Vec<FieldError>,
    retry_after: Option<Duration>,
    /// The object of the path does not exist, or belongs to another user.
    is_missing: bool,
    /// The object exists but belongs to another user: the response is the same as for a missing one, and it is audited.
    not_owner: bool,
    source: Option<Box<dyn Error + Send + Sync>>,
}

impl ApiError {
    /// An error with this code; `detail` says what happened and what to do.
    pub fn new(code: ErrorCode, detail: impl Into<String>) -> Self {
        Self {
            code,
            detail: detail.into(),
            reason: None,
            errors: Vec::new(),
            retry_after: None,
            is_missing: false,
            not_owner: false,
            source: None,
        }
    }

    /// 500. The cause is only logged.
    pub fn internal(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(ErrorCode::Internal, "internal server error; the log has the details under this request id")
            .with_source(source)
    }

    /// 404 for an object that does not exist.
    pub fn not_found() -> Self {
        let detail = "there is nothing with this id or path, or it belongs to another user";
        Self { is_missing: true, ..Self::new(ErrorCode::NotFound, detail) }
    }

    /// 404 for an object of another user. The caller cannot distinguish it from a missing one; the audit can.
    pub(crate) fn not_owner() -> Self {
        Self { not_owner: true, ..Self::not_found() }
    }

    /// 401.
    pub fn unauthorized(detail: impl Into<String>) -> Self {
        Self::new(ErrorCode::Unauthorized, detail)
    }

    /// 403 for a cookie with a request that does not come from the dashboard.
    pub(crate) fn cross_origin() -> Self {
        let detail = "a page of another site made the request, or X-Gantry-Key is missing or wrong; log in to the dashboard again";
        Self::new(ErrorCode::CrossOrigin, detail)
    }

    /// 422 for one field.
    pub fn field(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::invalid(vec![FieldError { field: field.into(), message: message.into() }])
    }

    /// 422, field by field.
    pub fn invalid(errors: Vec<FieldError>) -> Self {
        let detail = errors
            .first()
            .map_or_else(|| "invalid request".to_owned(), |first| format!("{}: {}", first.field, first.message));
        Self { errors, ..Self::new(ErrorCode::Invalid, detail) }
    }

    /// 422 for a field whose feature is not available.
    pub fn not_available(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: ErrorCode::NotAvailable, ..Self::field(field, message) }
    }

    /// 422 for fields, with another code than `invalid`.
    pub(crate) fn refused_fields(code: ErrorCode, errors: Vec<FieldError>) -> Self {
        Self { code, ..Self::invalid(errors) }
    }

    /// Adds the reason, for codes that have several.
    #[must_use]
    pub fn with_reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }

    /// Adds `Retry-After`.
    #[must_use]
    pub fn with_retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    /// Adds the cause, for the log.
    #[must_use]
    pub(crate) fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// The stable code.
    pub const fn code(&self) -> ErrorCode {
        self.code
    }

    /// Whether the object belongs to another user.
    pub(super) const fn is_not_owner(&self) -> bool {
        self.not_owner
    }

    /// The detail that the caller sees.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// The invalid fields.
    pub fn errors(&self) -> &[FieldError] {
        &self.errors
    }

    pub fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// The error for a status that the router or a layer answered with.
    pub(super) fn for_status(status: StatusCode) -> Option<Self> {
        let (code, detail) = match status {
            StatusCode::NOT_FOUND => (ErrorCode::NotFound, "path not found"),
            StatusCode::METHOD_NOT_ALLOWED => (ErrorCode::MethodNotAllowed, "method not allowed for this path"),
            StatusCode::PAYLOAD_TOO_LARGE => (ErrorCode::TooLarge, "the body is too large for this endpoint"),
            StatusCode::UNSUPPORTED_MEDIA_TYPE => {
                (ErrorCode::UnsupportedMediaType, "Content-Type must be application/json")
            }
            StatusCode::REQUEST_TIMEOUT => (ErrorCode::RequestTimeout, "the body arrived too slowly"),
            StatusCode::UNAUTHORIZED => (ErrorCode::Unauthorized, "missing or invalid token"),
            StatusCode::FORBIDDEN => (ErrorCode::Forbidden, "insufficient role"),
            StatusCode::CONFLICT => (ErrorCode::Conflict, "not possible in the current state"),
            StatusCode::UNPROCESSABLE_ENTITY => (ErrorCode::Invalid, "invalid request"),
            StatusCode::TOO_MANY_REQUESTS => (ErrorCode::RateLimited, "too many requests"),
            StatusCode::INSUFFICIENT_STORAGE => (ErrorCode::InsufficientStorage, "the server is out of disk space"),
            StatusCode::SERVICE_UNAVAILABLE => (ErrorCode::Unavailable, "temporarily unavailable; try again later"),
            other if other.is_client_error() => (ErrorCode::BadRequest, "malformed request"),
            other if other.is_server_error() => {
                return Some(Self::internal(format!("a response with status {other} without a problem")));
            }
            _ => return None,
        };
        Some(Self::new(code, detail))
    }

    /// The cause with its sources, for the log.
    pub(super) fn causes(&self) -> Option<String> {
        self.source.as_deref().map(|source| error_chain(source))
    }

    /// The response, with the request id.
    pub(super) fn render(&self, request_id: &str) -> Response {
        self.render_about(request_id, || None)
    }

    /// The response, with the request id. `object` is what the path names, such as `job 7`.
    pub(super) fn render_about(&self, request_id: &str, object: impl FnOnce() -> Option<String>) -> Response {
        let object = if self.is_missing { object() } else { None };
        let problem = Problem {
            kind: format!("urn:gantry:problem:{}", self.code.as_str()),
            title: self.code.title().to_owned(),
            status: self.status().as_u16(),
            detail: object.map_or_else(
                || self.detail.clone(),
                |object| format!("there is no {object}, or it belongs to another user"),
            ),
            code: self.code,
            reason: self.reason.clone(),
            request_id: request_id.to_owned(),
            errors: self.errors.clone(),
        };
        let mut response = (self.status(), Json(problem)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if self.code == ErrorCode::Unauthorized {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(after) = self.retry_after {
            // Rounded up, so that the wait is long enough.
            let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds.max(1)));
        }
        response
    }
}

/// A busy database has usually finished a checkpoint or a write of another process by then.
const STORE_RETRY: Duration = Duration::from_secs(2);
/// A server of a hook that did not answer may have been restarted by then.
const HOOK_RETRY: Duration = Duration::from_secs(5);
const RETRY_AFTER: HeaderName = header::RETRY_AFTER;

/// Carries an error from a handler to the layer that renders it, in the extensions of the response.
#[derive(Debug, Clone)]
pub struct ErrorExtension(pub(super) Arc<ApiError>);

impl From<ApiError> for ErrorExtension {
    fn from(error: ApiError) -> Self {
        Self(Arc::new(error))
    }
}

impl IntoResponse for ErrorExtension {
    fn into_response(self) -> Response {
        let mut response = self.0.status().into_response();
        response.extensions_mut().insert(self);
        response
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        ErrorExtension::from(self).into_response()
    }
}

impl From<FieldError> for ApiError {
    fn from(error: FieldError) -> Self {
        Self::invalid(vec![error])
    }
}

impl From<hooks::HookRefused> for ApiError {
    fn from(refused: hooks::HookRefused) -> Self {
        let code = if refused.is_transient() { ErrorCode::Unavailable } else { ErrorCode::HookDenied };
        let error = Self::new(code, refused.to_string());
        if refused.is_transient() { error.with_retry_after(HOOK_RETRY) } else { error }
    }
}

impl From<secrets::SecretError> for ApiError {
    fn from(error: secrets::SecretError) -> Self {
        match error {
            secrets::SecretError::Store(error) => error.into(),
            error => Self::internal(error),
        }
    }
}

impl From<secrets::DetectorError> for ApiError {
    fn from(error: secrets::DetectorError) -> Self {
        if error.is_transient() {
            return Self::new(ErrorCode::Unavailable, "the secrets cannot be read now; try again later")
                .with_retry_after(STORE_RETRY)
                .with_source(error);
        }
        Self::internal(error)
    }
}

impl From<store::StoreError> for ApiError {
    fn from(error: store::StoreError) -> Self {
        if let store::StoreError::UserStorageFull(storage) = &error {
            return Self::new(ErrorCode::UserStorageFull, storage.to_string());
        }
        if matches!(error, store::StoreError::QueryTooBroad { .. } | store::StoreError::TooManyToCount { .. }) {
            return Self::new(ErrorCode::QueryTooBroad, error.to_string());
        }
        if error.is_transient() {
            let cause = if error.is_full() { "the server's disk is full" } else { "the database is busy" };
            return Self::new(ErrorCode::Unavailable, format!("{cause}; try again later"))
                .with_retry_after(STORE_RETRY)
                .with_source(error);
        }
        Self::internal(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_that_is_too_broad_is_told_what_to_add() {
        let error = ApiError::from(store::StoreError::QueryTooBroad { rows: 9_000, narrower: "user= or state=" });
        assert_eq!((error.status(), error.code), (StatusCode::UNPROCESSABLE_ENTITY, ErrorCode::QueryTooBroad));
        assert!(error.detail().contains("narrow the search, for example with user= or state="), "{}", error.detail());
    }
}
