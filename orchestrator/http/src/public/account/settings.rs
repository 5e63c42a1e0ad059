//! `/api/settings`: the caller's settings.

use axum::{
    Json,
    extract::State,
    http::header,
    response::{IntoResponse, Response},
};
use protocol::{ErrorCode, UserSettings};
use store::SettingsWriteOutcome;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    problem::ApiError,
    public::{
        PublicApi,
        request::{ApiJson, AuditedCaller, Caller, IfMatch, audited, etag},
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
        (status = 200, body = UserSettings, description = "The settings; a user who has set none has the defaults.",
            headers(("ETag" = String, description = "The version in quotes, for If-Match."))),
    )
)]
async fn get(State(api): State<PublicApi>, Caller(who): Caller) -> Result<Response, ApiError> {
    let (settings, version) = api.store.settings_with_version(&who.user).await?;
    Ok(([(header::ETAG, etag(version)?)], Json::<UserSettings>(settings)).into_response())
}

/// Replaces the caller's settings.
///
/// A field that is left out takes its default. With `If-Match` only if the settings have the named version.
#[utoipa::path(
    put, path = "/api/settings", operation_id = "put_settings", tag = "settings",
    request_body(content = UserSettings, example = json!({"timezone": "Europe/Oslo", "quiet_hours": {"from": "22:00", "to": "07:00"}})),
    params(("If-Match" = Option<String>, Header, description = "The version to replace, from ETag; * for any.")),
    responses(
        (status = 200, body = UserSettings, description = "The settings as they are stored.",
            headers(("ETag" = String, description = "The new version in quotes."))),
        (status = 412, description = "The settings have another version than If-Match says."),
    )
)]
async fn put(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    IfMatch(expected): IfMatch,
    body: ApiJson<UserSettings>,
) -> Result<Response, ApiError> {
    let settings = body.value;
    let errors = api.settings_bounds.check(&settings);
    if !errors.is_empty() {
        return Err(ApiError::invalid(errors));
    }
    match api.store.put_settings(&who.user, &settings, expected, &entry).await? {
        SettingsWriteOutcome::Stored { version } => {
            Ok(([(header::ETAG, etag(version)?)], Json(settings)).into_response())
        }
        SettingsWriteOutcome::VersionMismatch { current } => {
            let detail = format!("the settings have version {current} now; read them again and repeat the change");
            Err(ApiError::new(ErrorCode::PreconditionFailed, detail))
        }
    }
}
