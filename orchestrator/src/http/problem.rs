//! Errors on the wire: `application/problem+json`.
//!
//! Owns the one shape an error leaves in. A handler answers with an `ApiError`; the frame in `layers` gives it the
//! request's id, renders it and logs it, once. Never shows a cause to the caller.

use std::{error::Error, sync::Arc, time::Duration};

use axum::{
    Json,
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use protocol::{ErrorCode, FieldError, Problem};

use crate::telemetry::error_chain;

/// An error of an endpoint, with what its caller and the log each get to know.
#[derive(Debug)]
pub struct ApiError {
    code: ErrorCode,
    detail: String,
    reason: Option<String>,
    errors: Vec<FieldError>,
    retry_after: Option<Duration>,
    /// It is there, and another's: told as missing, and written down.
    foreign: bool,
    source: Option<Box<dyn Error + Send + Sync>>,
}

/// What a handler endpoint answers.
pub type ApiResult<T> = Result<T, ApiError>;

impl ApiError {
    /// Of this code; `detail` says what happened and what to do.
    pub fn new(code: ErrorCode, detail: impl Into<String>) -> Self {
        Self {
            code,
            detail: detail.into(),
            reason: None,
            errors: Vec::new(),
            retry_after: None,
            foreign: false,
            source: None,
        }
    }

    /// 500. The cause goes to the log alone.
    pub fn internal(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self::new(ErrorCode::Internal, "something went wrong here; the log has it under the request id")
            .with_source(source)
    }

    /// 404: missing, or another user's, in the same words.
    pub fn not_found() -> Self {
        Self::new(ErrorCode::NotFound, "there is no such thing, or it is not yours")
    }

    /// 404 for what is there and another user's. The caller cannot tell it from what is missing; the audit can.
    pub fn foreign() -> Self {
        Self { foreign: true, ..Self::not_found() }
    }

    /// 401.
    pub fn unauthorized(detail: impl Into<String>) -> Self {
        Self::new(ErrorCode::Unauthorized, detail)
    }

    /// 422 for one field.
    pub fn field(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::invalid(vec![FieldError { field: field.into(), message: message.into() }])
    }

    /// 422, field by field.
    pub fn invalid(errors: Vec<FieldError>) -> Self {
        let detail = errors.first().map_or_else(
            || "the request is not valid".to_owned(),
            |first| format!("{}: {}", first.field, first.message),
        );
        Self { errors, ..Self::new(ErrorCode::Invalid, detail) }
    }

    /// 422 for a field whose feature is not there.
    pub fn not_available(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { code: ErrorCode::NotAvailable, ..Self::field(field, message) }
    }

    /// 422 for fields whose features are not there.
    pub fn not_available_fields(errors: Vec<FieldError>) -> Self {
        Self { code: ErrorCode::NotAvailable, ..Self::invalid(errors) }
    }

    /// The reason, where the code has several.
    #[must_use]
    pub fn with_reason(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(reason.into());
        self
    }

    /// When to try again.
    #[must_use]
    pub fn with_retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    /// The cause, for the log.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// Its code.
    pub const fn code(&self) -> ErrorCode {
        self.code
    }

    /// Whether it is about what is another user's.
    pub(super) const fn is_foreign(&self) -> bool {
        self.foreign
    }

    /// What the caller reads.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// What is wrong, field by field.
    pub fn errors(&self) -> &[FieldError] {
        &self.errors
    }

    /// The status it is answered with.
    pub fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    /// For a response that something else than a handler made and that has no problem yet.
    pub(super) fn for_status(status: StatusCode) -> Option<Self> {
        let (code, detail) = match status {
            StatusCode::NOT_FOUND => (ErrorCode::NotFound, "there is no such path"),
            StatusCode::METHOD_NOT_ALLOWED => (ErrorCode::MethodNotAllowed, "this path does not take this method"),
            StatusCode::PAYLOAD_TOO_LARGE => (ErrorCode::TooLarge, "the body is too large for this endpoint"),
            StatusCode::UNSUPPORTED_MEDIA_TYPE => (ErrorCode::UnsupportedMediaType, "send application/json"),
            StatusCode::REQUEST_TIMEOUT => (ErrorCode::RequestTimeout, "the body took too long to arrive"),
            StatusCode::UNAUTHORIZED => (ErrorCode::Unauthorized, "a valid token is needed"),
            StatusCode::FORBIDDEN => (ErrorCode::Forbidden, "the role does not allow it"),
            StatusCode::CONFLICT => (ErrorCode::Conflict, "not possible in the present state"),
            StatusCode::UNPROCESSABLE_ENTITY => (ErrorCode::Invalid, "the request is not valid"),
            StatusCode::TOO_MANY_REQUESTS => (ErrorCode::RateLimited, "too many requests"),
            StatusCode::INSUFFICIENT_STORAGE => (ErrorCode::InsufficientStorage, "the server's disk is full"),
            StatusCode::SERVICE_UNAVAILABLE => (ErrorCode::Unavailable, "try again in a moment"),
            other if other.is_client_error() => (ErrorCode::BadRequest, "the request cannot be read"),
            other if other.is_server_error() => {
                return Some(Self::internal(format!("a response with status {other} and without a problem")));
            }
            _ => return None,
        };
        Some(Self::new(code, detail))
    }

    /// The cause with its sources, for the log.
    pub(super) fn causes(&self) -> Option<String> {
        self.source.as_deref().map(|source| error_chain(source))
    }

    /// The response with the request's id in it.
    pub(super) fn render(&self, request_id: &str) -> Response {
        let problem = Problem {
            kind: format!("urn:gantry:problem:{}", self.code.as_str()),
            title: self.code.title().to_owned(),
            status: self.status().as_u16(),
            detail: self.detail.clone(),
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
            // Rounded up: a client that waits this long must find it over.
            let seconds = after.as_secs() + u64::from(after.subsec_nanos() > 0);
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds.max(1)));
        }
        response
    }
}

/// What may pass in the store has mostly passed by then: a write of another process, a checkpoint.
const STORE_RETRY: Duration = Duration::from_secs(2);
const RETRY_AFTER: HeaderName = header::RETRY_AFTER;

/// How an error travels from a handler to the frame, and to several callers of one thing.
#[derive(Debug, Clone)]
pub struct Carried(pub(super) Arc<ApiError>);

impl From<ApiError> for Carried {
    fn from(error: ApiError) -> Self {
        Self(Arc::new(error))
    }
}

impl IntoResponse for Carried {
    fn into_response(self) -> Response {
        let mut response = self.0.status().into_response();
        response.extensions_mut().insert(self);
        response
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        Carried::from(self).into_response()
    }
}

impl From<crate::store::StoreError> for ApiError {
    fn from(error: crate::store::StoreError) -> Self {
        if error.may_pass() {
            return Self::new(ErrorCode::Unavailable, "the database is busy; try again in a moment")
                .with_retry_after(STORE_RETRY)
                .with_source(error);
        }
        Self::internal(error)
    }
}
