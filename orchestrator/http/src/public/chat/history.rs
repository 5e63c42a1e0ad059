//! `GET /api/chat/threads/{id}`: a thread with its messages.

use axum::{Json, extract::State};
use protocol::ChatHistory;

use super::thread::authorize;
use store::MessagePosition;

use crate::{
    extract::{ApiPath, ApiQuery},
    problem::ApiError,
    public::{
        PublicApi,
        caller::Caller,
        cursor::{self, PageParams},
    },
};

/// Gets a thread with a page of its messages.
///
/// The first page has the newest messages, and those that are queued; `next_cursor` leads to older ones. The 10,000 newest entries
/// of a thread are kept.
#[utoipa::path(
    get, path = "/api/chat/threads/{id}", operation_id = "get_thread", tag = "chat",
    params(("id" = String, Path, description = "Thread id, or its key such as `main`."), PageParams),
    responses((status = 200, body = ChatHistory, description = "The thread."))
)]
pub(super) async fn history(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiPath(id): ApiPath<String>,
    ApiQuery(params): ApiQuery<PageParams>,
) -> Result<Json<ChatHistory>, ApiError> {
    let (limit, before) = (params.limit()?, params.after::<MessagePosition>()?);
    let mut thread = authorize(&api, &who, &id).await?.thread;
    let _permit = api.read_permit(&who).await?;
    let page = api.store.chat_messages(thread.id, before, limit).await?;
    thread.state = page.state.unwrap_or(thread.state);
    let next_cursor = page.next.map(|position| cursor::write(&position.to_string()));
    Ok(Json(ChatHistory { thread, messages: page.messages, next_cursor }))
}
