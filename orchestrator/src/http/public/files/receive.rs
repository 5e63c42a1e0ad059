//! A body received into a file: as long as it moves on, and no longer than there is room for.

use std::{fs::File, time::Duration};

use axum::{
    body::{Body, BodyDataStream, HttpBody as _},
    http::{HeaderMap, header},
};
use futures_util::StreamExt as _;
use protocol::ErrorCode;
use tokio::{io::AsyncWriteExt as _, time::timeout};

use crate::{
    http::problem::ApiError,
    workspace::{FileError, Room},
};

/// A body of which nothing comes for this long is given up.
const SILENCE: Duration = Duration::from_secs(30);
/// A client that is still sending does not read: what is refused is taken in for a moment, so that it gets its answer.
const LINGER: Duration = Duration::from_secs(2);

/// Receives all of a body; more than `most` is too large.
pub(super) async fn receive(body: Body, into: File, most: u64) -> Result<File, ApiError> {
    let announced = body.size_hint().lower();
    let mut stream = body.into_data_stream();
    if announced > most {
        return Err(refuse(stream).await);
    }
    let mut file = tokio::fs::File::from_std(into);
    let mut left = most;
    loop {
        let chunk = match timeout(SILENCE, stream.next()).await {
            Err(_) => return Err(ApiError::new(ErrorCode::RequestTimeout, "the body took too long to arrive")),
            Ok(None) => break,
            Ok(Some(chunk)) => chunk.map_err(|error| {
                ApiError::new(ErrorCode::BadRequest, "the body did not arrive whole").with_source(error)
            })?,
        };
        let Some(rest) = left.checked_sub(chunk.len() as u64) else { return Err(refuse(stream).await) };
        left = rest;
        file.write_all(&chunk).await.map_err(ApiError::internal)?;
    }
    file.flush().await.map_err(ApiError::internal)?;
    Ok(file.into_std().await)
}

async fn refuse(mut stream: BodyDataStream) -> ApiError {
    let rest = async { while let Some(Ok(_)) = stream.next().await {} };
    // Whether it ended or the moment did makes no difference.
    let _ = timeout(LINGER, rest).await;
    super::workspace::told(Room::full())
}

/// Whether a tar is compressed; none when it is something else altogether.
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

/// An archive that is not what it is called.
pub(super) fn empty() -> FileError {
    FileError::Malformed("the body is empty; send a tar archive".to_owned())
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderName, HeaderValue};
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::plain(None, Some("application/x-tar"), Some(false))]
    #[case::unnamed(None, None, Some(false))]
    #[case::by_type(None, Some("application/gzip"), Some(true))]
    #[case::by_encoding(Some("gzip"), Some("application/x-tar; x=y"), Some(true))]
    #[case::other_encoding(Some("br"), Some("application/x-tar"), None)]
    #[case::other_type(None, Some("application/json"), None)]
    fn gzip_is_what_says_so(#[case] encoding: Option<&str>, #[case] kind: Option<&str>, #[case] gzipped: Option<bool>) {
        let named = |name: HeaderName, value: Option<&str>| Some((name, HeaderValue::from_str(value?).unwrap()));
        let headers = [named(header::CONTENT_ENCODING, encoding), named(header::CONTENT_TYPE, kind)];
        assert_eq!(gzip(&headers.into_iter().flatten().collect()), gzipped);
    }
}
