//! `POST /api/jobs/{id}/restart`: a new job that continues one that failed or was cancelled.

use axum::{extract::State, response::Response};
use protocol::{Job, JobId, RestartRequest};

use super::{
    PublicApi, audit_entry::AuditedCaller, caller::authorize_job, create::response, idempotent::ClientHeaders,
};
use dispatch::Submission;

use crate::{
    extract::{ApiPath, OptionalJson},
    problem::ApiError,
};

/// Restarts a failed or cancelled job.
///
/// Creates a new job with the prompt, the settings and the files of the earlier one; `restarted_from` names it.
#[utoipa::path(
    post, path = "/api/jobs/{id}/restart", operation_id = "restart_job", tag = "jobs", params(
        ("id" = String, Path, description = "The job."),
        ("Idempotency-Key" = Option<String>, Header, description = "The same key and body within 24 h return the first response again."),
    ),
    request_body = Option<RestartRequest>,
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
    let submission = Submission { source, key, audit: Some(entry), thread: None, allows_host: false };
    Ok(response(api.submitter.restart(submission, &earlier, request).await?))
}
