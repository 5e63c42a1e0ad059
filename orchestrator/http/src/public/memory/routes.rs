//! The routes of memory, with their audited actions.

use axum::extract::DefaultBodyLimit;
use protocol::limits::MAX_MEMORY_DOCUMENT_BYTES;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{delete, get, put, search, tree, versions};
use crate::public::{PublicApi, audit_entry::audited};

/// Maximum body of a write: JSON makes six bytes of a control character.
const MAX_WRITE_BODY_BYTES: usize = 6 * MAX_MEMORY_DOCUMENT_BYTES + 1024;

/// The endpoints with their OpenAPI descriptions.
pub(in crate::public) fn routes() -> OpenApiRouter<PublicApi> {
    let put = audited("memory.write", routes!(put::put)).layer(DefaultBodyLimit::max(MAX_WRITE_BODY_BYTES));
    OpenApiRouter::new()
        .routes(routes!(get::get))
        .merge(put)
        .merge(audited("memory.delete", routes!(delete::delete)))
        .routes(routes!(search::search))
        .routes(routes!(tree::tree))
        .routes(routes!(versions::versions))
}
