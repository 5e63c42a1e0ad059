//! `GET /api/jobs`: the caller's jobs, newest first.

use axum::{Json, extract::State};
use axum_extra::extract::Query;
use protocol::{Job, JobId, JobState, Page, Problem};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{PublicApi, caller::Caller, cursor};
use crate::{http::problem::ApiError, store::JobFilter};

const MAX_SEARCH_BYTES: usize = 1_000;

/// Which jobs.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Params {
    /// A state, or several with commas between.
    state: Option<String>,
    /// `key:value`; given several times, all must match.
    #[serde(default)]
    label: Vec<String>,
    /// A text in title or prompt.
    q: Option<String>,
    /// 1 to 200; 50 when left out.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<u32>,
    /// From the last page's `next_cursor`.
    cursor: Option<String>,
}

/// Lists jobs, newest first.
#[utoipa::path(
    get, path = "/api/jobs", tag = "jobs", params(Params),
    responses(
        (status = 200, body = Page<Job>, description = "One page."),
        (status = 422, body = Problem, content_type = "application/problem+json", description = "A parameter is wrong."),
    )
)]
pub(super) async fn list(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    query: Result<Query<Params>, axum_extra::extract::QueryRejection>,
) -> Result<Json<Page<Job>>, ApiError> {
    let Query(params) = query.map_err(|rejection| ApiError::field("query", rejection.body_text()))?;
    let limit = cursor::limit(params.limit)?;
    let filter = JobFilter {
        user: (!who.role.sees_all()).then_some(who.user),
        states: states(params.state.as_deref())?,
        labels: params.label.iter().map(|label| split(label)).collect::<Result<_, _>>()?,
        text: text(params.q)?,
        before: params.cursor.as_deref().map(cursor::read::<JobId>).transpose()?,
        // One more, to know whether there is a next page.
        limit: limit + 1,
    };
    let mut jobs = api.store.jobs(&filter).await?;
    let more = jobs.len() > limit as usize;
    jobs.truncate(limit as usize);
    let next_cursor = jobs.last().filter(|_| more).map(|job| cursor::write(&job.id.to_string()));
    Ok(Json(Page { items: jobs.iter().map(crate::domain::job::JobRecord::to_api).collect(), next_cursor }))
}

fn states(asked: Option<&str>) -> Result<Vec<JobState>, ApiError> {
    let Some(asked) = asked.filter(|asked| !asked.is_empty()) else { return Ok(vec![]) };
    asked
        .split(',')
        .map(|name| {
            JobState::parse(name.trim()).ok_or_else(|| {
                let known: Vec<&str> = JobState::ALL.iter().map(|state| state.as_str()).collect();
                ApiError::field("state", format!("must be of {}", known.join(", ")))
            })
        })
        .collect()
}

fn split(label: &str) -> Result<(String, String), ApiError> {
    match label.split_once(':') {
        Some((key, value)) if !key.is_empty() && !label.contains('\0') => Ok((key.to_owned(), value.to_owned())),
        _ => Err(ApiError::field("label", "must be key:value")),
    }
}

fn text(asked: Option<String>) -> Result<Option<String>, ApiError> {
    match asked.filter(|text| !text.is_empty()) {
        Some(text) if text.len() > MAX_SEARCH_BYTES || text.contains('\0') => {
            Err(ApiError::field("q", format!("must be at most {MAX_SEARCH_BYTES} bytes without NUL")))
        }
        other => Ok(other),
    }
}
