//! `/api/secrets`: the caller's secrets. No response contains a value.

mod delete;
mod list;
mod set;

use utoipa_axum::{router::OpenApiRouter, routes};

use super::{PublicApi, audit_entry::audited};

/// The endpoints for secrets.
pub(super) fn routes() -> OpenApiRouter<PublicApi> {
    OpenApiRouter::new()
        .routes(routes!(list::list))
        .merge(audited("secret.set", routes!(set::set)))
        .merge(audited("secret.delete", routes!(delete::delete)))
}
