//! `PATCH /api/routines/{id}`: changes a routine.

use axum::{
    Json,
    extract::{FromRequestParts, State},
    http::{header, request::Parts},
    response::{IntoResponse, Response},
};
use protocol::{ErrorCode, RoutineId, RoutinePatch, RoutineSaved};

use super::problem::{caller, etag};
use crate::{
    extract::{ApiJson, ApiPath},
    problem::ApiError,
    public::{PublicApi, audit_entry::AuditedCaller},
};

/// The revision that the caller has seen; none if the header is absent or `*`.
pub(in crate::public) struct IfMatch(Option<u64>);

impl<S: Send + Sync> FromRequestParts<S> for IfMatch {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, ApiError> {
        let Some(value) = parts.headers.get(header::IF_MATCH) else { return Ok(Self(None)) };
        let malformed = || ApiError::new(ErrorCode::BadRequest, "If-Match must be the ETag of the routine, or *");
        match value.to_str().map_err(|_| malformed())?.trim() {
            "*" => Ok(Self(None)),
            tag => {
                let digits = tag.strip_prefix('"').and_then(|tag| tag.strip_suffix('"')).ok_or_else(malformed)?;
                Ok(Self(Some(digits.parse().map_err(|_| malformed())?)))
            }
        }
    }
}

/// Changes a routine.
///
/// The body is a merge patch: a field with `null` is set to its default, and `trigger` and `action` are replaced as a whole. A
/// webhook's trigger without `secret` keeps its secret. Another trigger or action makes the routine unverified; times that have
/// passed are not run again.
#[utoipa::path(
    patch, path = "/api/routines/{id}", operation_id = "update_routine", tag = "routines",
    params(
        ("id" = String, Path, description = "Routine id."),
        ("If-Match" = Option<String>, Header, description = "The revision to change, from ETag; * for any."),
    ),
    request_body = Object,
    responses(
        (status = 200, body = RoutineSaved, description = "The routine.",
            headers(("ETag" = String, description = "The new revision in quotes."))),
        (status = 404, description = "No such routine."),
        (status = 409, description = "The name or the webhook's path is taken."),
        (status = 412, description = "The routine has another revision than If-Match says."),
        (status = 422, description = "Invalid fields."),
    )
)]
pub(in crate::public) async fn patch(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    ApiPath(id): ApiPath<RoutineId>,
    IfMatch(expected): IfMatch,
    body: ApiJson<RoutinePatch>,
) -> Result<Response, ApiError> {
    let saved: RoutineSaved = api.routines.patch(&caller(&who, entry), id, body.value, expected).await?;
    Ok(([(header::ETAG, etag(saved.routine.rev)?)], Json(saved)).into_response())
}
