//! `GET /api/chat/events`: the events of the caller's threads as a stream: the stored ones, and pieces of answers between them.
//!
//! Owns the names of the messages. Their order is the source's (`public/events`).

use auth::Identity;
use axum::{
    extract::State,
    http::HeaderMap,
    response::{Response, sse::Event as Sse},
};
use protocol::{ChatEventKind, InstanceEventKind};
use serde::Deserialize;
use store::{InstanceEventFilter, StoredInstanceEvent, Topic};
use utoipa::IntoParams;

use super::authorize;
use crate::{
    problem::ApiError,
    public::{
        PublicApi,
        events::{InstanceEvents, InstanceReader, LiveChat},
        request::{ApiQuery, Caller},
        response::stream::{self, last_event_id},
    },
};

/// The stored events that the stream has.
const KINDS: [InstanceEventKind; 4] = [
    InstanceEventKind::GateRequired,
    InstanceEventKind::GateResolved,
    InstanceEventKind::ThreadState,
    InstanceEventKind::ChatMessage,
];

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct EventParams {
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
        EventParams,
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
    ApiQuery(params): ApiQuery<EventParams>,
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
    let filter =
        InstanceEventFilter { user: Some(user), kinds: KINDS.to_vec(), thread, ..InstanceEventFilter::default() };
    open_stream(&api, who, filter, after).await
}

/// Opens a stream of the events after `after`; without it, of those that are still to come. The filter names a user.
async fn open_stream(
    api: &PublicApi,
    who: Identity,
    filter: InstanceEventFilter,
    after: Option<i64>,
) -> Result<Response, ApiError> {
    let permit = api.stream_permit(&who)?;
    let user = filter.user.clone().unwrap_or_default();
    // Before the position is read, so that nothing is missed.
    let subscription = api.store.event_notifier().subscribe(Topic::User(user.clone()));
    let chat = LiveChat::new(api.chats.engine.live().subscribe(&user), filter.thread);
    let stored = InstanceReader::open(api.store.clone(), filter, after, message).await?;
    let events = InstanceEvents::new(subscription, stored).with_chat(Some(chat));
    Ok(stream::respond(api, who, permit, events))
}

/// The role of an entry, in its event's data.
#[derive(Deserialize)]
struct Role<'a> {
    role: &'a str,
}

fn message(event: &StoredInstanceEvent) -> Sse {
    let data = event.data().get();
    let kind = match event.kind {
        InstanceEventKind::GateRequired => ChatEventKind::GateRequired,
        InstanceEventKind::GateResolved => ChatEventKind::GateResolved,
        InstanceEventKind::ThreadState => ChatEventKind::ThreadState,
        _ => ChatEventKind::of_role(serde_json::from_str::<Role>(data).map_or("", |entry| entry.role)),
    };
    Sse::default().id(event.cursor.to_string()).event(kind.as_str()).data(data)
}
