//! `GET /api/jobs/{id}/logs`: the output of a job's containers.

use axum::{
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use protocol::{ContainerName, JobId};

use super::{
    PublicApi,
    caller::{Caller, authorize_job},
};
use crate::{extract::ApiPath, problem::ApiError};

/// Shows the output of the job's containers, by attempt.
///
/// Output is saved when a container is removed, so a running container has none yet.
#[utoipa::path(
    get, path = "/api/jobs/{id}/logs", operation_id = "get_job_logs", tag = "jobs", params(("id" = String, Path, description = "Job id.")),
    responses(
        (status = 200, body = String, content_type = "text/plain", description = "For each attempt, a header line and its output."),
    )
)]
pub(super) async fn logs(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiPath(id): ApiPath<JobId>,
) -> Result<Response, ApiError> {
    let job = authorize_job(&api, &who, id).await?;
    let mut text = String::new();
    for attempt in 1..=job.attempt {
        let path = api.logs.join(ContainerName::job(id, attempt).log_file());
        let printed = match tokio::fs::read(&path).await {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            read => read.map_err(ApiError::internal)?,
        };
        text.push_str("==> attempt ");
        text.push_str(&attempt.to_string());
        text.push('\n');
        text.push_str(&String::from_utf8_lossy(&printed));
        if !text.ends_with('\n') {
            text.push('\n');
        }
    }
    Ok(([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response())
}
