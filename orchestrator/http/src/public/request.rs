//! What endpoints read of requests: callers, cookies, audit entries, idempotency keys, entity tags, parameters, bodies, pages and filters. Contents only.

pub(super) mod audit_entry;
pub(super) mod browser;
mod caller;
pub(super) mod cursor;
pub(super) mod filter;
pub(super) mod idempotent;
mod if_match;
pub(super) mod user_rate;

pub(super) use self::{
    audit_entry::{AuditedCaller, RpcCaller, audited},
    caller::{Admin, Caller, MaybeCaller, UncheckedCaller, Writer, authorize_job, is_still_valid, session_of, visible},
    cursor::PageParams,
    idempotent::ClientHeaders,
    if_match::{IfMatch, etag},
};
pub(super) use crate::extract::{ApiJson, ApiPath, ApiQuery, OptionalJson};
