//! `GET /api/chat/threads/{id}/actions`: records of tool calls.

use axum::{Json, extract::State};
use protocol::{Page, ThreadActionRecord, ThreadId};

use super::thread::{authorize, named};
use auth::Identity;
use domain::chat::ThreadRef;
use store::CallPosition;

use crate::{
    extract::{ApiPath, ApiQuery},
    problem::ApiError,
    public::{
        PublicApi,
        caller::Caller,
        cursor::{self, PageParams},
    },
};

/// Lists a thread's tool calls, oldest first.
///
/// They are kept after the thread is deleted, without arguments and output; the thread is then named by its id.
#[utoipa::path(
    get, path = "/api/chat/threads/{id}/actions", operation_id = "list_thread_tool_calls", tag = "chat",
    params(("id" = String, Path, description = "Thread id, or its key such as `main`."), PageParams),
    responses((status = 200, body = Page<ThreadActionRecord>, description = "A page."))
)]
pub(super) async fn actions(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiPath(id): ApiPath<String>,
    ApiQuery(params): ApiQuery<PageParams>,
) -> Result<Json<Page<ThreadActionRecord>>, ApiError> {
    let (limit, after) = (params.limit()?, params.after::<CallPosition>()?);
    let thread = find(&api, &who, &id).await?;
    let _permit = api.read_permit(&who).await?;
    // One more, to know whether there is a next page.
    let calls = api.store.thread_actions(thread, after.as_ref(), limit + 1).await?;
    Ok(Json(cursor::page(calls, limit, ToString::to_string)))
}

/// The thread, which may be deleted, if the caller may see its calls.
async fn find(api: &PublicApi, who: &Identity, name: &str) -> Result<ThreadId, ApiError> {
    let ThreadRef::Id(id) = named(name)? else { return Ok(authorize(api, who, name).await?.thread.id) };
    match api.store.owner_of_thread_actions(id).await? {
        Some(owner) if who.may_see(&owner) => Ok(id),
        Some(_) => Err(ApiError::not_owner()),
        // It has made no call.
        None => Ok(authorize(api, who, name).await?.thread.id),
    }
}
