//! `/api/settings`: the caller's settings.

use axum::{Json, extract::State};
use protocol::UserSettings;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    problem::ApiError,
    public::{
        PublicApi,
        request::{ApiJson, AuditedCaller, Caller, audited},
    },
};

pub(in crate::public) fn routes() -> OpenApiRouter<PublicApi> {
    OpenApiRouter::new().routes(routes!(get)).merge(audited("settings.put", routes!(put)))
}

/// Returns the caller's settings.
///
/// A user who has set none has the defaults.
#[utoipa::path(
    get, path = "/api/settings", operation_id = "get_settings", tag = "settings",
    responses(
        (status = 200, body = UserSettings, description = "The settings; a user who has set none has the defaults."),
    )
)]
async fn get(State(api): State<PublicApi>, Caller(who): Caller) -> Result<Json<UserSettings>, ApiError> {
    Ok(Json(api.store.settings(&who.user).await?))
}

/// Replaces the caller's settings.
///
/// A field that is left out takes its default.
#[utoipa::path(
    put, path = "/api/settings", operation_id = "put_settings", tag = "settings",
    request_body(content = UserSettings, example = json!({"timezone": "Europe/Oslo", "quiet_hours": {"from": "22:00", "to": "07:00"}})),
    responses(
        (status = 200, body = UserSettings, description = "The settings as they are stored."),
    )
)]
async fn put(
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
