//! `GET /api/jobs/{id}`: shows a job.

use std::fmt::Write as _;

use axum::extract::State;
use protocol::{Job, JobId};

use super::{PublicApi, caller::UncheckedCaller, json_text::JsonText};
use crate::{extract::ApiPath, problem::ApiError};

/// A pending job, as it is rendered.
const PENDING: &str = "\"state\":\"pending\"";

/// Gets a job.
///
/// With its state, limits, usage, container and, once it has finished, its result.
/// `queue_position` is where a pending job stands in the queue, by priority and age, from 1 for the next. It is an estimate: users take
/// turns, and a job waits for the end of a retry's delay.
#[utoipa::path(
    get, path = "/api/jobs/{id}", operation_id = "get_job", tag = "jobs", params(("id" = String, Path, description = "Job id.")),
    responses(
        (status = 200, body = Job, description = "The job."),
    )
)]
pub(super) async fn get(
    State(api): State<PublicApi>,
    caller: UncheckedCaller,
    ApiPath(id): ApiPath<JobId>,
) -> Result<JsonText, ApiError> {
    let job = api.store.job_json(&caller.unchecked().jti, id).await?;
    let (who, job) = caller.checked(job)?;
    let mut job = job.ok_or_else(ApiError::not_found)?;
    if !who.may_see(&job.user_id) {
        return Err(ApiError::not_owner());
    }
    // Most reads are of jobs that are not pending: these make no second query. A text of the job may look like its state, too.
    let may_be_pending = job.json.contains(PENDING);
    let position = if may_be_pending { api.store.queue_position(id).await? } else { None };
    add_member(&mut job.json, "queue_position", position);
    Ok(JsonText(job.json))
}

/// Adds a last member to a rendered object.
fn add_member(object: &mut String, name: &str, value: Option<u64>) {
    debug_assert!(object.ends_with('}'), "an object");
    object.pop();
    let value = value.map_or_else(|| "null".to_owned(), |value| value.to_string());
    // Writing into a string cannot fail.
    let _ = write!(object, ",\"{name}\":{value}}}");
}
