//! Reads request bodies: memory is reserved before reading, reading has a minimum rate, and large bodies are parsed off the
//! runtime's threads.
//!
//! Owns the limits of memory and time. Never knows the content of a body.

use std::{error::Error, sync::Arc, time::Duration};

use axum::{
    RequestExt as _,
    body::{Bytes, HttpBody as _},
    extract::Request,
    http::header,
};
use http_body_util::{BodyExt as _, LengthLimitError};
use protocol::ErrorCode;
use tokio::time::timeout;

use super::scan;
use crate::{problem::ApiError, server::BodyReservation};

/// Time in which at least [`MIN_WINDOW_BYTES`] must arrive, unless the body ends.
const WINDOW: Duration = Duration::from_secs(10);
/// 32 KiB/s.
const MIN_WINDOW_BYTES: usize = 320 * 1024;
/// Larger bodies are parsed, and their digests computed, on a blocking thread: 256 KiB take about 1 ms.
pub(crate) const MAX_INLINE_BYTES: usize = 256 * 1024;
/// Reserved for a body of unknown length on a route without a limit (currently none).
const UNKNOWN_BYTES: usize = 1024 * 1024;
/// `Retry-After` when no memory is available for a body.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A complete body.
pub(super) struct ReceivedBody {
    pub(super) bytes: Bytes,
    reservation: Option<Arc<BodyReservation>>,
}

impl ReceivedBody {
    /// Reads a body. Its announced length is reserved before the first byte is read.
    pub(super) async fn read(request: Request) -> Result<Self, ApiError> {
        let reservation = request.extensions().get::<Arc<BodyReservation>>().cloned();
        let announced =
            request.headers().get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        let mut body = request.into_limited_body();
        // The route's limit, or the announced length if that is smaller.
        let limit = body.size_hint().upper().and_then(|limit| usize::try_from(limit).ok());
        if announced.zip(limit).is_some_and(|(announced, limit): (usize, usize)| announced > limit) {
            return Err(too_large());
        }
        let max_bytes = announced.or(limit).unwrap_or(UNKNOWN_BYTES);
        if let Some(reservation) = &reservation
            && max_bytes > 0
        {
            reservation.reserve(max_bytes).await.map_err(|_| {
                let error = ApiError::new(ErrorCode::RateLimited, "too many large requests");
                error.with_retry_after(RETRY_AFTER)
            })?;
        }
        let mut bytes = Vec::with_capacity(announced.unwrap_or(0));
        let mut is_complete = false;
        while !is_complete {
            let before = bytes.len();
            let window = async {
                while bytes.len() - before < MIN_WINDOW_BYTES {
                    match body.frame().await {
                        None => return Ok(true),
                        Some(Err(error)) => return Err(unreadable(error)),
                        Some(Ok(frame)) => bytes.extend_from_slice(frame.data_ref().map_or(&[], |data| &data[..])),
                    }
                }
                Ok(false)
            };
            is_complete = timeout(WINDOW, window).await.map_err(|_| too_slow())??;
        }
        Ok(Self { bytes: Bytes::from(bytes), reservation })
    }

    /// Parses the body. A large one is parsed on a blocking thread, after a check of how much memory its values would take.
    pub(super) async fn parse<T: Send + 'static>(
        &self,
        parse: impl FnOnce(&[u8]) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        if self.bytes.len() <= MAX_INLINE_BYTES {
            return parse(&self.bytes);
        }
        let turn = match &self.reservation {
            Some(reservation) => reservation.parse_turn().await,
            None => None,
        };
        let bytes = self.bytes.clone();
        let parsed = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            scan::check(&bytes).map_err(|excess| ApiError::new(ErrorCode::TooLarge, excess.to_string()))?;
            parse(&bytes)
        });
        parsed.await.map_err(ApiError::internal)?
    }
}

fn too_large() -> ApiError {
    ApiError::new(ErrorCode::TooLarge, "body too large")
}

fn too_slow() -> ApiError {
    ApiError::new(ErrorCode::RequestTimeout, "the body arrived too slowly")
}

fn unreadable(error: axum::Error) -> ApiError {
    let mut cause: Option<&(dyn Error + 'static)> = Some(&error);
    while let Some(this) = cause {
        if this.is::<LengthLimitError>() {
            return too_large();
        }
        cause = this.source();
    }
    ApiError::new(ErrorCode::BadRequest, "the body is incomplete").with_source(error)
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use futures_util::stream;
    use rstest::rstest;
    use tokio::time::{Instant, sleep};

    use super::*;

    /// A body of `chunks`, one every second, which then never ends.
    fn trickle(chunks: usize, bytes: usize) -> Request {
        let chunks = stream::unfold(0, move |sent| async move {
            if sent == chunks {
                std::future::pending::<()>().await;
            }
            sleep(Duration::from_secs(1)).await;
            Some((Ok::<_, std::io::Error>(Bytes::from(vec![b' '; bytes])), sent + 1))
        });
        Request::new(Body::from_stream(chunks))
    }

    #[rstest]
    #[case::silent(0, 0, 10)]
    #[case::too_slow(1_000, 30 * 1024, 10)]
    #[case::stalls_after_two_windows(22, 32 * 1024, 30)]
    #[tokio::test(start_paused = true)]
    async fn a_body_without_progress_is_given_up(#[case] chunks: usize, #[case] bytes: usize, #[case] seconds: u64) {
        let since = Instant::now();
        let error = ReceivedBody::read(trickle(chunks, bytes)).await.err().unwrap();
        assert_eq!((error.code(), since.elapsed().as_secs()), (ErrorCode::RequestTimeout, seconds));
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_with_progress_has_all_the_time_it_needs() {
        let chunks = stream::unfold(0, |sent| async move {
            sleep(Duration::from_secs(1)).await;
            (sent < 50).then(|| (Ok::<_, std::io::Error>(Bytes::from(vec![b' '; 33 * 1024])), sent + 1))
        });
        let body = ReceivedBody::read(Request::new(Body::from_stream(chunks))).await.unwrap();
        assert_eq!(body.bytes.len(), 50 * 33 * 1024);
    }
}
