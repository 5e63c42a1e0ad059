//! The routes of routines, with their audited actions.

use axum::extract::DefaultBodyLimit;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{create, delete, get, list, patch, runs, summary, switch, trigger, upcoming};
use crate::public::{MAX_BODY_BYTES, PublicApi, audit_entry::audited};

/// Maximum body of a definition: JSON makes six bytes of a control character of a prompt of 256 KiB.
const MAX_DEFINITION_BYTES: usize = 2 * MAX_BODY_BYTES;

/// The endpoints with their OpenAPI descriptions.
pub(in crate::public) fn routes() -> OpenApiRouter<PublicApi> {
    let changes = OpenApiRouter::new()
        .merge(audited("routine.create", routes!(create::create)))
        .merge(audited("routine.update", routes!(patch::patch)))
        .layer(DefaultBodyLimit::max(MAX_DEFINITION_BYTES));
    OpenApiRouter::new()
        .routes(routes!(list::list))
        .merge(changes)
        .routes(routes!(summary::summary))
        .routes(routes!(get::get))
        .merge(audited("routine.delete", routes!(delete::delete)))
        .merge(audited("routine.enable", routes!(switch::enable)))
        .merge(audited("routine.disable", routes!(switch::disable)))
        .merge(audited("routine.toggle", routes!(switch::toggle)))
        .merge(audited("routine.trigger", routes!(trigger::trigger)))
        .routes(routes!(runs::list))
        .routes(routes!(upcoming::upcoming))
}
