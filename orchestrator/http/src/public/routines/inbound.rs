//! What arrives from outside and may fire routines: messages, events of systems, webhook deliveries.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Json,
    extract::{FromRequest as _, Request, State},
    http::{HeaderMap, StatusCode},
};
use dispatch::{EventHandler, InboundEvent, WebhookAnswer, WebhookHandler, WebhookRefused, WebhookRequest};
use protocol::{
    DeliveryId, EmitSystemEvent, ErrorCode, EventReceipt, Page, PostMessage, RoutineId, RunReason, WebhookDelivery,
    WebhookReceipt,
};
use serde::Deserialize;
use serde_json::json;
use store::{Delivered, EventName};
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    completion::run_to_completion,
    extract::{ApiJson, ApiPath, ApiQuery, RawBody},
    problem::ApiError,
    public::{
        PublicApi,
        request::{
            caller::{Caller, Writer},
            cursor,
            idempotent::ClientHeaders,
        },
    },
    server::BodyReservation,
};

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
        .routes(routes!(post_message))
        .routes(routes!(post_system_event))
        .routes(routes!(receive_webhook))
        .routes(routes!(deliveries))
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

/// Maximum length of a message.
const MAX_CONTENT_BYTES: usize = 64 * 1024;

/// Posts a message that can fire routines.
///
/// It fires the caller's routines with a trigger of type `event` that it matches.
/// It starts no turn of a chat. With `Idempotency-Key` a repeated message fires no routine again.
#[utoipa::path(
    post, path = "/api/messages", operation_id = "post_message", tag = "routines",
    params(("Idempotency-Key" = Option<String>, Header, description = "The id of the message.")),
    request_body(content = PostMessage, example = json!({"channel": "support", "content": "The printer is on fire.", "sender": "ada"})),
    responses((status = 202, body = EventReceipt, description = "The message was compared with all routines."))
)]
async fn post_message(
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

/// Maximum size of a payload as JSON.
const MAX_PAYLOAD_BYTES: usize = 256 * 1024;

/// Posts an event of a system that can fire routines.
///
/// It fires the caller's routines with a trigger of type `system_event` that it matches.
/// With `Idempotency-Key` a repeated event fires no routine again.
#[utoipa::path(
    post, path = "/api/system-events", operation_id = "post_system_event", tag = "routines",
    params(("Idempotency-Key" = Option<String>, Header, description = "The id of the event.")),
    request_body(content = EmitSystemEvent, example = json!({"source": "github", "event_type": "issue.opened", "payload": {"number": 7}})),
    responses((status = 202, body = EventReceipt, description = "The event was compared with all routines."))
)]
async fn post_system_event(
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

/// Receives a delivery, which fires the routine of the webhook.
///
/// It must be signed by Standard Webhooks, with `X-Hub-Signature-256`, or with `X-Gantry-Signature: t=…,v1=…`. A delivery that
/// was answered before is 200 with `duplicate`, and one that the routine's `where` is not true of is 200 with `matched: false`.
#[utoipa::path(
    post, path = "/api/webhooks/{path}", operation_id = "receive_webhook", tag = "routines", security(()),
    params(("path" = String, Path, description = "The path of the webhook.")),
    request_body(content = Value, content_type = "application/json", description = "At most 1 MiB of any content.",
        example = json!({"action": "opened"})),
    responses(
        (status = 202, body = WebhookReceipt, description = "It fired a run."),
        (status = 200, body = WebhookReceipt, description = "It fired no run: it is a duplicate, or `where` is not true of it."),
        (status = 401, description = "The signature is absent or wrong."),
        (status = 403, description = "The webhook has no secret."),
        (status = 404, description = "There is no webhook of this path."),
        (status = 409, description = "The routine is disabled, or a guardrail stopped it."),
        (status = 413, description = "The body has more than 1 MiB."),
        (status = 429, description = "There were more than 60 deliveries in a minute."),
    )
)]
async fn receive_webhook(
    State(api): State<PublicApi>,
    ApiPath(path): ApiPath<String>,
    request: Request,
) -> Result<(StatusCode, Json<WebhookReceipt>), ApiError> {
    let target = api.inbound.webhooks.target(&path).await?.ok_or_else(ApiError::not_found)?;
    if let Some(body) = request.extensions().get::<Arc<BodyReservation>>() {
        body.belongs_to(&target.user);
    }
    let headers = header_map(request.headers());
    let body = match RawBody::from_request(request, &()).await {
        Ok(RawBody(body)) => body,
        Err(error) => {
            if error.code() == ErrorCode::TooLarge {
                api.inbound.webhooks.log_too_large(&target, &headers).await;
            }
            return Err(error);
        }
    };
    let inner = api.clone();
    // A sender that gives up does not leave a delivery half decided.
    run_to_completion(&api.tasks, async move {
        let webhooks = &inner.inbound.webhooks;
        let (mut target, request) = (target, WebhookRequest { headers, body });
        for _ in 0..MAX_TRIES {
            match webhooks.receive(&target, request.clone()).await {
                // It is compared with the new definition.
                Ok(WebhookAnswer::Decided(Delivered::Changed)) => {
                    target = webhooks.target(&path).await?.ok_or_else(ApiError::not_found)?;
                }
                Ok(answer) => return respond(answer),
                Err(refused) => return Err(refusal(refused)),
            }
        }
        respond(WebhookAnswer::Decided(Delivered::Changed))
    })
    .await
}

