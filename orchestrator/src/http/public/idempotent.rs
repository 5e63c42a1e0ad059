//! `Idempotency-Key`: read, digested, and the first answer given again.

use axum::{
    extract::FromRequestParts,
    http::{HeaderValue, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};
use protocol::ErrorCode;

use crate::{
    auth::digest,
    http::problem::ApiError,
    store::{Claim, Key},
};

const MAX_KEY_BYTES: usize = 255;

/// The header, when it is there.
pub(super) struct IdempotencyKey(Option<String>);

impl<S: Send + Sync> FromRequestParts<S> for IdempotencyKey {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, ApiError> {
        let Some(value) = parts.headers.get("idempotency-key") else { return Ok(Self(None)) };
        match value.to_str() {
            Ok(key) if (1..=MAX_KEY_BYTES).contains(&key.len()) => Ok(Self(Some(key.to_owned()))),
            _ => {
                let detail = format!("Idempotency-Key must be 1 to {MAX_KEY_BYTES} visible ASCII characters");
                Err(ApiError::new(ErrorCode::BadRequest, detail))
            }
        }
    }
}

/// A key bound to one request.
pub(super) struct Bound {
    user: String,
    key: String,
    digest: String,
}

impl IdempotencyKey {
    /// Binds the key to what is asked: the operation and the body as it came.
    pub(super) fn bind(self, user: &str, operation: &str, body: &[u8]) -> Option<Bound> {
        let key = self.0?;
        let mut asked = Vec::with_capacity(operation.len() + 1 + body.len());
        asked.extend_from_slice(operation.as_bytes());
        asked.push(0);
        asked.extend_from_slice(body);
        Some(Bound { user: user.to_owned(), key, digest: digest(&asked) })
    }
}

impl Bound {
    pub(super) fn key(&self) -> Key<'_> {
        Key { user: &self.user, key: &self.key, digest: &self.digest }
    }
}

/// The answer for a key that was seen before; none for a new one.
pub(super) fn answer(claim: Claim) -> Result<Option<Response>, ApiError> {
    match claim {
        Claim::New => Ok(None),
        Claim::Mismatch => Err(ApiError::new(
            ErrorCode::IdempotencyMismatch,
            "this Idempotency-Key was used with another request; use a new key",
        )),
        Claim::Replayed { status, body } => {
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
            let mut response = (status, body).into_response();
            let headers = response.headers_mut();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            headers.insert("idempotent-replayed", HeaderValue::from_static("true"));
            Ok(Some(response))
        }
    }
}
