//! `DELETE /api/chat/threads/{id}`: deletes a thread.

use axum::{extract::State, http::StatusCode};

use super::thread::{caller, changed, named};
use crate::{
    extract::ApiPath,
    problem::ApiError,
    public::{PublicApi, audit_entry::AuditedCaller},
};

/// Deletes a thread with its messages.
///
/// A turn in progress is stopped.
#[utoipa::path(
    delete, path = "/api/chat/threads/{id}", operation_id = "delete_thread", tag = "chat",
    params(("id" = String, Path, description = "Thread id, or its key such as `main`.")),
    responses((status = 204, description = "The thread is deleted."))
)]
pub(super) async fn delete(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    ApiPath(id): ApiPath<String>,
) -> Result<StatusCode, ApiError> {
    let change = api.store.delete_chat_thread(&caller(&who), &named(&id)?, &entry).await?;
    // Its writes have no effect any more.
    api.chats.engine.stop(changed(change)?);
    Ok(StatusCode::NO_CONTENT)
}
