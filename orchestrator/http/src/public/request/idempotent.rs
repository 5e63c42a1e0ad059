//! Request headers of clients: `Idempotency-Key` is read and bound to a request, and a repeated request gets the first response again.

use std::time::Duration;

use axum::{
    body::Bytes,
    extract::FromRequestParts,
    http::{HeaderValue, StatusCode, header, request::Parts},
    response::{IntoResponse, Response},
};
use base::digest::sha256_hex_of_parts;
use dispatch::SubmitError;
use protocol::{ErrorCode, Source};
use store::{IdempotencyKey, Lookup};

use crate::{extract::MAX_INLINE_BYTES, problem::ApiError, public::PublicApi};

const MAX_KEY_BYTES: usize = 255;
/// `Retry-After` for a full queue: jobs take minutes.
pub(in crate::public) const QUEUE_FULL_RETRY: Duration = Duration::from_secs(30);

/// The idempotency key, if any, and the kind of client.
pub(in crate::public) struct ClientHeaders {
    key: Option<String>,
    /// The source of what the request creates.
    pub(in crate::public) source: Source,
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

impl ClientHeaders {
    /// The key, if any.
    pub(in crate::public) fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// Binds the key to the operation and the raw body. The digest of a large body is computed on a blocking thread.
    pub(in crate::public) async fn bind(
        self,
        user: &str,
        operation: String,
        body: Bytes,
    ) -> Result<Option<IdempotencyKey>, ApiError> {
        let Some(key) = self.key else { return Ok(None) };
        let is_large = body.len() > MAX_INLINE_BYTES;
        let digest = move || sha256_hex_of_parts(&[operation.as_bytes(), b"\0", &body]);
        let digest =
            if is_large { tokio::task::spawn_blocking(digest).await.map_err(ApiError::internal)? } else { digest() };
        Ok(Some(IdempotencyKey { user: user.to_owned(), key, digest }))
    }
}

/// The response to an earlier request with this key, if there was one.
pub(in crate::public) async fn find(
    api: &PublicApi,
    key: Option<&IdempotencyKey>,
) -> Result<Option<Response>, ApiError> {
    let Some(key) = key else { return Ok(None) };
    match api.store.idempotency(key, api.clock.now()).await? {
        Some(lookup) => respond(lookup).map(Some),
        None => Ok(None),
    }
}

/// The response to a request whose key was seen before.
pub(in crate::public) fn respond(lookup: Lookup) -> Result<Response, ApiError> {
    match lookup {
        Lookup::KeyMismatch => Err(SubmitError::KeyReused.into()),
        Lookup::JobDeleted => Err(SubmitError::JobDeleted.into()),
        Lookup::Replayed { status, body } => Ok(replay(status, body)),
    }
}

/// The id of the created object.
#[derive(serde::Deserialize)]
struct Created {
    id: protocol::JobId,
}

/// The response to the first request with a key, marked as a replay.
pub(in crate::public) fn replay(status: u16, body: String) -> Response {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
    let created = (status == StatusCode::CREATED).then(|| serde_json::from_str::<Created>(&body).ok()).flatten();
    let mut response = (status, body).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let location = created.and_then(|created| HeaderValue::from_str(&format!("/api/jobs/{}", created.id)).ok());
    if let Some(location) = location {
        headers.insert(header::LOCATION, location);
    }
    mark_replayed(response)
}

/// Says that the request was answered before.
pub(in crate::public) fn mark_replayed(mut response: Response) -> Response {
    response.headers_mut().insert("idempotent-replayed", HeaderValue::from_static("true"));
    response
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn bind(body: Bytes) -> impl Future<Output = Result<Option<IdempotencyKey>, ApiError>> {
        let client = ClientHeaders { key: Some("k".to_owned()), source: Source::Api };
        client.bind("ada", "POST /api/jobs".to_owned(), body)
    }

    #[tokio::test]
    async fn a_large_body_is_digested_off_the_runtime() {
        let small = bind(Bytes::from_static(b"{}")).now_or_never().expect("at once").unwrap().unwrap();
        assert_eq!(small.digest, base::digest::sha256_hex(b"POST /api/jobs\0{}"));
        let large = Bytes::from(vec![b' '; 16 * 1024 * 1024]);
        assert!(bind(large.clone()).now_or_never().is_none(), "it waits for another thread");
        assert!(bind(large).await.unwrap().is_some());
    }
}
