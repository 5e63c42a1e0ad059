//! `/api/chat`: threads and their messages. Owns how a request names a thread, and who may use it.

mod events;
mod send;

use auth::Identity;
use axum::{Json, extract::State, http::StatusCode};
use domain::chat::ThreadRef;
use protocol::{ChatHistory, ChatThread, ErrorCode, LlmCallRecord, Page, ThreadActionRecord, ThreadId};
use serde::Deserialize;
use store::{CallPosition, MessagePosition, OwnedThread, ThreadCaller, ThreadChange, ThreadFilter};
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    PublicApi,
    request::{ApiPath, ApiQuery, AuditedCaller, Caller, PageParams, audited, cursor, filter, visible},
};
use crate::{completion::run_to_completion, problem::ApiError};

pub(super) fn routes() -> OpenApiRouter<PublicApi> {
    OpenApiRouter::new()
        .merge(audited("chat.send", routes!(send::send)))
        .routes(routes!(list))
        .routes(routes!(history))
        .routes(routes!(actions))
        .routes(routes!(llm_calls))
        .routes(routes!(events::events))
        .merge(audited("chat.delete", routes!(delete)))
        .merge(audited("chat.stop", routes!(stop)))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParams {
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
    get, path = "/api/chat/threads", operation_id = "list_threads", tag = "chat", params(ListParams),
    responses((status = 200, body = Page<ChatThread>, description = "A page."))
)]
async fn list(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiQuery(params): ApiQuery<ListParams>,
) -> Result<Json<Page<ChatThread>>, ApiError> {
    let limit = cursor::limit(params.limit)?;
    let filter = ThreadFilter {
        user: who.user.clone(),
        id_part: params.id.as_deref().map(filter::id_part).transpose()?,
        before: params.cursor.as_deref().map(cursor::read::<ThreadId>).transpose()?,
        // One more, to know whether there is a next page.
        limit: limit + 1,
    };
    let _permit = api.read_permit(&who).await?;
    let threads = api.store.chat_threads(&filter).await?;
    Ok(Json(cursor::page(threads, limit, ToString::to_string)))
}

/// Gets a thread with a page of its messages.
///
/// The first page has the newest messages, and those that are queued; `next_cursor` leads to older ones. The 10,000 newest entries
/// of a thread are kept.
#[utoipa::path(
    get, path = "/api/chat/threads/{id}", operation_id = "get_thread", tag = "chat",
    params(("id" = String, Path, description = "Thread id, or its key such as `main`."), PageParams),
    responses((status = 200, body = ChatHistory, description = "The thread."))
)]
async fn history(
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

/// Lists a thread's tool calls, oldest first.
///
/// They are kept after the thread is deleted, without arguments and output; the thread is then named by its id.
#[utoipa::path(
    get, path = "/api/chat/threads/{id}/actions", operation_id = "list_thread_tool_calls", tag = "chat",
    params(("id" = String, Path, description = "Thread id, or its key such as `main`."), PageParams),
    responses((status = 200, body = Page<ThreadActionRecord>, description = "A page."))
)]
async fn actions(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiPath(id): ApiPath<String>,
    ApiQuery(params): ApiQuery<PageParams>,
) -> Result<Json<Page<ThreadActionRecord>>, ApiError> {
    let (limit, after) = (params.limit()?, params.after::<CallPosition>()?);
    let thread = match named(&id)? {
        ThreadRef::Id(id) => api.store.owner_of_thread_tool_calls(id).await?.map(|owner| (id, owner)),
        ThreadRef::Key(_) => None,
    };
    let thread = thread_of_calls(&api, &who, &id, thread).await?;
    let _permit = api.read_permit(&who).await?;
    // One more, to know whether there is a next page.
    let calls = api.store.thread_tool_calls(thread, after.as_ref(), limit + 1).await?;
    Ok(Json(cursor::page(calls, limit, ToString::to_string)))
}

/// Lists a thread's model calls, oldest first.
///
/// `attempt` is the number of the turn. They are kept after the thread is deleted; the thread is then named by its id.
#[utoipa::path(
    get, path = "/api/chat/threads/{id}/llm-calls", operation_id = "list_thread_model_calls", tag = "chat",
    params(("id" = String, Path, description = "Thread id, or its key such as `main`."), PageParams),
    responses((status = 200, body = Page<LlmCallRecord>, description = "A page."))
)]
async fn llm_calls(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiPath(id): ApiPath<String>,
    ApiQuery(params): ApiQuery<PageParams>,
) -> Result<Json<Page<LlmCallRecord>>, ApiError> {
    let (limit, after) = (params.limit()?, params.after::<CallPosition>()?);
    let thread = match named(&id)? {
        ThreadRef::Id(id) => api.store.owner_of_thread_model_calls(id).await?.map(|owner| (id, owner)),
        ThreadRef::Key(_) => None,
    };
    let thread = thread_of_calls(&api, &who, &id, thread).await?;
    let _permit = api.read_permit(&who).await?;
    // One more, to know whether there is a next page.
    let calls = api.store.model_calls(thread, after.as_ref(), limit + 1).await?;
    Ok(Json(cursor::page(calls, limit, ToString::to_string)))
}

/// The thread, which may be deleted, if the caller may see its calls. `known` is its id and its owner, if it has made some.
async fn thread_of_calls(
    api: &PublicApi,
    who: &Identity,
    name: &str,
    known: Option<(ThreadId, String)>,
) -> Result<ThreadId, ApiError> {
    match known {
        Some((id, owner)) if who.may_see(&owner) => Ok(id),
        Some(_) => Err(ApiError::not_owner()),
        // It has made no call.
        None => Ok(authorize(api, who, name).await?.thread.id),
    }
}

/// Deletes a thread with its messages.
///
/// A turn in progress is stopped.
#[utoipa::path(
    delete, path = "/api/chat/threads/{id}", operation_id = "delete_thread", tag = "chat",
    params(("id" = String, Path, description = "Thread id, or its key such as `main`.")),
    responses((status = 204, description = "The thread is deleted."))
)]
async fn delete(
    State(api): State<PublicApi>,
    AuditedCaller { who, entry }: AuditedCaller,
    ApiPath(id): ApiPath<String>,
) -> Result<StatusCode, ApiError> {
    let caller = ThreadCaller { user: who.user, sees_all: who.role.sees_all() };
    match api.store.delete_chat_thread(&caller, &named(&id)?, &entry).await? {
        ThreadChange::Done(thread) => {
            // Its writes have no effect any more.
            api.chats.engine.stop(thread);
            Ok(StatusCode::NO_CONTENT)
        }
        ThreadChange::Missing => Err(ApiError::not_found()),
        ThreadChange::NotOwner => Err(ApiError::not_owner()),
    }
}

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
async fn stop(
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

/// The thread that a request names by its id or key. A name that is neither is that of no thread.
fn named(thread: &str) -> Result<ThreadRef, ApiError> {
    ThreadRef::parse(thread).ok_or_else(ApiError::not_found)
}

/// The thread, if it exists and the caller may see it.
pub(super) async fn authorize(api: &PublicApi, who: &Identity, thread: &str) -> Result<OwnedThread, ApiError> {
    visible(who, api.store.chat_thread(&who.user, &named(thread)?).await?, |thread| &thread.user)
}
