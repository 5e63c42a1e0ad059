//! `POST /api/jobs/{id}/restart`: a new job that continues one that failed or was cancelled.

use axum::{extract::State, response::Response};
use protocol::{Job, JobId, Problem, RestartRequest};

use super::{
    PublicApi, audit_entry::AuditedCaller, caller::authorize_job, create::response, idempotent::ClientHeaders,
};
use crate::{
    dispatch::Submission,
    http::{
        extract::{ApiPath, OptionalJson},
        problem::ApiError,
    },
};

/// Restarts a job.
#[utoipa::path(
    post, path = "/api/jobs/{id}/restart", operation_id = "restart_job", tag = "jobs", params(
        ("id" = String, Path, description = "The job."),
        ("Idempotency-Key" = Option<String>, Header, description = "The same key and body within 24 h get the first answer again."),
    ),
    request_body = Option<RestartRequest>,
    responses(
        (status = 201, body = Job, description = "A new job with the old one's files. Its limits, image, model and tools are held to what the operator allows today; `message` says what that changed.", headers(("Location" = String))),
        (status = 400, body = Problem, content_type = "application/problem+json", description = "Malformed."),
        (status = 404, body = Problem, content_type = "application/problem+json", description = "Missing, or another user's."),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "Neither failed nor cancelled."),
        (status = 413, body = Problem, content_type = "application/problem+json", description = "Too large."),
        (status = 415, body = Problem, content_type = "application/problem+json", description = "Not JSON."),
        (status = 422, body = Problem, content_type = "application/problem+json", description = "Invalid, or a cost limit applies and the model has no price (`unpriced_model`)."),
        (status = 429, body = Problem, content_type = "application/problem+json", description = "As many jobs are pending as may be."),
        (status = 503, body = Problem, content_type = "application/problem+json", description = "No sandbox."),
        (status = 507, body = Problem, content_type = "application/problem+json", description = "The server's disk is full, or nearly so."),
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
    let key = client.bind(&who.user, &format!("POST /api/jobs/{id}/restart"), &body);
    // Also after the earlier job's record has been deleted.
    if let Some(replayed) = api.submitter.replay(key.as_ref()).await? {
        return Ok(response(replayed));
    }
    let earlier = authorize_job(&api, &who, id).await?;
    let submission = Submission { source, key, audit: Some(entry) };
    Ok(response(api.submitter.restart(submission, &earlier, request).await?))
}
