//! `GET /api/chat/threads`: the caller's threads.

use axum::{Json, extract::State};
use protocol::{ChatThread, Page, ThreadId};
use serde::Deserialize;
use store::ThreadFilter;
use utoipa::IntoParams;

use crate::{
    extract::ApiQuery,
    problem::ApiError,
    public::{PublicApi, caller::Caller, cursor, id_part::id_part},
};

/// Query parameters.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Params {
    /// Prefix or suffix of an id, at least 4 characters.
    id: Option<String>,
    /// Maximum number of items, 1 to 200; default 50.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<u32>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
}

/// Lists the caller's chat threads, newest first.
///
/// A thread is a conversation with the agent. `main` is the thread that the first message creates.
#[utoipa::path(
    get, path = "/api/chat/threads", operation_id = "list_threads", tag = "chat", params(Params),
    responses((status = 200, body = Page<ChatThread>, description = "A page."))
)]
pub(super) async fn list(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiQuery(params): ApiQuery<Params>,
) -> Result<Json<Page<ChatThread>>, ApiError> {
    let limit = cursor::limit(params.limit)?;
    let filter = ThreadFilter {
        user: who.user.clone(),
        id_part: params.id.as_deref().map(id_part).transpose()?,
        before: params.cursor.as_deref().map(cursor::read::<ThreadId>).transpose()?,
        // One more, to know whether there is a next page.
        limit: limit + 1,
    };
    let _permit = api.read_permit(&who).await?;
    let threads = api.store.chat_threads(&filter).await?;
    Ok(Json(cursor::page(threads, limit, ToString::to_string)))
}
