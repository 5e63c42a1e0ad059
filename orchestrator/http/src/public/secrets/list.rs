//! `GET /api/secrets`: the names of the caller's secrets.

use axum::{Json, extract::State};
use protocol::{Page, SecretSummary};

use crate::{
    extract::ApiQuery,
    problem::ApiError,
    public::{
        PublicApi,
        caller::Caller,
        cursor::{self, PageParams},
    },
};

/// Lists the caller's secrets by name.
///
/// Values are never returned.
#[utoipa::path(
    get, path = "/api/secrets", operation_id = "list_secrets", tag = "secrets", params(PageParams),
    responses(
        (status = 200, body = Page<SecretSummary>, description = "A page."),
    )
)]
pub(in crate::public) async fn list(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiQuery(params): ApiQuery<PageParams>,
) -> Result<Json<Page<SecretSummary>>, ApiError> {
    let (limit, after) = (params.limit()?, params.after::<String>()?);
    // One more, to know whether there is a next page.
    let secrets = api.store.secrets(&who.user, after.as_deref(), limit + 1).await?;
    Ok(Json(cursor::page(secrets, limit, String::clone)))
}
