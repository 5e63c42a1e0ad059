//! What responses have in common: files, negotiation, compression, event streams and rendered JSON. Contents only.

pub(super) mod asset;
pub(super) mod compression;
pub(super) mod json_text;
pub(super) mod negotiate;
pub(super) mod stream;
