//! `GET /api/jobs/{id}/archive`: all of the workspace as a tar.

use axum::{
    body::Body,
    extract::State,
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use futures_util::stream;
use protocol::{JobId, Problem};

use super::{
    read::disposition,
    workspace::{on_disk, readable},
};
use crate::{
    http::{
        extract::ApiPath,
        problem::ApiError,
        public::{PublicApi, caller::Caller},
    },
    workspace::Pack,
};

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
    let workspaces = api.workspaces.clone();
    let pack = on_disk(move || workspaces.pack(id, &job.limits)).await?;
    // Each piece when the last one has been taken: a slow reader holds no thread.
    let pieces = stream::try_unfold(pack, async |pack: Pack| {
        let made = tokio::task::spawn_blocking(move || {
            let mut pack = pack;
            pack.piece().map(|piece| piece.map(|piece| (piece, pack)))
        });
        let made = made.await.map_err(std::io::Error::other)?;
        made.inspect_err(|error| tracing::warn!(error = error as &dyn std::error::Error, "an archive was cut short"))
            .map_err(std::io::Error::other)
    });
    let mut response = Body::from_stream(pieces).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-tar"));
    headers.insert(header::CONTENT_DISPOSITION, disposition(&format!("{id}.tar")));
    Ok(response)
}
