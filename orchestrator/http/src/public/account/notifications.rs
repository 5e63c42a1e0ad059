//! `/api/notifications`: the caller's notifications.

use axum::{Json, extract::State};
use protocol::{Notification, NotificationId, NotificationPage, NotificationsRead, Page, ReadNotifications};
use serde::Deserialize;
use store::{MarkedRead, NotificationFilter};
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    problem::ApiError,
    public::{
        PublicApi,
        request::{ApiJson, ApiPath, ApiQuery, AuditedCaller, Caller, audited, cursor, filter},
    },
};

pub(in crate::public) fn routes() -> OpenApiRouter<PublicApi> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .merge(audited("notification.read", routes!(read)))
        .merge(audited("notification.read", routes!(read_all)))
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
        (status = 200, body = NotificationPage, description = "A page, and how many are unread."),
    )
)]
async fn list(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiQuery(params): ApiQuery<ListParams>,
) -> Result<Json<NotificationPage>, ApiError> {
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
    let Page { items, next_cursor } = cursor::page(notifications, limit, ToString::to_string);
    let unread_count = api.store.unread_notifications(&who.user).await?;
    Ok(Json(NotificationPage { items, next_cursor, unread_count }))
}

/// Marks the caller's notifications as read.
///
/// Up to the newest one that the caller has seen, so that one that comes meanwhile stays unread.
#[utoipa::path(
    post, path = "/api/notifications/read", operation_id = "read_notifications", tag = "notifications",
    request_body(content = ReadNotifications, example = json!({"up_to": "01a2181d-0c2b-7f00-8000-0123456789ab"})),
    responses((status = 200, body = NotificationsRead, description = "How many were marked."))
)]
async fn read_all(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    ApiJson { value: ReadNotifications { up_to }, .. }: ApiJson<ReadNotifications>,
) -> Result<Json<NotificationsRead>, ApiError> {
    let count = api.store.mark_notifications_read(&who.user, up_to, &entry).await?;
    Ok(Json(NotificationsRead { count }))
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
        MarkedRead::Done(notification) => Ok(Json(*notification)),
        MarkedRead::NotFound => Err(ApiError::not_found()),
        MarkedRead::NotOwner => Err(ApiError::not_owner()),
    }
}
