//! `GET /api/usage`: what was used, by day, job or model.

use axum::{Json, extract::State};
use protocol::{ErrorCode, JobId, Page, Problem, UsageBy, UsageLine};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{PublicApi, caller::Caller, cursor};
use crate::{
    auth::Identity,
    http::{extract::ApiQuery, problem::ApiError},
    store::UsageFilter,
};

/// Which lines.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Params {
    /// `day` (also when left out), `job` or `model`.
    #[serde(default)]
    by: UsageBy,
    /// Only this user's; for admins.
    user: Option<String>,
    /// 1 to 200; 50 when left out.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<u32>,
    /// From the last page's `next_cursor`.
    cursor: Option<String>,
}

/// Adds up what the caller's jobs used (an admin's: everybody's).
#[utoipa::path(
    get, path = "/api/usage", tag = "operation", params(Params),
    responses(
        (status = 200, body = Page<UsageLine>, description = "One page."),
        (status = 422, body = Problem, content_type = "application/problem+json", description = "A parameter is wrong."),
    )
)]
pub(super) async fn usage(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiQuery(params): ApiQuery<Params>,
) -> Result<Json<Page<UsageLine>>, ApiError> {
    let limit = cursor::limit(params.limit)?;
    let after: Option<String> = params.cursor.as_deref().map(cursor::read).transpose()?;
    if params.by == UsageBy::Job
        && let Some(after) = &after
    {
        after.parse::<JobId>().map_err(|_| cursor::foreign())?;
    }
    let filter = UsageFilter { user: whose(&who, params.user)?, after, limit: limit + 1 };
    let lines = api.store.usage(params.by, &filter).await?;
    Ok(Json(cursor::page(lines, limit, String::clone)))
}

/// Whose usage is asked for; none is everybody's.
fn whose(who: &Identity, asked: Option<String>) -> Result<Option<String>, ApiError> {
    match asked {
        Some(user) if user != who.user && !who.role.sees_all() => {
            Err(ApiError::new(ErrorCode::Forbidden, "only an admin sees what others used; leave `user` out"))
        }
        None if !who.role.sees_all() => Ok(Some(who.user.clone())),
        asked => Ok(asked),
    }
}
