//! `POST /api/notifications/{id}/read`: marks a notification as read.

use axum::{Json, extract::State};
use protocol::{Notification, NotificationId};
use store::MarkedRead;

use crate::{
    extract::ApiPath,
    problem::ApiError,
    public::{PublicApi, audit_entry::AuditedCaller},
};

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
pub(in crate::public) async fn read(
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
