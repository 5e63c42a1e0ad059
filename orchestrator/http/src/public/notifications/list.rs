//! `GET /api/notifications`: the caller's notifications.

use axum::{Json, extract::State};
use protocol::{Notification, NotificationId, Page};
use serde::Deserialize;
use store::NotificationFilter;
use utoipa::IntoParams;

use crate::{
    extract::ApiQuery,
    problem::ApiError,
    public::{PublicApi, caller::Caller, cursor, id_part::id_part},
};

/// Query parameters.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::public) struct Params {
    /// `true`: only notifications that are not marked as read.
    #[serde(default)]
    unread: bool,
    /// Prefix or suffix of an id, at least 4 characters.
    id: Option<String>,
    /// Maximum number of items, 1 to 200; default 50.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<u32>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// Lists the caller's notifications, newest first.
///
/// Notifications are kept for 90 days.
#[utoipa::path(
    get, path = "/api/notifications", operation_id = "list_notifications", tag = "notifications", params(Params),
    responses(
        (status = 200, body = Page<Notification>, description = "A page."),
    )
)]
pub(in crate::public) async fn list(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiQuery(params): ApiQuery<Params>,
) -> Result<Json<Page<Notification>>, ApiError> {
    let limit = cursor::limit(params.limit)?;
    let filter = NotificationFilter {
        user: who.user.clone(),
        unread: params.unread,
        id_part: params.id.as_deref().map(id_part).transpose()?,
        before: params.cursor.as_deref().map(cursor::read::<NotificationId>).transpose()?,
        // One more, to know whether there is a next page.
        limit: limit + 1,
    };
    let _permit = api.read_permit(&who).await?;
    let notifications = api.store.notifications(&filter).await?;
    Ok(Json(cursor::page(notifications, limit, ToString::to_string)))
}
