//! `GET /api/routines/{id}/deliveries`: the log of a routine's webhook.

use axum::{Json, extract::State};
use protocol::{DeliveryId, Page, RoutineId, WebhookDelivery};
use serde::Deserialize;
use utoipa::IntoParams;

use crate::{
    extract::{ApiPath, ApiQuery},
    problem::ApiError,
    public::{PublicApi, caller::Caller, cursor},
};

/// Query parameters.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::public) struct Params {
    /// Maximum number of items, 1 to 200; default 50.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<u32>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// Lists deliveries of a routine's webhook, newest first.
///
/// The newest 200 are kept, each with its outcome and the run that it fired.
#[utoipa::path(
    get, path = "/api/routines/{id}/deliveries", operation_id = "list_webhook_deliveries", tag = "routines",
    params(("id" = String, Path, description = "Routine id."), Params),
    responses((status = 200, body = Page<WebhookDelivery>, description = "A page."))
)]
pub(in crate::public) async fn list(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiPath(id): ApiPath<RoutineId>,
    ApiQuery(params): ApiQuery<Params>,
) -> Result<Json<Page<WebhookDelivery>>, ApiError> {
    let limit = cursor::limit(params.limit)?;
    let before = params.cursor.as_deref().map(cursor::read::<DeliveryId>).transpose()?;
    let owner = api.store.routine_owner(id).await?.ok_or_else(ApiError::not_found)?;
    if !who.may_see(&owner) {
        return Err(ApiError::not_owner());
    }
    let _permit = api.read_permit(&who).await?;
    // One more, to know whether there is a next page.
    let deliveries = api.store.webhook_deliveries(id, before, limit + 1).await?;
    Ok(Json(cursor::page(deliveries, limit, ToString::to_string)))
}
