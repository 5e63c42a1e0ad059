//! `/api/secrets`: the caller's secrets. No response contains a value. Contents only.

pub(super) mod delete;
pub(super) mod list;
pub(super) mod set;
