//! `GET /api/jobs`: lists the caller's jobs, newest first.

use axum::extract::State;
use protocol::{ErrorCode, JobId, JobState, JobSummary, Page};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{PublicApi, caller::UncheckedCaller, cursor, id_part::id_part, json_text::JsonText, name_list};
use auth::Identity;
use domain::request::{MAX_LABELS, check_label_key};
use store::{JobFilter, JobPage};

use crate::{extract::ApiQuery, problem::ApiError};

const MAX_SEARCH_BYTES: usize = 1_000;

/// Query parameters.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Params {
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
    /// Maximum number of items, 1 to 200; default 50. A page also ends at 1 MiB.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<u32>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// Lists jobs, newest first.
///
/// An item is the job without its prompt, result and metadata, with `prompt_preview`. An admin sees the jobs of all users.
#[utoipa::path(
    get, path = "/api/jobs", operation_id = "list_jobs", tag = "jobs", params(Params),
    responses(
        (status = 200, body = Page<JobSummary>, description = "A page."),
    )
)]
pub(super) async fn list(
    State(api): State<PublicApi>,
    caller: UncheckedCaller,
    ApiQuery(params): ApiQuery<Params>,
) -> Result<JsonText, ApiError> {
    let filter = JobFilter {
        user: whose(caller.unchecked(), params.user)?,
        states: name_list::parse("state", params.state.as_deref(), JobState::ALL, JobState::as_str)?,
        labels: labels(&params.label)?,
        text: text(params.q)?,
        id_part: params.id.as_deref().map(id_part).transpose()?,
        parent: params.parent.as_deref().map(parent).transpose()?,
        before: params.cursor.as_deref().map(cursor::read::<JobId>).transpose()?,
        limit: cursor::limit(params.limit)?,
    };
    let _permit = api.read_permit(caller.unchecked()).await?;
    let page = api.store.job_summaries(&caller.unchecked().jti, &filter).await?;
    let (_, JobPage { items, last }) = caller.checked(page)?;
    // A cursor is URL-safe base64: it needs no escapes.
    let next_cursor = last.map_or("null".to_owned(), |id| format!("\"{}\"", cursor::write(&id.to_string())));
    Ok(JsonText(format!("{{\"items\":[{items}],\"next_cursor\":{next_cursor}}}")))
}

/// The user to filter by; `None` for all users.
fn whose(who: &Identity, asked: Option<String>) -> Result<Option<String>, ApiError> {
    match asked {
        Some(user) if user != who.user && !who.role.sees_all() => {
            Err(ApiError::new(ErrorCode::Forbidden, "only an admin can list the jobs of other users"))
        }
        None if !who.role.sees_all() => Ok(Some(who.user.clone())),
        asked => Ok(asked),
    }
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

fn parent(asked: &str) -> Result<JobId, ApiError> {
    asked.parse().map_err(|_| ApiError::field("parent", "must be the id of a job"))
}

fn text(asked: Option<String>) -> Result<Option<String>, ApiError> {
    match asked.filter(|text| !text.is_empty()) {
        Some(text) if text.len() > MAX_SEARCH_BYTES || text.contains('\0') => {
            Err(ApiError::field("q", format!("must be at most {MAX_SEARCH_BYTES} bytes without NUL")))
        }
        other => Ok(other),
    }
}
