//! What arrives from outside and may fire routines: messages, events of systems, webhook deliveries.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use axum::{
    Json,
    extract::{FromRequest as _, Request, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse as _, Response},
};
use base::rate_limit::ToolRateLimits;
use dispatch::{
    EventError, EventHandler, InboundEvent, MatchError, WebhookAnswer, WebhookHandler, WebhookRefused, WebhookRequest,
};
use protocol::{
    DeliveryId, EmitSystemEvent, ErrorCode, EventReceipt, Page, PostMessage, RoutineId, RunReason, WebhookDelivery,
    WebhookReceipt,
};
use serde_json::json;
use store::{Delivered, EventAnswer, EventName, FireOutcome, IdempotencyKey};
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    completion::run_to_completion,
    extract::RawBody,
    problem::ApiError,
    public::{
        PublicApi,
        request::{ApiJson, ApiPath, ApiQuery, Caller, ClientHeaders, PageParams, Writer, cursor, idempotent, visible},
    },
    server::BodyReservation,
};

/// What decides about what arrives.
pub struct Inbound {
    /// Messages and events of systems.
    pub events: Arc<EventHandler>,
    /// How often each user may post messages and events.
    pub rates: ToolRateLimits,
    pub webhooks: WebhookHandler,
}

/// Maximum length of a channel, a sender, a source and a type.
const MAX_NAME_BYTES: usize = 128;

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

/// What the rate of messages and events is counted under.
const POST: &str = "inbound";
/// When an event that was not compared with all routines may be posted again.
const NOT_COMPARED_RETRY: Duration = Duration::from_secs(30);

/// Fires routines for an event, and answers with its id and its runs.
async fn receive(api: &PublicApi, event: InboundEvent, key: Option<IdempotencyKey>) -> Result<Response, ApiError> {
    if let Some(replayed) = idempotent::find(api, key.as_ref()).await? {
        return Ok(replayed);
    }
    api.store.ensure_user_storage(&event.user).await?;
    let inbound = &api.inbound;
    if let Err(wait) = inbound.rates.take(&event.user, POST, api.clock.monotonic()) {
        return Err(ApiError::new(ErrorCode::RateLimited, "too many messages and events").with_retry_after(wait));
    }
    let answer = inbound.events.fire(event, key).await.map_err(|error| match error {
        EventError::Store(error) => error.into(),
        error @ EventError::TimeUp => {
            let detail = "comparing it with your routines takes too long, so that it has fired none; \
                          simplify the patterns and conditions of the routine that a notification names";
            not_compared(detail, error)
        }
        EventError::Match(error) => {
            not_compared("it was not compared with all routines and has fired none; post it again later", error)
        }
    })?;
    match answer {
        EventAnswer::Fired(receipt) => Ok((StatusCode::ACCEPTED, Json(receipt)).into_response()),
        EventAnswer::Known(lookup) => idempotent::respond(lookup),
    }
}

fn not_compared(detail: &str, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> ApiError {
    ApiError::new(ErrorCode::Unavailable, detail).with_retry_after(NOT_COMPARED_RETRY).with_source(error)
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
/// It starts no turn of a chat. `run_ids` has the runs that it fired: a firing that a guardrail stops has none.
#[utoipa::path(
    post, path = "/api/messages", operation_id = "post_message", tag = "routines",
    params(("Idempotency-Key" = Option<String>, Header, description = "The id of the message. The same key and body within 24 h fire nothing and return the first response again.")),
    request_body(content = PostMessage, example = json!({"channel": "support", "content": "The printer is on fire.", "sender": "ada"})),
    responses(
        (status = 202, body = EventReceipt, description = "The message was compared with all routines."),
        (status = 429, description = "The user posts too many messages and events."),
        (status = 503, description = "Comparing it took too long. It has fired no routine."),
    )
)]
async fn post_message(
    State(api): State<PublicApi>,
    Writer(who): Writer,
    client: ClientHeaders,
    body: ApiJson<PostMessage>,
) -> Result<Response, ApiError> {
    let PostMessage { channel, content, sender } = body.value;
    channel.as_deref().map_or(Ok(()), |channel| check_name("channel", channel))?;
    sender.as_deref().map_or(Ok(()), |sender| check_name("sender", sender))?;
    if content.len() > MAX_CONTENT_BYTES {
        return Err(too_large("content", MAX_CONTENT_BYTES));
    }
    let id = event_id(client.key());
    let key = client.bind(&who.user, "POST /api/messages".to_owned(), body.bytes).await?;
    let event = InboundEvent {
        user: who.user,
        payload: json!({"content": content, "sender": sender}),
        name: EventName::Message { channel },
        id,
        depth: 0,
    };
    receive(&api, event, key).await
}

/// Maximum size of a payload as JSON.
const MAX_PAYLOAD_BYTES: usize = 256 * 1024;

