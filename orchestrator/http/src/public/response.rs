//! What responses have in common: files, tags, ranges, negotiation, compression, event streams and rendered JSON. Contents only.

pub(super) mod asset;
pub(super) mod compression;
pub(super) mod etag;
pub(super) mod json_text;
pub(super) mod negotiate;
pub(super) mod range;
pub(super) mod stream;
