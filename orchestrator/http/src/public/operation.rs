//! What operators read: stored bytes, the audit log, and metrics unless they are served on a separate address.

use axum::{Json, extract::State, response::Response};
use chrono::{DateTime, Utc};
use protocol::{AuditRecord, ErrorCode, JobId, Page, UserStorage};
use serde::Deserialize;
use store::AuditFilter;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    PublicApi,
    request::{Admin, ApiQuery, Caller, cursor, filter},
};
use crate::{metrics::MetricsEndpoint, problem::ApiError};

pub(super) fn routes() -> OpenApiRouter<PublicApi> {
    OpenApiRouter::new().routes(routes!(storage)).routes(routes!(audit)).routes(routes!(metrics))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct StorageParams {
    /// What this user stores; admins only. Default: the caller.
    user: Option<String>,
}

/// Shows how much a user stores.
///
/// When the limit is reached, requests that would add to it are answered with 507 `user_storage_full`; jobs, runs and turns that
/// are in progress store their end nevertheless.
#[utoipa::path(
    get, path = "/api/storage", operation_id = "get_storage", tag = "operation", params(StorageParams),
    responses(
        (status = 200, body = UserStorage, description = "The bytes by kind, and the limit."),
    )
)]
async fn storage(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiQuery(params): ApiQuery<StorageParams>,
) -> Result<Json<UserStorage>, ApiError> {
    let user = filter::user(&who, params.user, "see what other users store")?;
    Ok(Json(api.store.user_storage(&user.unwrap_or(who.user)).await?))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct AuditParams {
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
    get, path = "/api/audit", operation_id = "list_audit_entries", tag = "operation", params(AuditParams),
    responses(
        (status = 200, body = Page<AuditRecord>, description = "A page."),
    )
)]
async fn audit(
    State(api): State<PublicApi>,
    Admin(_who): Admin,
    ApiQuery(params): ApiQuery<AuditParams>,
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

/// Shows the metrics.
///
/// In the text format of Prometheus. Admins only.
#[utoipa::path(
    get, path = "/metrics", operation_id = "get_metrics", tag = "operation",
    responses(
        (status = 200, body = String, content_type = "text/plain", description = "Metrics in the Prometheus text format."),
        (status = 404, description = "The metrics are served on a separate address."),
    )
)]
async fn metrics(State(api): State<PublicApi>, Admin(_who): Admin) -> Result<Response, ApiError> {
    match &api.metrics_endpoint {
        MetricsEndpoint::Public(scrape) => scrape.read().await,
        MetricsEndpoint::Dedicated => {
            let detail = "metrics are served only on the address set by GANTRY_METRICS_BIND";
            Err(ApiError::new(ErrorCode::NotFound, detail))
        }
    }
}
