//! `PUT /api/jobs/{id}/archive`: a tar into the workspace.

use axum::{Json, body::Body, extract::State, http::HeaderMap};
use protocol::{ErrorCode, JobId, Problem, Unpacked};

use super::{
    receive::{empty, gzip, receive},
    workspace::{on_disk, writable},
};
use crate::{
    http::{
        extract::ApiPath,
        problem::ApiError,
        public::{PublicApi, deeds::Doer},
    },
    workspace::Room,
};

/// Headers, padding and long names, in an archive that is sent: beside its content.
const MAX_AROUND_BYTES: u64 = 128 * 1024 * 1024;

/// Unpacks a tar (by gzip when the headers say so) into the workspace of a job that has not finished. One entry that must
/// not be (absolute, `..`, a link that leads out, a device, a hole) refuses it whole; permissions are kept but for
/// setuid, owners are not.
#[utoipa::path(
    put, path = "/api/jobs/{id}/archive", tag = "files", params(("id" = String, Path, description = "The job.")),
    request_body(content = String, content_type = "application/x-tar"),
    responses(
        (status = 200, body = Unpacked, description = "All of it is in the workspace."),
        (status = 400, body = Problem, content_type = "application/problem+json", description = "The body did not arrive whole."),
        (status = 404, body = Problem, content_type = "application/problem+json", description = "Missing, or another user's."),
        (status = 408, body = Problem, content_type = "application/problem+json", description = "The body took too long."),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "The job has finished, or the workspace has a file where the archive has a directory or the other way round."),
        (status = 413, body = Problem, content_type = "application/problem+json", description = "Over what is left of limits.disk_mb, or too many entries."),
        (status = 415, body = Problem, content_type = "application/problem+json", description = "Not a tar by its Content-Type or Content-Encoding."),
        (status = 422, body = Problem, content_type = "application/problem+json", description = "Not a tar, or with an entry that must not be, which is named."),
    )
)]
pub(in crate::http::public) async fn unpack(
    State(api): State<PublicApi>,
    Doer { who, deed }: Doer,
    ApiPath(id): ApiPath<JobId>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Unpacked>, ApiError> {
    let job = writable(&api, &who, id).await?;
    let gzip = gzip(&headers).ok_or_else(|| {
        ApiError::new(
            ErrorCode::UnsupportedMediaType,
            "send a tar as application/x-tar, or as application/gzip when it is compressed",
        )
    })?;
    let (workspaces, limits) = (api.workspaces.clone(), job.limits);
    let (staged, content) = on_disk(move || {
        workspaces.room(id, &limits, None)?;
        let staged = workspaces.stage()?;
        let content = staged.content()?;
        Ok((staged, content))
    })
    .await?;
    let most = Room::of(&limits).bytes.saturating_add(MAX_AROUND_BYTES);
    let content = receive(body, content, most).await?;
    let workspaces = api.workspaces.clone();
    let (staged, unpacked) = on_disk(move || {
        if content.metadata()?.len() == 0 {
            return Err(empty());
        }
        let unpacked = workspaces.unpack(content, gzip, &staged, &limits)?;
        Ok((staged, unpacked))
    })
    .await?;
    // It may have finished meanwhile.
    writable(&api, &who, id).await?;
    let workspaces = api.workspaces.clone();
    on_disk(move || workspaces.place(id, &staged, &limits)).await?;
    api.store.done(&deed).await?;
    tracing::info!(job.id = %id, user = who.user, entries = unpacked.entries, "archive unpacked");
    Ok(Json(unpacked))
}
