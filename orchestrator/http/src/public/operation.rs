//! What operators read: usage, the audit log, and metrics unless they are served on a separate address.

use axum::{Json, extract::State, response::Response};
use chrono::{DateTime, Utc};
use protocol::{AuditRecord, ErrorCode, JobId, Page, UsageBy, UsageLine, UserStorage};
use serde::Deserialize;
use store::{AuditFilter, DayPage, UsageFilter, first_day_of_model_sums};
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    PublicApi,
    request::{Admin, ApiQuery, Caller, cursor, filter},
};
use crate::{metrics::MetricsEndpoint, problem::ApiError};

pub(super) fn routes() -> OpenApiRouter<PublicApi> {
    OpenApiRouter::new().routes(routes!(usage)).routes(routes!(storage)).routes(routes!(audit)).routes(routes!(metrics))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct UsageParams {
    /// Group by `day` (default), `job` or `model`.
    #[serde(default)]
    #[param(inline)]
    by: UsageBy,
    /// Only usage of this user; admins only.
    user: Option<String>,
    /// Maximum number of items, 1 to 200; default 50. By day: the number of days a page covers, at most 92.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<u32>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// Sums up usage by day, job or model.
///
/// Of the caller's jobs; for admins, of all jobs. Sums by model cover the last 92 days.
#[utoipa::path(
    get, path = "/api/usage", operation_id = "get_usage", tag = "operation", params(UsageParams),
    responses(
        (status = 200, body = Page<UsageLine>, description = "A page."),
    )
)]
async fn usage(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiQuery(params): ApiQuery<UsageParams>,
) -> Result<Json<Page<UsageLine>>, ApiError> {
    let limit = cursor::limit(params.limit)?;
    let after: Option<String> = params.cursor.as_deref().map(cursor::read).transpose()?;
    let user = filter::user(&who, params.user, "see the usage of other users")?;
    // Sums over all users read as many rows as a search, on the same connections.
    let is_search = user.is_none() && params.by != UsageBy::Job;
    let _permit = api.list_permit(&who, is_search).await?;
    if params.by == UsageBy::Day {
        return by_day(&api, user.as_deref(), after.as_deref(), limit).await;
    }
    if params.by == UsageBy::Job
        && let Some(after) = &after
    {
        after.parse::<JobId>().map_err(|_| cursor::invalid())?;
    }
    // One more, to know whether there is a next page.
    let filter = UsageFilter { user, after, limit: limit + 1 };
    let lines = match params.by {
        UsageBy::Model => {
            let since = first_day_of_model_sums(api.clock.now().date_naive());
            api.store.usage_by_model(&filter, since).await?
        }
        UsageBy::Day | UsageBy::Job => api.store.usage_by_job(&filter).await?,
    };
    Ok(Json(cursor::page(lines, limit, String::clone)))
}

/// A page covers `days` days, with or without usage on each.
async fn by_day(
    api: &PublicApi,
    user: Option<&str>,
    after: Option<&str>,
    days: u32,
) -> Result<Json<Page<UsageLine>>, ApiError> {
    let before = match after {
        Some(day) => day.parse().map_err(|_| cursor::invalid())?,
        // The page starts with today.
        None => api.clock.now().date_naive().succ_opt().ok_or_else(|| ApiError::internal("date out of range"))?,
    };
    let DayPage { lines, next } = api.store.usage_by_day(user, before, days).await?;
    Ok(Json(Page { items: lines, next_cursor: next.map(|day| cursor::write(&day.to_string())) }))
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
