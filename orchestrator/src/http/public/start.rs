//! `POST /api/jobs/{id}/start`: a held job takes its place in the queue.

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use protocol::{ErrorCode, Job, JobId, Problem};

use super::{PublicApi, caller::visible, deeds::Doer};
use crate::{
    domain::job::JobRecord,
    http::{extract::ApiPath, problem::ApiError},
    store::Changed,
};

/// Starts a held job.
#[utoipa::path(
    post, path = "/api/jobs/{id}/start", tag = "jobs", params(("id" = String, Path, description = "The job.")),
    responses(
        (status = 202, body = Job, description = "It is held no longer and waits for its turn."),
        (status = 404, body = Problem, content_type = "application/problem+json", description = "Missing, or another user's."),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "It is not held, or no longer pending."),
    )
)]
pub(super) async fn start(
    State(api): State<PublicApi>,
    Doer { who, deed }: Doer,
    ApiPath(id): ApiPath<JobId>,
) -> Result<Response, ApiError> {
    visible(&api, &who, id).await?;
    match api.store.by(deed).change(id, api.clock.now(), JobRecord::release).await? {
        Changed::Done(job) => {
            api.wake.wake();
            tracing::info!(job.id = %id, user = who.user, "held job started");
            Ok((StatusCode::ACCEPTED, Json(job.to_api())).into_response())
        }
        Changed::Refused(refused) => Err(ApiError::new(
            ErrorCode::NotHeld,
            format!("the job is {} and not held; only a job made with hold: true is started, once", refused.state),
        )),
        Changed::Missing | Changed::PromptsWaiting => Err(ApiError::not_found()),
    }
}
