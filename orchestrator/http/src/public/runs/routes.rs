//! The routes of runs, with their audited actions.

use utoipa_axum::{router::OpenApiRouter, routes};

use super::{actions, cancel, get, list};
use crate::public::{PublicApi, audit_entry::audited};

/// The endpoints with their OpenAPI descriptions.
pub(in crate::public) fn routes() -> OpenApiRouter<PublicApi> {
    OpenApiRouter::new()
        .routes(routes!(list::list))
        .routes(routes!(get::get))
        .routes(routes!(actions::actions))
        .merge(audited("run.cancel", routes!(cancel::cancel)))
}
