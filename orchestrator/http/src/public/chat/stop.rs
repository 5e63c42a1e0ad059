//! `POST /api/chat/threads/{id}/stop`: stops the turn of a thread.

use axum::{Json, extract::State, http::StatusCode};
use protocol::{ChatThread, ErrorCode};

use super::thread::authorize;
use crate::{
    completion::run_to_completion,
    extract::ApiPath,
    problem::ApiError,
    public::{PublicApi, audit_entry::AuditedCaller},
};

/// Stops the turn in progress, or the one that waits for approval.
///
/// Queued messages stay queued; the next one begins a turn.
#[utoipa::path(
    post, path = "/api/chat/threads/{id}/stop", operation_id = "stop_thread", tag = "chat",
    params(("id" = String, Path, description = "Thread id, or its key such as `main`.")),
    responses(
        (status = 202, body = ChatThread, description = "The turn stops; the thread then is idle."),
        (status = 409, description = "The thread has no turn to stop."),
    )
)]
pub(super) async fn stop(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    ApiPath(id): ApiPath<String>,
) -> Result<(StatusCode, Json<ChatThread>), ApiError> {
    let thread = authorize(&api, &who, &id).await?.thread;
    let (chats, store, tasks) = (api.chats.clone(), api.store.clone(), api.tasks.clone());
    let work = async move {
        if !chats.stop(thread.id).await? {
            return Err(ApiError::new(ErrorCode::Conflict, "the thread has no turn to stop"));
        }
        store.record_done(&entry).await?;
        Ok(())
    };
    run_to_completion(&tasks, work).await?;
    Ok((StatusCode::ACCEPTED, Json(authorize(&api, &who, &id).await?.thread)))
}
