//! `GET /api/chat/events`: the events of the caller's threads as a stream: the stored ones, and pieces of answers between them.
//!
//! Owns the order of the two: a piece comes before the message that contains it, and after the messages before it. Never buffers
//! for a client that reads too slowly: its stream ends.

use auth::Identity;
use axum::{
    extract::State,
    http::HeaderMap,
    response::{Response, sse::Event as Sse},
};
use chat::{Lagged, LiveEvent, LiveSubscription};
use protocol::{ChatEventKind, InstanceEventKind, ThreadId};
use serde::{Deserialize, Serialize};
use store::{EventSubscription, InstanceEventFilter, Store, StoreError, StoredInstanceEvent, Topic};
use utoipa::IntoParams;

use super::authorize;
use crate::{
    problem::ApiError,
    public::{
        PublicApi,
        events::InstanceReader,
        request::{ApiQuery, Caller},
        response::stream::{self, BATCH, Batch, EventSource, Next, last_event_id},
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
    let filter = InstanceEventFilter { user: Some(user), kinds: KINDS.to_vec(), thread };
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
    let live = api.chats.engine.live().subscribe(&user);
    let thread = filter.thread;
    let stored = InstanceReader::open(api.store.clone(), filter, after, message).await?;
    let events = ChatEvents {
        store: api.store.clone(),
        subscription,
        stored,
        is_stored_new: true,
        up_to: None,
        live,
        arrived: None,
        thread,
    };
    Ok(stream::respond(api, who, permit, events))
}

struct ChatEvents {
    store: Store,
    subscription: EventSubscription,
    stored: InstanceReader,
    /// There may be stored events that were not read.
    is_stored_new: bool,
    /// Stored events up to this cursor come before the next live one.
    up_to: Option<i64>,
    live: LiveSubscription,
    /// A live event that ended a wait.
    arrived: Option<Result<LiveEvent, Lagged>>,
    /// The only thread whose events are streamed.
    thread: Option<ThreadId>,
}

impl EventSource for ChatEvents {
    async fn changed(&mut self) {
        tokio::select! {
            () = self.subscription.changed() => self.is_stored_new = true,
            event = self.live.next() => self.arrived = Some(event),
        }
    }

    async fn read(&mut self) -> Result<Batch, StoreError> {
        if let Some(up_to) = self.up_to {
            let Batch { messages, next } = self.stored.read(up_to).await?;
            if next == Next::Wait {
                self.up_to = None;
            }
            return Ok(Batch { messages, next: Next::Read });
        }
        // Of what is stored up to here, the live events that come before it have arrived.
        let last = if self.is_stored_new { Some(self.store.last_cursor().await?) } else { None };
        let Ok(messages) = self.take_live() else {
            tracing::debug!("a reader of chat events was too slow");
            return Ok(Batch { messages: vec![], next: Next::End });
        };
        let has_more = messages.len() >= BATCH as usize;
        if self.up_to.is_none()
            && !has_more
            && let Some(last) = last
        {
            self.is_stored_new = false;
            self.up_to = Some(last);
        }
        let next = if has_more || self.up_to.is_some() { Next::Read } else { Next::Wait };
        Ok(Batch { messages, next })
    }
}

impl ChatEvents {
    /// The live events that have arrived, up to one that follows a stored event.
    fn take_live(&mut self) -> Result<Vec<Sse>, Lagged> {
        let mut messages = vec![];
        while messages.len() < BATCH as usize {
            let event = match self.arrived.take() {
                Some(arrived) => Some(arrived?),
                None => self.live.take()?,
            };
            let Some(event) = event else { break };
            if self.thread.is_some_and(|thread| thread != event.thread()) {
                continue;
            }
            match event {
                LiveEvent::Delta(delta) => messages.push(live_message(ChatEventKind::Delta, &delta)),
                LiveEvent::Status(status) => messages.push(live_message(ChatEventKind::Status, &status)),
                LiveEvent::Stored { cursor, .. } => {
                    self.up_to = Some(cursor);
                    break;
                }
            }
        }
        Ok(messages)
    }
}

/// A message without an id: it cannot be resumed from.
fn live_message(kind: ChatEventKind, data: &impl Serialize) -> Sse {
    Sse::default().event(kind.as_str()).data(serde_json::to_string(data).unwrap_or_default())
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

#[cfg(test)]
mod tests {
    use chat::LiveEvents;
    use chrono::DateTime;
    use domain::chat::ThreadRef;
    use protocol::ChatStatus;
    use store::{AuditEntry, Delivery, Sent, SentMessage};

    use super::*;

    async fn stream(store: &Store, live: &LiveEvents) -> ChatEvents {
        let filter = InstanceEventFilter { user: Some("ada".to_owned()), ..InstanceEventFilter::default() };
        ChatEvents {
            store: store.clone(),
            subscription: store.event_notifier().subscribe(Topic::User("ada".to_owned())),
            stored: InstanceReader::open(store.clone(), filter, None, message).await.unwrap(),
            is_stored_new: true,
            up_to: None,
            live: live.subscribe("ada"),
            arrived: None,
            thread: None,
        }
    }

    async fn store(directory: &tempfile::TempDir) -> Store {
        Store::open(&format!("sqlite://{}/gantry.db", directory.path().display())).await.unwrap()
    }

    /// Stores a message, and returns the cursor of its event.
    async fn write(store: &Store) -> i64 {
        let message = SentMessage {
            user: "ada".to_owned(),
            thread: ThreadRef::main(),
            content: "hello".to_owned(),
            delivery: Delivery::Show,
            key: None,
            audit: AuditEntry::by_operator("chat.send", DateTime::UNIX_EPOCH),
        };
        assert!(matches!(store.send_chat_message(message).await.unwrap(), Sent::Stored(_)));
        store.last_cursor().await.unwrap()
    }

    fn status(live: &LiveEvents, text: &str) {
        let message = text.to_owned();
        live.send("ada", || LiveEvent::Status(ChatStatus { thread_id: ThreadId::nil(), message }));
    }

    /// All that there is to read now.
    async fn read_all(events: &mut ChatEvents) -> (String, Next) {
        let mut text = String::new();
        loop {
            let Batch { messages, next } = events.read().await.unwrap();
            text.extend(messages.iter().map(|message| format!("{message:?}")));
            if next != Next::Read {
                return (text, next);
            }
        }
    }

    #[tokio::test]
    async fn pieces_are_between_the_stored_events_that_they_came_between() {
        let directory = tempfile::tempdir().unwrap();
        let (store, live) = (store(&directory).await, LiveEvents::default());
        let mut events = stream(&store, &live).await;
        read_all(&mut events).await;
        status(&live, "before");
        let first = write(&store).await;
        live.send("ada", || LiveEvent::Stored { thread_id: ThreadId::nil(), cursor: first });
        status(&live, "between");
        let second = write(&store).await;
        live.send("ada", || LiveEvent::Stored { thread_id: ThreadId::nil(), cursor: second });
        status(&live, "after");
        events.changed().await;
        let (text, next) = read_all(&mut events).await;
        let places = ["before", &format!("id: {first}"), "between", &format!("id: {second}"), "after"]
            .map(|part| text.find(part).unwrap_or_else(|| panic!("no {part} in {text}")));
        assert!(places.is_sorted(), "{places:?} {text}");
        assert_eq!(next, Next::Wait);
    }

    #[tokio::test]
    async fn the_stream_of_a_reader_that_is_too_slow_ends() {
        let directory = tempfile::tempdir().unwrap();
        let (store, live) = (store(&directory).await, LiveEvents::default());
        let mut events = stream(&store, &live).await;
        for n in 0..10_000 {
            status(&live, &n.to_string());
        }
        assert_eq!(read_all(&mut events).await.1, Next::End);
    }
}
