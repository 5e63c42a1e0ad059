//! `POST /api/routines`: creates a routine.

use axum::{
    Json,
    extract::State,
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use protocol::{CreateRoutine, RoutinePreview, RoutineSaved};
use serde::Deserialize;
use utoipa::IntoParams;

use super::problem::{caller, etag};
use crate::{
    extract::{ApiJson, ApiQuery},
    problem::ApiError,
    public::{PublicApi, audit_entry::AuditedCaller},
};

/// Query parameters.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(in crate::public) struct Params {
    /// `true`: the definition is checked and nothing is stored.
    #[serde(default)]
    dry_run: bool,
}

/// Creates a routine.
///
/// The answer has warnings about what will not work in an unattended run. A secret of a webhook that was generated is shown in this
/// answer only.
#[utoipa::path(
    post, path = "/api/routines", operation_id = "create_routine", tag = "routines", params(Params),
    request_body = CreateRoutine,
    responses(
        (status = 201, body = RoutineSaved, description = "The routine.",
            headers(("ETag" = String, description = "The revision in quotes, for If-Match."))),
        (status = 200, body = RoutinePreview, description = "With `dry_run`: the warnings and the next three times."),
        (status = 409, description = "The name or the webhook's path is taken, or the user has 10,000 routines."),
        (status = 422, description = "Invalid fields."),
    )
)]
pub(in crate::public) async fn create(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    ApiQuery(params): ApiQuery<Params>,
    body: ApiJson<CreateRoutine>,
) -> Result<Response, ApiError> {
    let caller = caller(&who, entry);
    if params.dry_run {
        let preview: RoutinePreview = api.routines.preview(&caller, body.value).await?;
        return Ok(Json(preview).into_response());
    }
    let saved: RoutineSaved = api.routines.create(&caller, body.value).await?;
    Ok((StatusCode::CREATED, [(header::ETAG, etag(saved.routine.rev)?)], Json(saved)).into_response())
}
