//! `POST /api/jobs/{id}/prompt`: a follow-up prompt to a job.

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use protocol::{ErrorCode, JobId, PromptReceipt, PromptRequest};

use super::{
    PublicApi,
    audit_entry::AuditedCaller,
    caller::authorize_job,
    create::rejected,
    idempotent::{self, ClientHeaders},
};
use domain::request::check_prompt;
use store::Prompted;

use crate::{
    extract::{ApiJson, ApiPath},
    problem::ApiError,
};

/// Sends a follow-up prompt to a job.
///
/// `steer` is read before the next model call, `queue` when the agent would otherwise finish. `done: true` says that no
/// more prompts will come.
#[utoipa::path(
    post, path = "/api/jobs/{id}/prompt", operation_id = "prompt_job", tag = "jobs", request_body = PromptRequest,
    params(
        ("id" = String, Path, description = "Job id."),
        ("Idempotency-Key" = Option<String>, Header, description = "Within 24 hours, the same key and body return the first answer again."),
    ),
    responses(
        (status = 202, body = PromptReceipt, description = "The prompt is stored and will be delivered to the agent."),
        (status = 403, description = "A hook refuses the prompt (`hook_denied`)."),
        (status = 409, description = "The job accepts no more prompts."),
        (status = 429, description = "Too many prompts are waiting."),
    )
)]
pub(super) async fn prompt(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    ApiPath(id): ApiPath<JobId>,
    client: ClientHeaders,
    body: ApiJson<PromptRequest>,
) -> Result<Response, ApiError> {
    let job = authorize_job(&api, &who, id).await?;
    let key = client.bind(&who.user, format!("POST /api/jobs/{id}/prompt"), body.bytes).await?;
    if let Some(replayed) = idempotent::find(&api, key.as_ref()).await? {
        return Ok(replayed);
    }
    let mut request = body.value;
    api.submitter.ask_about_prompt(&job.brief.user_id, Some(id), &mut request.content).await?;
    check_prompt("content", &request.content).map_err(rejected)?;
    let prompted = api.store.add_prompt(id, api.clock.now(), &request, key, Some(&entry)).await?;
    match prompted {
        Prompted::Stored(receipt) => Ok((StatusCode::ACCEPTED, Json(receipt)).into_response()),
        Prompted::Known(lookup) => idempotent::respond(lookup),
        Prompted::Finished(state) => Err(ApiError::new(
            ErrorCode::JobFinished,
            format!("the job is {state} and accepts no more prompts; restart it or create a new one"),
        )),
        Prompted::Stopping => {
            Err(ApiError::new(ErrorCode::JobCancelled, "the job is being cancelled and accepts no more prompts"))
        }
        Prompted::Closed => {
            Err(ApiError::new(ErrorCode::PromptsClosed, "an earlier prompt with `done: true` closed the prompt queue"))
        }
        Prompted::Full => Err(ApiError::new(ErrorCode::RateLimited, "too many prompts are waiting for this job")
            .with_retry_after(std::time::Duration::from_secs(10))),
        Prompted::Missing => Err(ApiError::not_found()),
    }
}
