//! Receives a body into a file, with a minimum rate and a maximum size.

use std::{fs::File, io, time::Duration};

use axum::{
    body::{Body, BodyDataStream, HttpBody as _},
    http::{HeaderMap, header},
};
use futures_util::StreamExt as _;
use protocol::ErrorCode;
use tokio::{
    io::AsyncWriteExt as _,
    time::{Instant, timeout, timeout_at},
};
use workspace::{FileError, Quota, Upload};

use super::files::to_api_error;
use crate::problem::ApiError;

/// Time in which at least [`MIN_WINDOW_BYTES`] must arrive: a slow upload occupies disk space and its job's one upload.
const WINDOW: Duration = Duration::from_secs(30);
/// 16 KiB/s.
const MIN_WINDOW_BYTES: u64 = 16 * 1024 * WINDOW.as_secs();
/// Time for which the rest of a refused body is read: a client that is still sending does not read the response.
const REFUSED_BODY_DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Receives a body of at most `max_bytes` bytes. Staging space is reserved before anything is written: for all of it
/// when its length is announced, else as it arrives.
pub(super) async fn receive(body: Body, into: File, max_bytes: u64, upload: &mut Upload) -> Result<File, ApiError> {
    let announced = body.size_hint().lower();
    let mut stream = body.into_data_stream();
    if announced > max_bytes {
        return Err(refuse(stream, Quota::exceeded()).await);
    }
    if let Err(error) = upload.reserve(announced) {
        return Err(refuse(stream, error).await);
    }
    let mut file = tokio::fs::File::from_std(into);
    let mut left = max_bytes;
    let (mut window_ends, mut in_window) = (Instant::now() + WINDOW, 0_u64);
    loop {
        let chunk = match timeout_at(window_ends, stream.next()).await {
            Err(_) if in_window < MIN_WINDOW_BYTES => {
                return Err(ApiError::new(
                    ErrorCode::RequestTimeout,
                    "the body arrived too slowly: send at least 16 KiB/s",
                ));
            }
            Err(_) => {
                (window_ends, in_window) = (Instant::now() + WINDOW, 0);
                continue;
            }
            Ok(None) => break,
            Ok(Some(chunk)) => chunk
                .map_err(|error| ApiError::new(ErrorCode::BadRequest, "the body is incomplete").with_source(error))?,
        };
        let bytes = chunk.len() as u64;
        in_window += bytes;
        let Some(rest) = left.checked_sub(bytes) else { return Err(refuse(stream, Quota::exceeded()).await) };
        left = rest;
        if let Err(error) = upload.count_written(bytes) {
            return Err(refuse(stream, error).await);
        }
        file.write_all(&chunk).await.map_err(not_written)?;
    }
    file.flush().await.map_err(not_written)?;
    Ok(file.into_std().await)
}

fn not_written(error: io::Error) -> ApiError {
    to_api_error(FileError::from(error))
}

async fn refuse(mut stream: BodyDataStream, error: FileError) -> ApiError {
    let rest = async { while let Some(Ok(_)) = stream.next().await {} };
    // Either the body or the time has ended.
    let _ = timeout(REFUSED_BODY_DRAIN_TIMEOUT, rest).await;
    to_api_error(error)
}

/// Whether a tar archive is compressed; none when the headers say that it is not a tar archive.
pub(super) fn gzip(headers: &HeaderMap) -> Option<bool> {
    let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or("?").trim().to_ascii_lowercase());
    let encoded = match text(header::CONTENT_ENCODING).as_deref() {
        None | Some("" | "identity") => false,
        Some("gzip" | "x-gzip") => true,
        Some(_) => return None,
    };
    let kind = text(header::CONTENT_TYPE);
    match kind.as_deref().map(|kind| kind.split(';').next().unwrap_or("").trim()) {
        None | Some("" | "application/x-tar" | "application/tar" | "application/octet-stream") => Some(encoded),
        Some("application/gzip" | "application/x-gzip" | "application/x-gtar-compressed") => Some(true),
        Some(_) => None,
    }
}

/// The error for an empty archive.
pub(super) fn empty() -> FileError {
    FileError::MalformedArchive("the body is empty; send a tar archive".to_owned())
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};
    use futures_util::stream;
    use protocol::{JobId, Limits};
    use rstest::rstest;
    use tokio_util::sync::CancellationToken;
    use workspace::{FreeSpace, UploadRegistry};

    use super::*;

    /// A body that yields this many bytes each second, on a clock that jumps.
    async fn received(bytes_a_second: usize, seconds: u64) -> Result<u64, ErrorCode> {
        let uploads = UploadRegistry::new(FreeSpace::new("/tmp".into(), Some(0)));
        let limits = Limits { disk_mb: 100, ..Limits::default() };
        let mut upload = uploads.begin("ada", JobId::generate(), limits, CancellationToken::new()).unwrap();
        let body = stream::unfold(0, move |second| async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            (second < seconds).then(|| (Ok::<_, io::Error>(vec![1; bytes_a_second]), second + 1))
        });
        let file = tempfile::tempfile().unwrap();
        let file = receive(Body::from_stream(body), file, 100 << 20, &mut upload).await;
        file.map(|file| file.metadata().unwrap().len()).map_err(|error| error.code())
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_may_be_slow_but_must_not_trickle() {
        const KB: usize = 1024;
        assert_eq!(received(20 * KB, 90).await, Ok(90 * 20 * 1024));
        assert_eq!(received(1, 25).await, Ok(25), "a small one is done before it matters");
        assert_eq!(received(1, 86_400).await, Err(ErrorCode::RequestTimeout));
        assert_eq!(received(0, 86_400).await, Err(ErrorCode::RequestTimeout));
        assert_eq!(received(10 * KB, 3_600).await, Err(ErrorCode::RequestTimeout));
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_disk_is_reported_as_such() {
        let error = not_written(io::ErrorKind::StorageFull.into());
        assert_eq!((error.code(), error.status().as_u16()), (ErrorCode::InsufficientStorage, 507));
    }

    #[rstest]
    #[case::plain(None, Some("application/x-tar"), Some(false))]
    #[case::unnamed(None, None, Some(false))]
    #[case::by_type(None, Some("application/gzip"), Some(true))]
    #[case::by_encoding(Some("gzip"), Some("application/x-tar; x=y"), Some(true))]
    #[case::other_encoding(Some("br"), Some("application/x-tar"), None)]
    #[case::other_type(None, Some("application/json"), None)]
    fn gzip_is_recognised_by_its_headers(
        #[case] encoding: Option<&str>,
        #[case] kind: Option<&str>,
        #[case] gzipped: Option<bool>,
    ) {
        let named = |name: HeaderName, value: Option<&str>| Some((name, HeaderValue::from_str(value?).unwrap()));
        let headers = [named(header::CONTENT_ENCODING, encoding), named(header::CONTENT_TYPE, kind)];
        assert_eq!(gzip(&headers.into_iter().flatten().collect()), gzipped);
    }
}
