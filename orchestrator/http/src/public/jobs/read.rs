//! What jobs are: one, a page of them, and their counts.

use std::fmt::Write as _;

use axum::{Json, extract::State};
use chrono::{DateTime, Utc};
use domain::request::{MAX_LABELS, check_label_key};
use protocol::{Job, JobCounts, JobId, JobReason, JobState, JobSummary, Page, RoutineId, RunId, Source};
use serde::Deserialize;
use store::{JobFilter, JobPage};
use utoipa::IntoParams;

use crate::{
    problem::ApiError,
    public::{
        PublicApi,
        request::{ApiPath, ApiQuery, Caller, UncheckedCaller, cursor, filter, visible},
        response::json_text::JsonText,
    },
};

const MAX_SEARCH_BYTES: usize = 1_000;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListParams {
    /// A state, or several separated by commas.
    state: Option<String>,
    /// `key:value` or `key=value`. Can be repeated (at most 64 times); all must match.
    #[serde(default)]
    label: Vec<String>,
    /// Only jobs of this user; admins only.
    user: Option<String>,
    /// Text contained in the title or the prompt.
    q: Option<String>,
    /// Prefix or suffix of an id, at least 4 characters.
    id: Option<String>,
    /// Id of a job; only its children, which its tool calls created.
    parent: Option<String>,
    /// Only jobs that runs of this routine created.
    #[param(value_type = Option<String>)]
    routine_id: Option<RoutineId>,
    /// Only jobs that this run created.
    #[param(value_type = Option<String>)]
    run_id: Option<RunId>,
    /// Only jobs that are failed, stuck or cancelled for this reason.
    #[param(inline)]
    reason: Option<JobReason>,
    /// Only jobs with this creator.
    #[param(inline)]
    source: Option<Source>,
    /// Only jobs with this model.
    model: Option<String>,
    /// Only jobs that were created at or after this time.
    since: Option<DateTime<Utc>>,
    /// Only jobs that were created before this time.
    until: Option<DateTime<Utc>>,
    /// Maximum number of items, 1 to 200; default 50. A page also ends at 1 MiB, and one of a search (`q`, `label`, or
    /// several filters at once) after a moment: then it may be short or empty, and `next_cursor` goes on.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<u32>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// Lists jobs, newest first.
///
/// An item is the job without its prompt, result and metadata, with `prompt_preview`. An admin sees the jobs of all
/// users.
#[utoipa::path(
    get, path = "/api/jobs", operation_id = "list_jobs", tag = "jobs", params(ListParams),
    responses(
        (status = 200, body = Page<JobSummary>, description = "A page."),
        (status = 422, description = "A parameter is wrong, or a search over all users found nothing in the time it may take \
            (`query_too_broad`)."),
    )
)]
pub(super) async fn list(
    State(api): State<PublicApi>,
    caller: UncheckedCaller,
    ApiQuery(params): ApiQuery<ListParams>,
) -> Result<JsonText, ApiError> {
    let filter = JobFilter {
        user: filter::user(caller.unchecked(), params.user, "list the jobs of other users")?,
        states: filter::names("state", params.state.as_deref(), JobState::ALL, JobState::as_str)?,
        labels: labels(&params.label)?,
        text: searched("q", params.q)?,
        id_part: params.id.as_deref().map(filter::id_part).transpose()?,
        parent: params.parent.as_deref().map(parent_id).transpose()?,
        routine: params.routine_id,
        run: params.run_id,
        reason: params.reason,
        source: params.source,
        model: searched("model", params.model)?,
        since: params.since,
        until: params.until,
        before: params.cursor.as_deref().map(cursor::read::<JobId>).transpose()?,
        limit: cursor::limit(params.limit)?,
    };
    let _permit = api.list_permit(caller.unchecked(), filter.is_search()).await?;
    let page = api.store.job_summaries(&caller.unchecked().jti, &filter).await?;
    let (_, JobPage { items, last }) = caller.checked(page)?;
    // A cursor is URL-safe base64: it needs no escapes.
    let next_cursor = last.map_or("null".to_owned(), |id| format!("\"{}\"", cursor::write(&id.to_string())));
    Ok(JsonText(format!("{{\"items\":[{items}],\"next_cursor\":{next_cursor}}}")))
}

fn labels(asked: &[String]) -> Result<Vec<(String, String)>, ApiError> {
    if asked.len() > MAX_LABELS {
        return Err(ApiError::field("label", format!("must be given at most {MAX_LABELS} times")));
    }
    asked.iter().map(|label| split(label)).collect()
}

/// A key contains neither separator; a value may.
fn split(label: &str) -> Result<(String, String), ApiError> {
    let (key, value) = label
        .split_once([':', '='])
        .filter(|(_, value)| !value.contains('\0'))
        .ok_or_else(|| ApiError::field("label", "must be key:value or key=value"))?;
    check_label_key(key).map_err(|rule| ApiError::field("label", rule))?;
    Ok((key.to_owned(), value.to_owned()))
}

fn parent_id(asked: &str) -> Result<JobId, ApiError> {
    asked.parse().map_err(|_| ApiError::field("parent", "must be the id of a job"))
}

/// A text that is looked for; none if it is absent or empty.
fn searched(field: &str, asked: Option<String>) -> Result<Option<String>, ApiError> {
    match asked.filter(|text| !text.is_empty()) {
        Some(text) if text.len() > MAX_SEARCH_BYTES || text.contains('\0') => {
            Err(ApiError::field(field, format!("must be at most {MAX_SEARCH_BYTES} bytes without NUL")))
        }
        other => Ok(other),
    }
}

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
    let mut job = visible(&who, job, |job| &job.user_id)?;
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

/// Counts jobs by state.
///
/// With the usage since midnight UTC. Of the caller's jobs; for admins, of all jobs.
#[utoipa::path(
    get, path = "/api/jobs/summary", operation_id = "get_job_summary", tag = "jobs",
    responses((status = 200, body = JobCounts, description = "Counts and usage since midnight UTC."))
)]
pub(super) async fn summary(State(api): State<PublicApi>, Caller(who): Caller) -> Result<Json<JobCounts>, ApiError> {
    let today = api.clock.now().date_naive();
    let user = (!who.role.sees_all()).then_some(who.user.as_str());
    let _permit = api.read_permit(&who).await?;
    Ok(Json(api.store.summary(user, today).await?))
}
