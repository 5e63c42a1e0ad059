//! `GET /api/jobs/{id}/archive`: all of the workspace as a tar.

use std::time::Duration;

use axum::{
    body::Body,
    extract::State,
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use futures_util::stream;
use protocol::{JobId, Problem};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{read::disposition, workspace::readable};
use crate::{
    http::{
        extract::ApiPath,
        per_user_semaphore::Permit,
        problem::ApiError,
        public::{PublicApi, caller::Caller},
    },
    workspace::{Cutoff, FileError, Pack},
};

/// For one piece of 64 KiB; what a workspace holds beside files may be a long way to the next one.
const PIECE_LIMIT: Duration = Duration::from_secs(20);

/// Packs the job's workspace: files, directories and links as such, nothing else.
#[utoipa::path(
    get, path = "/api/jobs/{id}/archive", tag = "files", params(("id" = String, Path, description = "The job.")),
    responses(
        (status = 200, body = String, content_type = "application/x-tar", description = "The tar, made while it is sent; cut short when the workspace cannot be read to its end."),
        (status = 404, body = Problem, content_type = "application/problem+json", description = "Missing, or another user's."),
        (status = 410, body = Problem, content_type = "application/problem+json", description = "The files are no longer kept."),
        (status = 413, body = Problem, content_type = "application/problem+json", description = "The files claim far more than the workspace may hold."),
    )
)]
pub(in crate::http::public) async fn pack(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiPath(id): ApiPath<JobId>,
) -> Result<Response, ApiError> {
    let job = readable(&api, &who, id).await?;
    let permit = api.file_work.archive(&who.user).await?;
    let cancelled = CancellationToken::new();
    let client_gone = cancelled.clone().drop_guard();
    let (workspaces, looks) = (api.workspaces.clone(), cancelled.clone());
    let pack = api.file_work.run(&who.user, move || workspaces.pack(id, &job.limits, &looks)).await?;
    let sending = Sending { api: api.clone(), user: who.user, cancelled, _client_gone: client_gone, _permit: permit };
    // Each piece when the last one has been taken: a slow reader holds no thread.
    let pieces = stream::try_unfold((sending, pack), async |(sending, pack)| {
        let piece = sending.next(pack).await;
        piece.map(|piece| piece.map(|(piece, pack)| (piece, (sending, pack)))).map_err(std::io::Error::other)
    });
    let mut response = Body::from_stream(pieces).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-tar"));
    headers.insert(header::CONTENT_DISPOSITION, disposition(&format!("{id}.tar")));
    Ok(response)
}

/// An archive on its way to a client; dropped with the answer's body, which gives up the piece that is being made.
struct Sending {
    api: PublicApi,
    user: String,
    cancelled: CancellationToken,
    _client_gone: DropGuard,
    _permit: Permit,
}

impl Sending {
    async fn next(&self, mut pack: Pack) -> Result<Option<(Vec<u8>, Pack)>, FileError> {
        let cutoff = Cutoff::after(PIECE_LIMIT, &self.cancelled);
        let work = move || pack.piece(cutoff).map(|piece| piece.map(|piece| (piece, pack)));
        let made = self.api.file_work.run_any(&self.user, work).await;
        let made = made.unwrap_or_else(|_| Err(FileError::Io(std::io::Error::other("the work on it did not end"))));
        made.inspect_err(|error| tracing::warn!(error = error as &dyn std::error::Error, "an archive was cut short"))
    }
}
