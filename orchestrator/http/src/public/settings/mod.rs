//! `/api/settings`: the caller's settings. Contents only.

pub(super) mod get;
pub(super) mod put;
