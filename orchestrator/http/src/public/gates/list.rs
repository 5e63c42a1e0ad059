//! `GET /api/gates`: the gates that the caller may see.

use axum::{Json, extract::State};
use protocol::{Gate, GateId, GateState, Page};
use serde::Deserialize;
use store::GateFilter;
use utoipa::IntoParams;

use crate::{
    extract::ApiQuery,
    problem::ApiError,
    public::{PublicApi, caller::Caller, cursor, id_part::id_part, name_list},
};

/// Query parameters.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::public) struct Params {
    /// A state, or several separated by commas; default `pending`.
    state: Option<String>,
    /// Prefix or suffix of an id, at least 4 characters.
    id: Option<String>,
    /// Maximum number of items, 1 to 200; default 50.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<u32>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// Lists gates, newest first.
///
/// A gate is a tool call of a chat thread that waits for a person. Admins see the gates of all users.
#[utoipa::path(
    get, path = "/api/gates", operation_id = "list_gates", tag = "gates", params(Params),
    responses(
        (status = 200, body = Page<Gate>, description = "A page."),
    )
)]
pub(in crate::public) async fn list(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiQuery(params): ApiQuery<Params>,
) -> Result<Json<Page<Gate>>, ApiError> {
    let limit = cursor::limit(params.limit)?;
    let states = params.state.as_deref().filter(|asked| !asked.is_empty()).unwrap_or(GateState::Pending.as_str());
    let filter = GateFilter {
        user: (!who.role.sees_all()).then(|| who.user.clone()),
        states: name_list::parse("state", Some(states), GateState::ALL, GateState::as_str)?,
        id_part: params.id.as_deref().map(id_part).transpose()?,
        before: params.cursor.as_deref().map(cursor::read::<GateId>).transpose()?,
        // One more, to know whether there is a next page.
        limit: limit + 1,
    };
    let _permit = api.read_permit(&who).await?;
    let gates = api.store.gates(&filter).await?;
    Ok(Json(cursor::page(gates, limit, ToString::to_string)))
}
