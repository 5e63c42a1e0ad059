//! `POST /api/webhooks/{path}`: a delivery to the webhook of a routine. The signature is the authentication.

use std::{collections::BTreeMap, sync::Arc};

use axum::{
    Json,
    extract::{FromRequest as _, Request, State},
    http::{HeaderMap, StatusCode},
};
use dispatch::{WebhookAnswer, WebhookRefused, WebhookRequest};
use protocol::{ErrorCode, RunReason, WebhookReceipt};
use store::Delivered;

use crate::{
    completion::run_to_completion,
    extract::{ApiPath, RawBody},
    problem::ApiError,
    public::PublicApi,
    server::BodyReservation,
};

/// Receives a delivery, which fires the routine of the webhook.
///
/// It must be signed by Standard Webhooks, with `X-Hub-Signature-256`, or with `X-Gantry-Signature: t=…,v1=…`. A delivery that
/// was answered before is 200 with `duplicate`, and one that the routine's `where` is not true of is 200 with `matched: false`.
#[utoipa::path(
    post, path = "/api/webhooks/{path}", operation_id = "receive_webhook", tag = "routines", security(()),
    params(("path" = String, Path, description = "The path of the webhook.")),
    request_body(content = Value, content_type = "application/json", description = "At most 1 MiB of any content."),
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
pub(in crate::public) async fn post(
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
