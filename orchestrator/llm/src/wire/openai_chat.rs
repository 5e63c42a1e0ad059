//! OpenAI chat completions, also as compatible servers speak it. Contents only.

pub(super) mod patch;
pub(super) mod request;
pub(super) mod stream;
pub(super) mod usage;
