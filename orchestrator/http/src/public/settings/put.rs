//! `PUT /api/settings`: replaces the caller's settings.

use axum::{Json, extract::State};
use protocol::UserSettings;

use crate::{
    extract::ApiJson,
    problem::ApiError,
    public::{PublicApi, audit_entry::AuditedCaller},
};

/// Replaces the caller's settings.
///
/// A field that is left out takes its default.
#[utoipa::path(
    put, path = "/api/settings", operation_id = "put_settings", tag = "settings", request_body = UserSettings,
    responses(
        (status = 200, body = UserSettings, description = "The settings as they are stored."),
    )
)]
pub(in crate::public) async fn put(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    body: ApiJson<UserSettings>,
) -> Result<Json<UserSettings>, ApiError> {
    let settings = body.value;
    let errors = api.settings_bounds.check(&settings);
    if !errors.is_empty() {
        return Err(ApiError::invalid(errors));
    }
    api.store.put_settings(&who.user, &settings, &entry).await?;
    Ok(Json(settings))
}
