//! `POST /api/jobs`: creates a job.

use axum::{
    Json,
    extract::State,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use protocol::{CreateJob, ErrorCode, Job};

use super::{
    PublicApi,
    audit_entry::AuditedCaller,
    files::to_api_error,
    idempotent::{self, ClientHeaders},
};
use dispatch::{Submission, SubmitError, Submitted};
use domain::{job::JobRecord, request::Rejected};

use crate::{extract::ApiJson, problem::ApiError};

/// Creates a job.
///
/// The job is queued, and its container is started as soon as there is a free slot. With `hold: true` it waits for `POST
/// /api/jobs/{id}/start`, so that files can be uploaded first. `GET /api/jobs/{id}/events` follows its work.
#[utoipa::path(
    post, path = "/api/jobs", operation_id = "create_job", tag = "jobs", request_body = CreateJob,
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
    let submission = Submission { source, key, audit: Some(entry), thread: None, allows_host: false };
    Ok(response(api.submitter.submit_request(who.user, submission, body.value).await?))
}

/// The response to a submission: 201, or the response to the first one with its key.
pub(super) fn response(submitted: Submitted) -> Response {
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
pub(super) fn rejected(rejected: Rejected) -> ApiError {
    match rejected {
        Rejected::Invalid(errors) => ApiError::invalid(errors),
        Rejected::NotAvailable(errors) => ApiError::not_available_fields(errors),
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        let detail = error.to_string();
        match error {
            SubmitError::Rejected(request) => rejected(request),
            SubmitError::Hook(refused) => refused.into(),
            SubmitError::NotRestartable(_) => Self::new(ErrorCode::NotRestartable, detail),
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
            SubmitError::Store(error) => error.into(),
            SubmitError::Workspace(_) | SubmitError::Aborted(_) => Self::internal(error),
        }
    }
}
