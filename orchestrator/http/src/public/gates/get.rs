//! `GET /api/gates/{id}`: one gate.

use axum::{Json, extract::State};
use protocol::{Gate, GateId};

use crate::{
    extract::ApiPath,
    problem::ApiError,
    public::{PublicApi, caller::Caller},
};

/// Gets a gate.
///
/// It shows the tool, the arguments of the call, and who resolved the gate.
#[utoipa::path(
    get, path = "/api/gates/{id}", operation_id = "get_gate", tag = "gates",
    params(("id" = String, Path, description = "Gate id.")),
    responses(
        (status = 200, body = Gate, description = "The gate."),
    )
)]
pub(in crate::public) async fn get(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiPath(id): ApiPath<GateId>,
) -> Result<Json<Gate>, ApiError> {
    let gate = api.store.gate(id).await?.ok_or_else(ApiError::not_found)?;
    if who.may_see(&gate.user_id) { Ok(Json(gate)) } else { Err(ApiError::not_owner()) }
}