/// How often a delivery is compared with a routine that changes meanwhile.
const MAX_TRIES: u32 = 3;

/// The headers with names in lower case. A value that is not text is left out.
fn header_map(headers: &HeaderMap) -> BTreeMap<String, String> {
    let mut map: BTreeMap<String, String> = BTreeMap::new();
    for (name, value) in headers {
        let Ok(value) = value.to_str() else { continue };
        map.entry(name.as_str().to_owned())
            .and_modify(|known| {
                known.push_str(", ");
                known.push_str(value);
            })
            .or_insert_with(|| value.to_owned());
    }
    map
}

fn respond(answer: WebhookAnswer) -> Result<(StatusCode, Json<WebhookReceipt>), ApiError> {
    let ok = |receipt| Ok((StatusCode::OK, Json(receipt)));
    let not_matched = || ok(WebhookReceipt { matched: Some(false), ..WebhookReceipt::default() });
    let duplicate = |run_id| ok(WebhookReceipt { run_id, duplicate: Some(true), ..WebhookReceipt::default() });
    let WebhookAnswer::Decided(delivered) = answer else { return not_matched() };
    match delivered {
        Delivered::Fired(run) => {
            let receipt = WebhookReceipt { run_id: Some(run), ..WebhookReceipt::default() };
            Ok((StatusCode::ACCEPTED, Json(receipt)))
        }
        Delivered::NotMatched => not_matched(),
        Delivered::Duplicate(run) => duplicate(run),
        Delivered::Skipped { run, reason: RunReason::Duplicate } => duplicate(Some(run)),
        Delivered::Skipped { reason: reason @ RunReason::Overlap, .. } => {
            let detail = "the routine has as many runs in progress as it may have";
            Err(ApiError::new(ErrorCode::RoutineBusy, detail).with_reason(reason.as_str()))
        }
        Delivered::Skipped { reason, .. } => {
            let detail = format!("a guardrail of the routine stopped the firing: {reason}");
            Err(ApiError::new(ErrorCode::RoutineSkipped, detail).with_reason(reason.as_str()))
        }
        Delivered::Disabled => Err(ApiError::new(ErrorCode::RoutineDisabled, "the routine is disabled")),
        Delivered::AutomationDisabled => {
            Err(ApiError::new(ErrorCode::AutomationDisabled, "automation is switched off by the operator"))
        }
        Delivered::Changed => Err(ApiError::new(ErrorCode::Conflict, "the routine is being changed; deliver it again")),
        Delivered::NotFound => Err(ApiError::not_found()),
        Delivered::TooMany => Err(ApiError::new(ErrorCode::RateLimited, "too many deliveries")),
    }
}

fn refusal(refused: WebhookRefused) -> ApiError {
    let detail = refused.to_string();
    match refused {
        WebhookRefused::NoSecret => {
            ApiError::new(ErrorCode::Forbidden, "the webhook has no secret; set one in the trigger of its routine")
        }
        WebhookRefused::Signature(_) => ApiError::unauthorized(detail),
        WebhookRefused::TooMany { retry_after } => {
            ApiError::new(ErrorCode::RateLimited, detail).with_retry_after(retry_after)
        }
        WebhookRefused::Store(error) => error.into(),
        WebhookRefused::Secret(error) => ApiError::internal(error),
        WebhookRefused::Match(error) => ApiError::internal(error),
    }
}

/// Query parameters.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct DeliveryParams {
    /// Maximum number of items, 1 to 200; default 50.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<u32>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// Lists deliveries of a routine's webhook, newest first.
///
/// The newest 200 are kept, each with its outcome and the run that it fired.
#[utoipa::path(
    get, path = "/api/routines/{id}/deliveries", operation_id = "list_webhook_deliveries", tag = "routines",
    params(("id" = String, Path, description = "Routine id."), DeliveryParams),
    responses((status = 200, body = Page<WebhookDelivery>, description = "A page."))
)]
async fn deliveries(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiPath(id): ApiPath<RoutineId>,
    ApiQuery(params): ApiQuery<DeliveryParams>,
) -> Result<Json<Page<WebhookDelivery>>, ApiError> {
    let limit = cursor::limit(params.limit)?;
    let before = params.cursor.as_deref().map(cursor::read::<DeliveryId>).transpose()?;
    let owner = api.store.routine_owner(id).await?.ok_or_else(ApiError::not_found)?;
    if !who.may_see(&owner) {
        return Err(ApiError::not_owner());
    }
    let _permit = api.read_permit(&who).await?;
    // One more, to know whether there is a next page.
    let deliveries = api.store.webhook_deliveries(id, before, limit + 1).await?;
    Ok(Json(cursor::page(deliveries, limit, ToString::to_string)))
}
