//! What callers do to a job: start, prompt, cancel, review and delete it.

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use domain::{
    job::{JobRecord, Refused, Step},
    request::check_prompt,
};
use protocol::{
    CancelRequest, ErrorCode, Job, JobId, JobState, PromptReceipt, PromptRequest, RejectRequest,
    limits::MAX_REASON_BYTES,
};
use store::{AuditEntry, JobDeletion, Prompted, Transition};
use workspace::remove_container_logs;

use super::create::rejected;
use crate::{
    completion::run_to_completion,
    problem::ApiError,
    public::{
        PublicApi,
        request::{ApiJson, ApiPath, AuditedCaller, ClientHeaders, OptionalJson, authorize_job, idempotent},
    },
};

/// Starts a held job.
///
/// Puts a job that was created with `hold: true` into the queue.
#[utoipa::path(
    post, path = "/api/jobs/{id}/start", operation_id = "start_job", tag = "jobs", params(("id" = String, Path, description = "Job id.")),
    responses(
        (status = 202, body = Job, description = "The job is queued."),
        (status = 409, description = "The job is not held, or no longer pending."),
        (status = 422, description = "A cost limit applies and the model has no price (`unpriced_model`)."),
    )
)]
pub(super) async fn start(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    ApiPath(id): ApiPath<JobId>,
) -> Result<Response, ApiError> {
    let job = authorize_job(&api, &who, id).await?;
    api.submitter.check_price(&job.brief.model, &job.brief.limits)?;
    match api.store.transition(id, api.clock.now(), Some(&entry), JobRecord::release).await? {
        Transition::Applied(job) => {
            api.waker.wake();
            tracing::info!(job.id = %id, user = who.user, "held job started");
            Ok((StatusCode::ACCEPTED, Json(job.to_api())).into_response())
        }
        Transition::Refused(refused) => Err(ApiError::new(
            ErrorCode::NotHeld,
            format!(
                "the job is {} and not held; only a pending job created with `hold: true` can be started",
                refused.state
            ),
        )),
        Transition::NotFound => Err(ApiError::not_found()),
    }
}

/// Sends a follow-up prompt to a job.
///
/// `steer` is read before the next model call, `queue` when the agent would otherwise finish. `done: true` says that no
/// more prompts will come.
#[utoipa::path(
    post, path = "/api/jobs/{id}/prompt", operation_id = "prompt_job", tag = "jobs",
    request_body(content = PromptRequest, example = json!({"content": "Also count the lines."})),
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

/// Cancels a job.
///
/// A job without a container is cancelled at once. Otherwise `cancel_requested_at` is set, and the state changes once the
/// container is removed.
#[utoipa::path(
    post, path = "/api/jobs/{id}/cancel", operation_id = "cancel_job", tag = "jobs", params(("id" = String, Path, description = "Job id.")),
    request_body(content = Option<CancelRequest>, example = json!({"reason": "no longer needed"})),
    responses(
        (status = 200, body = Job, description = "The job was already cancelled."),
        (status = 202, body = Job, description = "Cancellation requested; `cancel_requested_at` is set while the job stops."),
        (status = 409, description = "The job has already finished."),
    )
)]
pub(super) async fn cancel(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    ApiPath(id): ApiPath<JobId>,
    OptionalJson(request): OptionalJson<CancelRequest>,
) -> Result<Response, ApiError> {
    let reason = request.reason.filter(|reason| !reason.is_empty());
    if reason.as_ref().is_some_and(|reason| reason.len() > MAX_REASON_BYTES || reason.contains('\0')) {
        return Err(ApiError::field("reason", format!("must be at most {MAX_REASON_BYTES} bytes without NUL")));
    }
    let before = authorize_job(&api, &who, id).await?;
    if before.state() == JobState::Cancelled {
        return Ok(Json(before.to_api()).into_response());
    }
    let now = api.clock.now();
    match api.store.transition(id, now, Some(&entry), move |job| job.request_cancel(now, reason)).await? {
        Transition::Applied(job) => {
            api.waker.wake();
            tracing::info!(job.id = %id, user = who.user, "cancel requested");
            // 202 also when it is cancelled at once; 200 means that it was cancelled before this request.
            Ok((StatusCode::ACCEPTED, Json(job.to_api())).into_response())
        }
        // Cancelled by another request since it was read.
        Transition::Refused(refused) if refused.state == JobState::Cancelled => {
            Ok(Json(authorize_job(&api, &who, id).await?.to_api()).into_response())
        }
        Transition::Refused(refused) if refused.state == JobState::Submitted => {
            let detail = "the job is submitted, so its work is done; accept or reject it";
            Err(ApiError::new(ErrorCode::JobFinished, detail))
        }
        Transition::Refused(refused) => {
            Err(ApiError::new(ErrorCode::JobFinished, format!("the job is already {}", refused.state)))
        }
        Transition::NotFound => Err(ApiError::not_found()),
    }
}

