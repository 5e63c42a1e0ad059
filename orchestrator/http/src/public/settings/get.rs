//! `GET /api/settings`: the caller's settings.

use axum::{Json, extract::State};
use protocol::UserSettings;

use crate::{
    problem::ApiError,
    public::{PublicApi, caller::Caller},
};

/// Returns the caller's settings.
///
/// A user who has set none has the defaults.
#[utoipa::path(
    get, path = "/api/settings", operation_id = "get_settings", tag = "settings",
    responses(
        (status = 200, body = UserSettings, description = "The settings; a user who has set none has the defaults."),
    )
)]
pub(in crate::public) async fn get(
    State(api): State<PublicApi>,
    Caller(who): Caller,
) -> Result<Json<UserSettings>, ApiError> {
    Ok(Json(api.store.settings(&who.user).await?))
}
