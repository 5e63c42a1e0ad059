//! `POST /api/messages`: a message from outside, which may fire routines of the caller.

use axum::{Json, extract::State, http::StatusCode};
use protocol::{EventReceipt, PostMessage};
use serde_json::json;

use super::{check_name, event_id, receive, too_large};
use dispatch::InboundEvent;
use store::EventName;

use crate::{
    extract::ApiJson,
    problem::ApiError,
    public::{PublicApi, caller::Writer, idempotent::ClientHeaders},
};

/// Maximum length of a message (contract: api).
const MAX_CONTENT_BYTES: usize = 64 * 1024;

/// Posts a message that can fire routines.
///
/// It fires the caller's routines with a trigger of type `event` that it matches.
/// It starts no turn of a chat. With `Idempotency-Key` a repeated message fires no routine again.
#[utoipa::path(
    post, path = "/api/messages", operation_id = "post_message", tag = "routines",
    params(("Idempotency-Key" = Option<String>, Header, description = "The id of the message.")),
    request_body = PostMessage,
    responses((status = 202, body = EventReceipt, description = "The message was compared with all routines."))
)]
pub(in crate::public) async fn post(
    State(api): State<PublicApi>,
    Writer(who): Writer,
    client: ClientHeaders,
    body: ApiJson<PostMessage>,
) -> Result<(StatusCode, Json<EventReceipt>), ApiError> {
    let PostMessage { channel, content, sender } = body.value;
    channel.as_deref().map_or(Ok(()), |channel| check_name("channel", channel))?;
    sender.as_deref().map_or(Ok(()), |sender| check_name("sender", sender))?;
    if content.len() > MAX_CONTENT_BYTES {
        return Err(too_large("content", MAX_CONTENT_BYTES));
    }
    let event = InboundEvent {
        user: who.user,
        payload: json!({"content": content, "sender": sender}),
        name: EventName::Message { channel },
        id: event_id(client.key()),
        depth: 0,
    };
    let receipt = receive(&api, event).await?;
    Ok((StatusCode::ACCEPTED, Json(receipt)))
}
