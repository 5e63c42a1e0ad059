//! `GET /api/audit`: the audit log.

use axum::{Json, extract::State};
use chrono::{DateTime, Utc};
use protocol::{AuditRecord, JobId, Page};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{PublicApi, caller::Admin, cursor};
use store::AuditFilter;

use crate::{extract::ApiQuery, problem::ApiError};

/// Query parameters.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Params {
    /// Only entries of this user.
    user: Option<String>,
    /// Only entries with this action, for example `job.cancel`.
    action: Option<String>,
    /// Only entries about this job.
    #[param(value_type = Option<String>)]
    job: Option<JobId>,
    /// Only entries at or after this time.
    since: Option<DateTime<Utc>>,
    /// Only entries before this time.
    until: Option<DateTime<Utc>>,
    /// Maximum number of items, 1 to 200; default 50.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<u32>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// Lists audit entries, newest first.
///
/// Changes, denied requests and uses of expired or revoked tokens. Admins only.
#[utoipa::path(
    get, path = "/api/audit", operation_id = "list_audit_entries", tag = "operation", params(Params),
    responses(
        (status = 200, body = Page<AuditRecord>, description = "A page."),
    )
)]
pub(super) async fn audit(
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
