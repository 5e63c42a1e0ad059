//! `GET /api/chat/events`: the events of the caller's threads as a stream.

use axum::{extract::State, http::HeaderMap, response::Response};
use protocol::InstanceEventKind;
use serde::Deserialize;
use utoipa::IntoParams;

use super::{stream, thread::authorize};
use store::InstanceEventFilter;

use crate::{
    extract::ApiQuery,
    problem::ApiError,
    public::{PublicApi, caller::Caller, stream::last_event_id},
};

/// The stored events that the stream has.
const KINDS: [InstanceEventKind; 4] = [
    InstanceEventKind::GateRequired,
    InstanceEventKind::GateResolved,
    InstanceEventKind::ThreadState,
    InstanceEventKind::ChatMessage,
];

/// Query parameters.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Params {
    /// Only events of this thread, named by its id or key; by default those of all threads of the caller.
    thread_id: Option<String>,
    /// Only stored events with a larger cursor. Without it (and without `Last-Event-ID`) the stream begins with the next event.
    #[param(minimum = 0)]
    after: Option<i64>,
}

/// Streams the events of chat threads.
///
/// `event` names the kind of a message, and its data always has `thread_id`:
///
/// - `message`: an entry of the user, the agent or Gantry, or the end of a job
/// - `tool_use` and `tool_result`: a tool call, and its result, as entries
/// - `error`: a turn that did not end with an answer, as an entry
/// - `gate_required` and `gate_resolved`: a tool call waits for a person, or no longer waits
/// - `thread_state`: the thread changed state
/// - `delta`: a piece of an answer. One of the kind `start` makes the pieces before it void that no `message` followed
/// - `status`: progress, such as a wait for the model
///
/// `delta` and `status` are streamed while they happen and have no `id`. The others are stored; their `id` is the cursor of
/// `GET /api/events`, and `Last-Event-ID` resumes after it. A client that reads too slowly is disconnected and can resume. A message
/// that has only an id moves the position and nothing else; `resync` is as in `GET /api/events`.
#[utoipa::path(
    get, path = "/api/chat/events", operation_id = "stream_chat_events", tag = "chat",
    params(
        Params,
        ("Last-Event-ID" = Option<String>, Header, description = "Resume the stream after this cursor."),
    ),
    responses(
        (status = 200, description = "The stream.", content((String = "text/event-stream"))),
        (status = 404, description = "No such thread."),
        (status = 429, description = "Too many open event streams."),
    )
)]
pub(super) async fn events(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiQuery(params): ApiQuery<Params>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    if params.after.is_some_and(|after| after < 0) {
        return Err(ApiError::field("after", "must be at least 0"));
    }
    let after = last_event_id(&headers, "the cursor of an event")?.or(params.after);
    let (user, thread) = match params.thread_id {
        Some(thread) => {
            let owned = authorize(&api, &who, &thread).await?;
            (owned.user, Some(owned.thread.id))
        }
        None => (who.user.clone(), None),
    };
    let filter = InstanceEventFilter { user: Some(user), kinds: KINDS.to_vec(), thread };
    stream::open(&api, who, filter, after).await
}
