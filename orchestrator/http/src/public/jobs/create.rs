//! A job is created: as a request describes it, or as the restart of an earlier one.

use axum::{
    Json,
    extract::State,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use dispatch::{Submission, SubmitError, Submitted};
use domain::{job::JobRecord, request::Rejected};
use protocol::{CreateJob, ErrorCode, Job, JobId, RestartRequest};

use super::files::to_api_error;
use crate::{
    problem::ApiError,
    public::{
        PublicApi,
        request::{ApiJson, ApiPath, AuditedCaller, ClientHeaders, OptionalJson, authorize_job, idempotent},
    },
};

/// Creates a job.
///
/// The job is queued, and its container is started as soon as there is a free slot. With `hold: true` it waits for `POST
/// /api/jobs/{id}/start`, so that files can be uploaded first. `GET /api/jobs/{id}/events` follows its work.
#[utoipa::path(
    post, path = "/api/jobs", operation_id = "create_job", tag = "jobs",
    request_body(content = CreateJob, example = json!({"prompt": "run: id"})),
    params(("Idempotency-Key" = Option<String>, Header, description = "The same key and body within 24 h return the first response again.")),
    responses(
        (status = 201, description = "Created and queued.", body = Job, headers(("Location" = String))),
        (status = 403, description = "A hook refuses the prompt (`hook_denied`)."),
        (status = 422, description = "Invalid or unavailable field, idempotency key used with another request, or a cost limit on a model without a price (`unpriced_model`)."),
        (status = 429, description = "Too many pending jobs."),
        (status = 503, description = "Sandbox unavailable; nothing is stored."),
        (status = 507, description = "The server's disk is (nearly) full; nothing is stored."),
    )
)]
pub(super) async fn create(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    client: ClientHeaders,
    body: ApiJson<CreateJob>,
) -> Result<Response, ApiError> {
    let source = client.source;
    let key = client.bind(&who.user, "POST /api/jobs".to_owned(), body.bytes).await?;
    let submission = Submission { source, key, audit: Some(entry), thread: None };
    Ok(response(api.submitter.submit_request(who.user, submission, body.value).await?))
}

/// Restarts a failed or cancelled job.
///
/// Creates a new job with the prompt, the settings and the files of the earlier one; `restarted_from` names it.
#[utoipa::path(
    post, path = "/api/jobs/{id}/restart", operation_id = "restart_job", tag = "jobs", params(
        ("id" = String, Path, description = "The job."),
        ("Idempotency-Key" = Option<String>, Header, description = "The same key and body within 24 h return the first response again."),
    ),
    request_body(content = Option<RestartRequest>, example = json!({})),
    responses(
        (status = 201, body = Job, description = "A new job with the earlier job's files. Its limits, image, model and tools are reduced to what the operator allows now; `message` says what was changed.", headers(("Location" = String))),
        (status = 403, description = "A hook refuses the prompt (`hook_denied`)."),
        (status = 409, description = "The job is not failed or cancelled."),
        (status = 422, description = "Invalid, or a cost limit on a model without a price (`unpriced_model`)."),
        (status = 429, description = "Too many pending jobs."),
        (status = 503, description = "Sandbox unavailable."),
        (status = 507, description = "The server's disk is (nearly) full."),
    )
)]
pub(super) async fn restart(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    ApiPath(id): ApiPath<JobId>,
    client: ClientHeaders,
    OptionalJson(request): OptionalJson<RestartRequest>,
) -> Result<Response, ApiError> {
    let body = serde_json::to_vec(&request).map_err(ApiError::internal)?;
    let source = client.source;
    let key = client.bind(&who.user, format!("POST /api/jobs/{id}/restart"), body.into()).await?;
    // Also after the earlier job's record has been deleted.
    if let Some(replayed) = api.submitter.replay(key.as_ref()).await? {
        return Ok(response(replayed));
    }
    let earlier = authorize_job(&api, &who, id).await?;
    let submission = Submission { source, key, audit: Some(entry), thread: None };
    Ok(response(api.submitter.restart(submission, &earlier, request).await?))
}

/// The response to a submission: 201, or the response to the first one with its key.
fn response(submitted: Submitted) -> Response {
    match submitted {
        Submitted::Created(job) => created(&job),
        Submitted::Replayed { status, body } => idempotent::replay(status, body),
    }
}

fn created(record: &JobRecord) -> Response {
    let mut response = (StatusCode::CREATED, Json(record.to_api())).into_response();
    if let Ok(location) = HeaderValue::from_str(&format!("/api/jobs/{}", record.id)) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    response
}

/// The error for an invalid request.
pub(in crate::public) fn rejected(rejected: Rejected) -> ApiError {
    match rejected {
        Rejected::Invalid(errors) => ApiError::invalid(errors),
        Rejected::NotAvailable(errors) => ApiError::refused_fields(ErrorCode::NotAvailable, errors),
        Rejected::PresetUnknown(errors) => ApiError::refused_fields(ErrorCode::PresetUnknown, errors),
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        let detail = error.to_string();
        match error {
            SubmitError::Rejected(request) => rejected(request),
            SubmitError::Hook(refused) => refused.into(),
            SubmitError::NotRestartable(_) | SubmitError::PromptNotKept => Self::new(ErrorCode::NotRestartable, detail),
            SubmitError::KeyReused => Self::new(ErrorCode::IdempotencyMismatch, detail),
            SubmitError::QueueFull(_) => {
                Self::new(ErrorCode::RateLimited, detail).with_retry_after(idempotent::QUEUE_FULL_RETRY)
            }
            // Only a tool creates children.
            SubmitError::JobDeleted | SubmitError::ChildRefused(_) | SubmitError::RunGone => {
                Self::new(ErrorCode::Conflict, detail)
            }
            SubmitError::SandboxUnavailable { reason, .. } => {
                Self::new(ErrorCode::SandboxUnavailable, detail).with_reason(reason.as_str())
            }
            SubmitError::EarlierFilesTooLarge(_) => Self::new(ErrorCode::TooLarge, detail).with_source(error),
            SubmitError::Unpriced(_) => Self::new(ErrorCode::UnpricedModel, detail),
            SubmitError::NoDiskSpace(error) => to_api_error(error),
            SubmitError::Unsearched(error) => error.into(),
            SubmitError::UserStorageFull(_) => Self::new(ErrorCode::UserStorageFull, detail),
            SubmitError::Store(error) => error.into(),
            SubmitError::Workspace(_) | SubmitError::Aborted(_) => Self::internal(error),
        }
    }
}
