//! Compression of JSON answers.
//!
//! Streams, files, archives and metrics are sent as they are: none of them is JSON. The endpoints for secrets are outside of this layer.

use axum::http::{Extensions, HeaderMap, StatusCode, Version, header};
use tower_http::{
    CompressionLevel,
    compression::{CompressionLayer, Predicate, predicate::SizeAbove},
};

/// Smaller answers are not compressed.
const MIN_BYTES: u64 = 1024;

/// Compresses JSON with gzip if the client accepts it.
pub(in crate::public) fn layer() -> CompressionLayer<impl Predicate> {
    let is_json = |_: StatusCode, _: Version, headers: &HeaderMap, _: &Extensions| {
        headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"))
    };
    CompressionLayer::new().quality(CompressionLevel::Fastest).compress_when(SizeAbove::new(MIN_BYTES).and(is_json))
}
