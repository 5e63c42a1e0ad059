//! `POST /api/system-events`: an event of a system, which may fire routines of the caller.

use axum::{Json, extract::State, http::StatusCode};
use protocol::{EmitSystemEvent, EventReceipt};

use super::{check_name, event_id, receive, too_large};
use dispatch::InboundEvent;
use store::EventName;

use crate::{
    extract::ApiJson,
    problem::ApiError,
    public::{PublicApi, caller::Writer, idempotent::ClientHeaders},
};

/// Maximum size of a payload as JSON (contract: api).
const MAX_PAYLOAD_BYTES: usize = 256 * 1024;

/// Posts an event of a system that can fire routines.
///
/// It fires the caller's routines with a trigger of type `system_event` that it matches.
/// With `Idempotency-Key` a repeated event fires no routine again.
#[utoipa::path(
    post, path = "/api/system-events", operation_id = "post_system_event", tag = "routines",
    params(("Idempotency-Key" = Option<String>, Header, description = "The id of the event.")),
    request_body = EmitSystemEvent,
    responses((status = 202, body = EventReceipt, description = "The event was compared with all routines."))
)]
pub(in crate::public) async fn post(
    State(api): State<PublicApi>,
    Writer(who): Writer,
    client: ClientHeaders,
    body: ApiJson<EmitSystemEvent>,
) -> Result<(StatusCode, Json<EventReceipt>), ApiError> {
    let EmitSystemEvent { source, event_type, payload } = body.value;
    check_name("source", &source)?;
    check_name("event_type", &event_type)?;
    if body.bytes.len() > MAX_PAYLOAD_BYTES && payload.to_string().len() > MAX_PAYLOAD_BYTES {
        return Err(too_large("payload", MAX_PAYLOAD_BYTES));
    }
    let event = InboundEvent {
        user: who.user,
        name: EventName::System { source, event_type },
        payload,
        id: event_id(client.key()),
        depth: 0,
    };
    let receipt = receive(&api, event).await?;
    Ok((StatusCode::ACCEPTED, Json(receipt)))
}
