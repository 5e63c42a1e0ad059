//! The path of a file in a request: any bytes, percent-encoded.

use std::fmt;

use axum::{extract::FromRequestParts, http::request::Parts};
use percent_encoding::percent_decode_str;
use protocol::JobId;
use serde::{Deserialize, Deserializer, de::Visitor};

use crate::problem::ApiError;

/// The job and the path in the URL of a file.
#[derive(Debug)]
pub(super) struct FileUrl {
    pub(super) job: JobId,
    pub(super) path: Vec<u8>,
}

impl FileUrl {
    /// Not by axum's path parameters, which must be UTF-8.
    fn parse(url_path: &str) -> Option<Self> {
        let (job, path) = url_path.strip_prefix("/api/jobs/")?.split_once("/files/")?;
        let job = percent_decode_str(job).decode_utf8().ok()?.parse().ok()?;
        Some(Self { job, path: percent_decode_str(path).collect() })
    }
}

impl<S: Send + Sync> FromRequestParts<S> for FileUrl {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, ApiError> {
        Self::parse(parts.uri.path()).ok_or_else(ApiError::not_found)
    }
}

/// The path of a directory as a parameter of a query.
#[derive(Debug, Default)]
pub(super) struct PathParam(pub(super) Vec<u8>);

impl<'de> Deserialize<'de> for PathParam {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_byte_buf(BytesVisitor).map(Self)
    }
}

struct BytesVisitor;

impl Visitor<'_> for BytesVisitor {
    type Value = Vec<u8>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a path")
    }

    fn visit_byte_buf<E>(self, bytes: Vec<u8>) -> Result<Vec<u8>, E> {
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::plain("a/b.txt", b"a/b.txt")]
    #[case::not_utf8("caf%E9/%ff", b"caf\xe9/\xff")]
    #[case::escaped_slash("a%2Fb", b"a/b")]
    #[case::plus_is_no_space("a+b", b"a+b")]
    #[case::the_same_word("files/x", b"files/x")]
    #[case::absolute("/etc/passwd", b"/etc/passwd")]
    fn a_path_in_a_url_is_any_bytes(#[case] encoded: &str, #[case] path: &[u8]) {
        let job = JobId::generate();
        let url = FileUrl::parse(&format!("/api/jobs/{job}/files/{encoded}")).unwrap();
        assert_eq!((url.job, url.path.as_slice()), (job, path));
        assert!(FileUrl::parse(&format!("/api/jobs/7/files/{encoded}")).is_none());
    }
}
