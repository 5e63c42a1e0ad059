//! `/api/notifications`: the caller's notifications. Contents only.

pub(super) mod list;
pub(super) mod read;
