//! Request headers of clients: `Idempotency-Key` is read and bound to a request, and a repeated request gets the first response again.

use std::time::Duration;

use axum::{
    extract::FromRequestParts,
    http::{HeaderValue, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};
use protocol::{ErrorCode, Source};

use crate::{
    auth::digest,
    http::problem::ApiError,
    store::{Claim, Key, MAX_PENDING, MAX_PENDING_PER_USER, QueueFull},
};

const MAX_KEY_BYTES: usize = 255;
/// `Retry-After` for a full queue: jobs take minutes.
const QUEUE_FULL_RETRY: Duration = Duration::from_secs(30);

/// The idempotency key, if any, and the kind of client.
pub(super) struct ClientHeaders {
    key: Option<String>,
    /// The source of what the request creates.
    pub(super) source: Source,
}

impl<S: Send + Sync> FromRequestParts<S> for ClientHeaders {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, ApiError> {
        let agent = parts.headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok());
        let ours = agent.is_some_and(|agent| agent.starts_with("gantry-cli/"));
        let source = if ours { Source::Cli } else { Source::Api };
        let Some(value) = parts.headers.get("idempotency-key") else { return Ok(Self { key: None, source }) };
        match value.to_str() {
            Ok(key) if (1..=MAX_KEY_BYTES).contains(&key.len()) => Ok(Self { key: Some(key.to_owned()), source }),
            _ => {
                let detail = format!("Idempotency-Key must be 1 to {MAX_KEY_BYTES} visible ASCII characters");
                Err(ApiError::new(ErrorCode::BadRequest, detail))
            }
        }
    }
}

/// A key that is bound to one request.
pub(super) struct Bound {
    user: String,
    key: String,
    digest: String,
}

impl ClientHeaders {
    /// Binds the key to the operation and the raw body.
    pub(super) fn bind(self, user: &str, operation: &str, body: &[u8]) -> Option<Bound> {
        let key = self.key?;
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

/// The id of the created object.
#[derive(serde::Deserialize)]
struct Made {
    id: protocol::JobId,
}

fn queue_full(full: QueueFull) -> ApiError {
    let detail = match full {
        QueueFull::User => {
            format!("too many pending jobs: at most {MAX_PENDING_PER_USER} per user, including held ones")
        }
        QueueFull::Instance => format!("too many pending jobs: at most {MAX_PENDING}; try again later"),
    };
    ApiError::new(ErrorCode::RateLimited, detail).with_retry_after(QUEUE_FULL_RETRY)
}

/// The response to a request with a known key; none for a new key.
pub(super) fn answer(claim: Claim) -> Result<Option<Response>, ApiError> {
    match claim {
        Claim::New => Ok(None),
        Claim::Mismatch => Err(ApiError::new(
            ErrorCode::IdempotencyMismatch,
            "this Idempotency-Key was used for another request; use a new key",
        )),
        Claim::QueueFull(full) => Err(queue_full(full)),
        Claim::Replayed { status, body } => {
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
            let made = (status == StatusCode::CREATED).then(|| serde_json::from_str::<Made>(&body).ok()).flatten();
            let mut response = (status, body).into_response();
            let headers = response.headers_mut();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            if let Some(location) = made.and_then(|made| HeaderValue::from_str(&format!("/api/jobs/{}", made.id)).ok())
            {
                headers.insert(header::LOCATION, location);
            }
            headers.insert("idempotent-replayed", HeaderValue::from_static("true"));
            Ok(Some(response))
        }
    }
}