/// Posts an event of a system that can fire routines.
///
/// It fires the caller's routines with a trigger of type `system_event` that it matches.
/// `run_ids` has the runs that it fired: a firing that a guardrail stops has none.
#[utoipa::path(
    post, path = "/api/system-events", operation_id = "post_system_event", tag = "routines",
    params(("Idempotency-Key" = Option<String>, Header, description = "The id of the event. The same key and body within 24 h fire nothing and return the first response again.")),
    request_body(content = EmitSystemEvent, example = json!({"source": "github", "event_type": "issue.opened", "payload": {"number": 7}})),
    responses(
        (status = 202, body = EventReceipt, description = "The event was compared with all routines."),
        (status = 429, description = "The user posts too many messages and events."),
        (status = 503, description = "Comparing it took too long. It has fired no routine."),
    )
)]
async fn post_system_event(
    State(api): State<PublicApi>,
    Writer(who): Writer,
    client: ClientHeaders,
    body: ApiJson<EmitSystemEvent>,
) -> Result<Response, ApiError> {
    let EmitSystemEvent { source, event_type, payload } = body.value;
    check_name("source", &source)?;
    check_name("event_type", &event_type)?;
    if body.bytes.len() > MAX_PAYLOAD_BYTES && payload.to_string().len() > MAX_PAYLOAD_BYTES {
        return Err(too_large("payload", MAX_PAYLOAD_BYTES));
    }
    let id = event_id(client.key());
    let key = client.bind(&who.user, "POST /api/system-events".to_owned(), body.bytes).await?;
    let event = InboundEvent { user: who.user, name: EventName::System { source, event_type }, payload, id, depth: 0 };
    receive(&api, event, key).await
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
        (status = 507, description = "The owner may store no more."),
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
                Ok(WebhookAnswer::Decided(Delivered::Decided(FireOutcome::Changed))) => {
                    target = webhooks.target(&path).await?.ok_or_else(ApiError::not_found)?;
                }
                Ok(answer) => return respond(answer),
                Err(refused) => return Err(refusal(refused)),
            }
        }
        respond(WebhookAnswer::Decided(Delivered::Decided(FireOutcome::Changed)))
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
    let outcome = match delivered {
        Delivered::NotMatched => return not_matched(),
        Delivered::Duplicate(run) => return duplicate(run),
        Delivered::TooMany => return Err(ApiError::new(ErrorCode::RateLimited, "too many deliveries")),
        Delivered::Decided(outcome) => outcome,
    };
    match outcome {
        FireOutcome::Fired(run) => {
            let receipt = WebhookReceipt { run_id: Some(run), ..WebhookReceipt::default() };
            Ok((StatusCode::ACCEPTED, Json(receipt)))
        }
        FireOutcome::Skipped { run, reason: RunReason::Duplicate } => duplicate(Some(run)),
        FireOutcome::Skipped { reason: reason @ RunReason::Overlap, .. } => {
            let detail = "the routine has as many runs in progress as it may have";
            Err(ApiError::new(ErrorCode::RoutineBusy, detail).with_reason(reason.as_str()))
        }
        FireOutcome::Skipped { reason, .. } => {
            let detail = format!("a guardrail of the routine stopped the firing: {reason}");
            Err(ApiError::new(ErrorCode::RoutineSkipped, detail).with_reason(reason.as_str()))
        }
        FireOutcome::Disabled => Err(ApiError::new(ErrorCode::RoutineDisabled, "the routine is disabled")),
        FireOutcome::AutomationDisabled => {
            Err(ApiError::new(ErrorCode::AutomationDisabled, "automation is switched off by the operator"))
        }
        FireOutcome::Changed => {
            Err(ApiError::new(ErrorCode::Conflict, "the routine is being changed; deliver it again"))
        }
        FireOutcome::NotFound => Err(ApiError::not_found()),
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
        WebhookRefused::Match(error @ MatchError::Busy) => {
            not_compared("its condition was not computed and it has fired nothing; deliver it again later", error)
        }
        WebhookRefused::Match(error) => ApiError::internal(error),
    }
}

/// Lists deliveries of a routine's webhook, newest first.
///
/// The newest 200 are kept, each with its outcome and the run that it fired.
#[utoipa::path(
    get, path = "/api/routines/{id}/deliveries", operation_id = "list_webhook_deliveries", tag = "routines",
    params(("id" = String, Path, description = "Routine id."), PageParams),
    responses((status = 200, body = Page<WebhookDelivery>, description = "A page."))
)]
async fn deliveries(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiPath(id): ApiPath<RoutineId>,
    ApiQuery(params): ApiQuery<PageParams>,
) -> Result<Json<Page<WebhookDelivery>>, ApiError> {
    let (limit, before) = (params.limit()?, params.after::<DeliveryId>()?);
    visible(&who, api.store.routine_owner(id).await?, |owner| owner)?;
    let _permit = api.read_permit(&who).await?;
    // One more, to know whether there is a next page.
    let deliveries = api.store.webhook_deliveries(id, before, limit + 1).await?;
    Ok(Json(cursor::page(deliveries, limit, ToString::to_string)))
}
