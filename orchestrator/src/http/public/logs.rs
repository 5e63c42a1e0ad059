//! `GET /api/jobs/{id}/logs`: what the job's containers printed.

use axum::{
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use protocol::{ContainerName, JobId, Problem};

use super::{
    PublicApi,
    caller::{Caller, visible},
};
use crate::http::{extract::ApiPath, problem::ApiError};

/// Shows what the job's containers printed, attempt by attempt. It is kept when a container is removed: of one that runs
/// there is nothing yet.
#[utoipa::path(
    get, path = "/api/jobs/{id}/logs", tag = "jobs", params(("id" = String, Path, description = "The job.")),
    responses(
        (status = 200, body = String, content_type = "text/plain", description = "A line that names the attempt, then what it printed."),
        (status = 404, body = Problem, content_type = "application/problem+json", description = "Missing, or another user's."),
    )
)]
pub(super) async fn logs(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiPath(id): ApiPath<JobId>,
) -> Result<Response, ApiError> {
    let job = visible(&api, &who, id).await?;
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
