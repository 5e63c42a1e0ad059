//! `POST /api/jobs/{id}/prompt`: a word to an agent at work.

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use protocol::{ErrorCode, JobId, Problem, PromptReceipt, PromptRequest};

use super::{
    PublicApi,
    caller::visible,
    create::{rejected, seen},
    deeds::Doer,
    idempotent::{self, Bound, ClientHeaders},
};
use crate::{
    domain::request::check_prompt,
    http::{
        extract::{ApiJsonBytes, ApiPath},
        problem::ApiError,
    },
    store::Prompted,
};

/// Sends a follow-up prompt.
#[utoipa::path(
    post, path = "/api/jobs/{id}/prompt", tag = "jobs", request_body = PromptRequest,
    params(
        ("id" = String, Path, description = "The job."),
        ("Idempotency-Key" = Option<String>, Header, description = "The same key and body within 24 h get the first answer again."),
    ),
    responses(
        (status = 202, body = PromptReceipt, description = "Stored; the agent will see it."),
        (status = 400, body = Problem, content_type = "application/problem+json", description = "Malformed."),
        (status = 404, body = Problem, content_type = "application/problem+json", description = "Missing, or another user's."),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "It takes no more prompts."),
        (status = 413, body = Problem, content_type = "application/problem+json", description = "Too large."),
        (status = 415, body = Problem, content_type = "application/problem+json", description = "Not JSON."),
        (status = 422, body = Problem, content_type = "application/problem+json", description = "Invalid."),
        (status = 429, body = Problem, content_type = "application/problem+json", description = "Too many wait."),
    )
)]
pub(super) async fn prompt(
    State(api): State<PublicApi>,
    Doer { who, deed }: Doer,
    ApiPath(id): ApiPath<JobId>,
    client: ClientHeaders,
    body: ApiJsonBytes<PromptRequest>,
) -> Result<Response, ApiError> {
    visible(&api, &who, id).await?;
    let key = client.bind(&who.user, &format!("POST /api/jobs/{id}/prompt"), &body.bytes);
    if let Some(replayed) = seen(&api, key.as_ref()).await? {
        return Ok(replayed);
    }
    check_prompt("content", &body.value.content).map_err(rejected)?;
    let (store, now) = (api.store.by(deed), api.clock.now());
    let prompted = store.add_prompt(id, now, &body.value, key.as_ref().map(Bound::key)).await?;
    match prompted {
        Prompted::Stored(receipt) => Ok((StatusCode::ACCEPTED, Json(receipt)).into_response()),
        Prompted::Known(claim) => idempotent::answer(claim)?.ok_or_else(ApiError::not_found),
        Prompted::Finished(state) => Err(ApiError::new(
            ErrorCode::JobFinished,
            format!("the job is {state} and takes no more prompts; restart it or make a new one"),
        )),
        Prompted::Stopping => {
            Err(ApiError::new(ErrorCode::JobCancelled, "it takes no more prompts; once it has ended, restart it"))
        }
        Prompted::Closed => Err(ApiError::new(
            ErrorCode::PromptsClosed,
            "an earlier prompt with done: true said that no more will come",
        )),
        Prompted::Full => {
            Err(ApiError::new(ErrorCode::RateLimited, "too many prompts wait for this agent; let it catch up")
                .with_retry_after(std::time::Duration::from_secs(10)))
        }
        Prompted::Missing => Err(ApiError::not_found()),
    }
}