/// Accepts a job's result.
///
/// Only for a job that was created with `review: true` and has submitted its result.
#[utoipa::path(
    post, path = "/api/jobs/{id}/accept", operation_id = "accept_job", tag = "jobs", params(("id" = String, Path, description = "Job id.")),
    responses(
        (status = 200, body = Job, description = "The job is accepted."),
        (status = 409, description = "The job is not submitted."),
    )
)]
pub(super) async fn accept(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    ApiPath(id): ApiPath<JobId>,
) -> Result<Json<Job>, ApiError> {
    authorize_job(&api, &who, id).await?;
    let now = api.clock.now();
    review(&api, id, entry, move |job| job.accept(now)).await
}

/// Rejects a job's result.
///
/// Only for a job that has submitted its result. The job is marked failed and can be restarted.
#[utoipa::path(
    post, path = "/api/jobs/{id}/reject", operation_id = "reject_job", tag = "jobs", params(("id" = String, Path, description = "Job id.")),
    request_body(content = RejectRequest, example = json!({"reason": "The table has no header."})),
    responses(
        (status = 200, body = Job, description = "The job is rejected and marked failed."),
        (status = 409, description = "The job is not submitted."),
    )
)]
pub(super) async fn reject(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    ApiPath(id): ApiPath<JobId>,
    ApiJson { value: RejectRequest { reason }, .. }: ApiJson<RejectRequest>,
) -> Result<Json<Job>, ApiError> {
    if reason.trim().is_empty() || reason.len() > MAX_REASON_BYTES || reason.contains('\0') {
        return Err(ApiError::field("reason", format!("must be 1 to {MAX_REASON_BYTES} bytes without NUL")));
    }
    authorize_job(&api, &who, id).await?;
    let now = api.clock.now();
    review(&api, id, entry, move |job| job.reject(now, reason)).await
}

/// Applies a review decision to a submitted job.
async fn review(
    api: &PublicApi,
    id: JobId,
    entry: AuditEntry,
    decide: impl FnOnce(JobRecord) -> Result<Step, Refused> + Send + 'static,
) -> Result<Json<Job>, ApiError> {
    match api.store.transition(id, api.clock.now(), Some(&entry), decide).await? {
        Transition::Applied(job) => {
            tracing::info!(job.id = %id, state = %job.state(), "result reviewed");
            Ok(Json(job.to_api()))
        }
        Transition::Refused(refused) => Err(ApiError::new(
            ErrorCode::NotSubmitted,
            format!("the job is {}; only a submitted job can be accepted or rejected", refused.state),
        )),
        Transition::NotFound => Err(ApiError::not_found()),
    }
}

/// Deletes a finished job with its events, calls, files and saved output.
///
/// What it used stays counted in the totals by day and model and in budgets. A child's `parent_id` and a notification's `job_id` become
/// null; `restarted_from` and the `job_id` of a run keep the id, which is 404 then.
#[utoipa::path(
    delete, path = "/api/jobs/{id}", operation_id = "delete_job", tag = "jobs", params(("id" = String, Path, description = "Job id.")),
    responses(
        (status = 204, description = "The job is deleted."),
        (status = 409, description = "The job, one of its model calls or a child job has not finished."),
    )
)]
pub(super) async fn delete(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    ApiPath(id): ApiPath<JobId>,
) -> Result<StatusCode, ApiError> {
    authorize_job(&api, &who, id).await?;
    let refused = |detail: String| Err(ApiError::new(ErrorCode::NotFinished, detail));
    let store = api.store.clone();
    let deletion = run_to_completion(&api.tasks, async move { Ok(store.delete_job(id, entry).await?) });
    match deletion.await? {
        JobDeletion::Deleted => {}
        JobDeletion::NotFinished(state) => return refused(format!("the job is {state}; cancel it first")),
        JobDeletion::CallInFlight => {
            return refused("a model call of the job has not ended yet; try again later".to_owned());
        }
        JobDeletion::UnfinishedChild => {
            return refused("a child job has not finished; cancel the child job or wait for it".to_owned());
        }
        JobDeletion::Missing => return Err(ApiError::not_found()),
    }
    tracing::info!(job.id = %id, user = who.user, "job deleted");
    let (workspaces, logs) = (api.workspaces.clone(), api.logs.clone());
    // What cannot be removed now, since its container has not ended or the process stops, is removed by the retention sweep.
    let remove = move || {
        workspaces.remove(id);
        remove_container_logs(&logs, id);
    };
    tokio::task::spawn_blocking(remove).await.map_err(ApiError::internal)?;
    Ok(StatusCode::NO_CONTENT)
}
