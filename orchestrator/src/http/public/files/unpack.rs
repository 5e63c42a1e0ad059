//! `PUT /api/jobs/{id}/archive`: a tar into the workspace.

use axum::{Json, body::Body, extract::State, http::HeaderMap};
use protocol::{ErrorCode, JobId, Problem, Unpacked};
use tokio_util::sync::CancellationToken;

use super::{
    receive::{empty, gzip, receive},
    workspace::{told, writable},
};
use crate::{
    http::{
        extract::ApiPath,
        problem::ApiError,
        public::{
            PublicApi,
            deeds::{Doer, to_the_end},
        },
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
        (status = 408, body = Problem, content_type = "application/problem+json", description = "The body took too long: less than 16 KiB/s over 30 s."),
        (status = 409, body = Problem, content_type = "application/problem+json", description = "The job has finished, or the workspace has a file where the archive has a directory or the other way round, or another upload to the job is under way."),
        (status = 413, body = Problem, content_type = "application/problem+json", description = "Over what is left of limits.disk_mb, or too many entries."),
        (status = 415, body = Problem, content_type = "application/problem+json", description = "Not a tar by its Content-Type or Content-Encoding."),
        (status = 422, body = Problem, content_type = "application/problem+json", description = "Not a tar, or with an entry that must not be, which is named."),
        (status = 429, body = Problem, content_type = "application/problem+json", description = "Uploads under way take all of the staging space."),
        (status = 507, body = Problem, content_type = "application/problem+json", description = "The server's disk is full, or nearly so."),
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
    let cancelled = CancellationToken::new();
    let _client_gone = cancelled.clone().drop_guard();
    let upload = api.uploads.begin(&who.user, id, job.limits, cancelled).map_err(told)?;
    let workspaces = api.workspaces.clone();
    let begin = move || {
        workspaces.room(&upload, None)?;
        let staged = workspaces.stage()?;
        let content = staged.content()?;
        Ok((upload, staged, content))
    };
    let (mut upload, staged, content) = api.file_work.run(&who.user, begin).await?;
    let most = Room::of(&job.limits).bytes.saturating_add(MAX_AROUND_BYTES);
    let content = receive(body, content, most, &mut upload).await?;
    let workspaces = api.workspaces.clone();
    let unpack = move || {
        if content.metadata()?.len() == 0 {
            return Err(empty());
        }
        let unpacked = workspaces.unpack(&mut upload, content, gzip, &staged)?;
        Ok((upload, staged, unpacked))
    };
    let (upload, staged, unpacked) = api.file_work.run(&who.user, unpack).await?;
    // It may have finished meanwhile.
    writable(&api, &who, id).await?;
    let server = api.clone();
    let place_and_record = async move {
        let workspaces = server.workspaces.clone();
        server.file_work.run(&who.user, move || workspaces.place(&upload, &staged)).await?;
        server.store.done(&deed).await?;
        tracing::info!(job.id = %id, user = who.user, entries = unpacked.entries, "archive unpacked");
        Ok(unpacked)
    };
    to_the_end(&api, place_and_record).await.map(Json)
}
