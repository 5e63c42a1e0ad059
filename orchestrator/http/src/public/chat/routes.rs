//! The routes of chat, with their audited actions.

use utoipa_axum::{router::OpenApiRouter, routes};

use super::{actions, delete, events, history, list, send, stop};
use crate::public::{PublicApi, audit_entry::audited};

/// The endpoints with their OpenAPI descriptions.
pub(in crate::public) fn routes() -> OpenApiRouter<PublicApi> {
    OpenApiRouter::new()
        .merge(audited("chat.send", routes!(send::send)))
        .routes(routes!(list::list))
        .routes(routes!(history::history))
        .routes(routes!(actions::actions))
        .routes(routes!(events::events))
        .merge(audited("chat.delete", routes!(delete::delete)))
        .merge(audited("chat.stop", routes!(stop::stop)))
}
