//! A job's audit, page by page: what the lists of its tool calls and of its model calls share.

use axum::Json;
use protocol::{JobId, Page};
use serde::Deserialize;
use utoipa::IntoParams;

use super::{PublicApi, caller::authorize_job, cursor};
use crate::{auth::Identity, http::problem::ApiError, store::StoreError};

/// Query parameters.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Params {
    /// Maximum number of items, 1 to 200; default 50.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<u32>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// One page of what `read` gives from an offset on, at most so many.
pub(super) async fn page<T, F>(
    api: &PublicApi,
    who: &Identity,
    id: JobId,
    params: Params,
    read: impl FnOnce(u32, u32) -> F,
) -> Result<Json<Page<T>>, ApiError>
where
    F: Future<Output = Result<Vec<T>, StoreError>>,
{
    authorize_job(api, who, id).await?;
    let limit = cursor::limit(params.limit)?;
    let offset: u32 = params.cursor.as_deref().map(cursor::read).transpose()?.unwrap_or(0);
    let _permit = api.read_permit(who).await?;
    let mut items = read(offset, limit + 1).await?;
    let more = items.len() > limit as usize;
    items.truncate(limit as usize);
    let next_cursor = more.then(|| cursor::write(&offset.saturating_add(limit).to_string()));
    Ok(Json(Page { items, next_cursor }))
}
