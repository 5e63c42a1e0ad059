//! What arrives from outside and may fire routines: messages, events of systems, webhook deliveries. Contents and routes.

mod deliveries;
mod messages;
mod system_events;
mod webhook;

use std::sync::Arc;

use protocol::{DeliveryId, ErrorCode, EventReceipt};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::PublicApi;
use dispatch::{EventHandler, InboundEvent, WebhookHandler};

use crate::problem::ApiError;

/// What decides about what arrives.
pub struct Inbound {
    /// Messages and events of systems.
    pub events: Arc<EventHandler>,
    pub webhooks: WebhookHandler,
}

/// Maximum length of a channel, a sender, a source and a type.
const MAX_NAME_BYTES: usize = 128;

/// The endpoints.
pub(super) fn routes() -> OpenApiRouter<PublicApi> {
    OpenApiRouter::new()
        .routes(routes!(messages::post))
        .routes(routes!(system_events::post))
        .routes(routes!(webhook::post))
        .routes(routes!(deliveries::list))
}

/// The id of an event: the `Idempotency-Key`, or a new one.
fn event_id(key: Option<&str>) -> String {
    key.map_or_else(|| DeliveryId::generate().to_string(), str::to_owned)
}

/// Fires routines for an event, and answers with its id and its runs.
async fn receive(api: &PublicApi, event: InboundEvent) -> Result<EventReceipt, ApiError> {
    let id = event.id.clone();
    let fired = api.inbound.events.fire(event).await.map_err(ApiError::internal)?;
    Ok(EventReceipt { id, run_ids: fired.runs })
}

fn check_name(field: &str, name: &str) -> Result<(), ApiError> {
    if name.trim().is_empty() {
        return Err(ApiError::field(field, "must not be empty"));
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(ApiError::field(field, format!("must have at most {MAX_NAME_BYTES} bytes")));
    }
    Ok(())
}

fn too_large(field: &str, max_bytes: usize) -> ApiError {
    ApiError::new(ErrorCode::TooLarge, format!("{field} must have at most {} KiB", max_bytes / 1024))
}
