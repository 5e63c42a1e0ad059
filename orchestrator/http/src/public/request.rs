//! What endpoints read of requests: callers, audit entries, idempotency keys, pages and filters. Contents only.

pub(super) mod audit_entry;
pub(super) mod caller;
pub(super) mod cursor;
pub(super) mod filter;
pub(super) mod idempotent;
pub(super) mod user_rate;
