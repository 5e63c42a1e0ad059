//! `GET /api/audit`: who did what, and what they were refused.

use axum::{Json, extract::State};
use chrono::{DateTime, Utc};
use protocol::{AuditRecord, JobId, Page, Problem};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{PublicApi, caller::Admin, cursor};
use crate::{
    http::{extract::ApiQuery, problem::ApiError},
    store::AuditFilter,
};

/// Which rows.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Params {
    /// Only this user's.
    user: Option<String>,
    /// Only this action, such as `job.cancel`.
    action: Option<String>,
    /// Only about this job.
    #[param(value_type = Option<String>)]
    job: Option<JobId>,
    /// Not before this time.
    since: Option<DateTime<Utc>>,
    /// Before this time.
    until: Option<DateTime<Utc>>,
    /// 1 to 200; 50 when left out.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<u32>,
    /// From the last page's `next_cursor`.
    cursor: Option<String>,
}

/// Lists what was done and refused, newest first.
#[utoipa::path(
    get, path = "/api/audit", tag = "operation", params(Params),
    responses(
        (status = 200, body = Page<AuditRecord>, description = "One page."),
        (status = 422, body = Problem, content_type = "application/problem+json", description = "A parameter is wrong."),
    )
)]
pub(super) async fn audit_log(
    State(api): State<PublicApi>,
    Admin(_who): Admin,
    ApiQuery(params): ApiQuery<Params>,
) -> Result<Json<Page<AuditRecord>>, ApiError> {
    let limit = cursor::limit(params.limit)?;
    let filter = AuditFilter {
        user: params.user,
        action: params.action,
        job: params.job,
        since: params.since,
        until: params.until,
        before: params.cursor.as_deref().map(cursor::read).transpose()?,
        limit: limit + 1,
    };
    let rows = api.store.audit(&filter).await?;
    Ok(Json(cursor::page(rows, limit, ToString::to_string)))
}
