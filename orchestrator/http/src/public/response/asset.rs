//! Files that do not change while the process runs: caching and compression.
//!
//! Each is compressed once: anyone may ask for them, and a layer that compresses each answer would spend 20 ms on the largest.

use std::io::Write as _;

use axum::{
    body::Bytes,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use base::digest::sha256_hex;
use flate2::{Compression, write::GzEncoder};
use tokio::sync::OnceCell;

use super::etag;
use crate::problem::ApiError;

/// Smaller files are not compressed.
const MIN_COMPRESSED_BYTES: usize = 1024;

pub(in crate::public) type Loaded = Result<Bytes, Box<dyn std::error::Error + Send + Sync>>;

/// A file, which is loaded and compressed when it is first asked for.
pub(in crate::public) struct Asset {
    content_type: &'static str,
    cache_control: &'static str,
    policy: String,
    load: Box<dyn Fn() -> Loaded + Send + Sync>,
    content: OnceCell<Content>,
}

struct Content {
    plain: Bytes,
    gzipped: Option<Bytes>,
    /// Weak, because both encodings have the same.
    etag: HeaderValue,
}

impl Asset {
    /// A file with its `Content-Type`, `Cache-Control` and `Content-Security-Policy`.
    pub(in crate::public) fn new(
        content_type: &'static str,
        cache_control: &'static str,
        policy: impl Into<String>,
        load: impl Fn() -> Loaded + Send + Sync + 'static,
    ) -> Self {
        Self { content_type, cache_control, policy: policy.into(), load: Box::new(load), content: OnceCell::new() }
    }

    /// The file, or 304 for a client that has it.
    pub(in crate::public) async fn respond(&self, headers: &HeaderMap) -> Result<Response, ApiError> {
        let is_text = !self.content_type.starts_with("image/");
        let content = self.content.get_or_try_init(async || {
            let plain = (self.load)().map_err(ApiError::internal)?;
            let prepared = tokio::task::spawn_blocking(move || Content::new(plain, is_text));
            prepared.await.map_err(ApiError::internal)?.map_err(ApiError::internal)
        });
        let content = content.await?;
        let common = [
            (header::ETAG, content.etag.clone()),
            (header::CACHE_CONTROL, HeaderValue::from_static(self.cache_control)),
            (header::VARY, HeaderValue::from_static("accept-encoding")),
            (header::CONTENT_SECURITY_POLICY, HeaderValue::from_str(&self.policy).map_err(ApiError::internal)?),
        ];
        let kind = [(header::CONTENT_TYPE, self.content_type)];
        Ok(match &content.gzipped {
            _ if etag::is_known(headers, &content.etag) => (StatusCode::NOT_MODIFIED, common).into_response(),
            Some(gzipped) if accepts_gzip(headers) => {
                (common, kind, [(header::CONTENT_ENCODING, "gzip")], gzipped.clone()).into_response()
            }
            _ => (common, kind, content.plain.clone()).into_response(),
        })
    }
}

impl Content {
    fn new(plain: Bytes, is_text: bool) -> std::io::Result<Self> {
        let digest = sha256_hex(&plain);
        let etag = HeaderValue::from_str(&format!("W/\"{}\"", &digest[..16])).map_err(std::io::Error::other)?;
        let gzipped = (is_text && plain.len() > MIN_COMPRESSED_BYTES).then(|| gzip(&plain)).transpose()?;
        Ok(Self { plain, gzipped, etag })
    }
}

fn gzip(plain: &[u8]) -> std::io::Result<Bytes> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(plain)?;
    encoder.finish().map(Bytes::from)
}

/// Whether the client accepts gzip.
fn accepts_gzip(headers: &HeaderMap) -> bool {
    let lists = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    lists.flat_map(|list| list.split(',')).any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        let is_gzip = parts.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip"));
        let is_refused = parts.any(|weight| {
            weight.strip_prefix("q=").and_then(|weight| weight.parse::<f32>().ok()).is_some_and(|weight| weight <= 0.0)
        });
        is_gzip && !is_refused
    })
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderName;
    use rstest::rstest;

    use super::*;

    fn headers(name: HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_str(value).unwrap())])
    }

    #[rstest]
    #[case("gzip", true)]
    #[case("br, GZIP;q=0.5", true)]
    #[case("deflate, br", false)]
    #[case("gzip;q=0", false)]
    #[case("identity", false)]
    fn gzip_is_used_when_the_client_accepts_it(#[case] accepted: &str, #[case] gzip: bool) {
        assert_eq!(accepts_gzip(&headers(header::ACCEPT_ENCODING, accepted)), gzip);
    }
}
