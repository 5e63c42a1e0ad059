//! `/api/notifications`: the caller's notifications.

use axum::{Json, extract::State};
use protocol::{Notification, NotificationId, Page};
use serde::Deserialize;
use store::{MarkedRead, NotificationFilter};
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    problem::ApiError,
    public::{
        PublicApi,
        request::{ApiPath, ApiQuery, AuditedCaller, Caller, audited, cursor, filter},
    },
};

pub(in crate::public) fn routes() -> OpenApiRouter<PublicApi> {
    OpenApiRouter::new().routes(routes!(list)).merge(audited("notification.read", routes!(read)))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParams {
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
    get, path = "/api/notifications", operation_id = "list_notifications", tag = "notifications", params(ListParams),
    responses(
        (status = 200, body = Page<Notification>, description = "A page."),
    )
)]
async fn list(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiQuery(params): ApiQuery<ListParams>,
) -> Result<Json<Page<Notification>>, ApiError> {
    let limit = cursor::limit(params.limit)?;
    let filter = NotificationFilter {
        user: who.user.clone(),
        unread: params.unread,
        id_part: params.id.as_deref().map(filter::id_part).transpose()?,
        before: params.cursor.as_deref().map(cursor::read::<NotificationId>).transpose()?,
        // One more, to know whether there is a next page.
        limit: limit + 1,
    };
    let _permit = api.read_permit(&who).await?;
    let notifications = api.store.notifications(&filter).await?;
    Ok(Json(cursor::page(notifications, limit, ToString::to_string)))
}

/// Marks a notification of the caller as read.
///
/// It stays in the list; `unread=true` leaves it out.
#[utoipa::path(
    post, path = "/api/notifications/{id}/read", operation_id = "read_notification", tag = "notifications",
    params(("id" = String, Path, description = "Notification id.")),
    responses(
        (status = 200, body = Notification, description = "The notification; `read_at` is when it was first marked."),
    )
)]
async fn read(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    ApiPath(id): ApiPath<NotificationId>,
) -> Result<Json<Notification>, ApiError> {
    match api.store.mark_notification_read(&who.user, id, &entry).await? {
        MarkedRead::Done(notification) => Ok(Json(notification)),
        MarkedRead::NotFound => Err(ApiError::not_found()),
        MarkedRead::NotOwner => Err(ApiError::not_owner()),
    }
}
