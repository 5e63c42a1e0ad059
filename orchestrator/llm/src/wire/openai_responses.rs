//! OpenAI responses. Contents only.

pub(super) mod patch;
pub(super) mod request;
pub(super) mod stream;
pub(super) mod usage;
