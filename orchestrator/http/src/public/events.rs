//! `GET /api/events`: the events of the instance that the caller may see, as a stream or as a page. The stream has no end.
//!
//! Owns where the stream starts. Events of others are skipped on the server; a message that has only an id then tells the client
//! how far it has got, so that a resume does not skip them again.

use auth::Identity;
use axum::{
    Json,
    extract::State,
    http::HeaderMap,
    response::{IntoResponse, Response, sse::Event as Sse},
};
use protocol::{InstanceEvent, InstanceEventKind};
use serde::{Deserialize, Serialize};
use serde_json::json;
use store::{EventSubscription, InstanceEventFilter, Store, StoreError, StoredInstanceEvent, Topic};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    PublicApi,
    request::{ApiQuery, Caller, cursor, filter},
    response::{
        negotiate::wants_page,
        stream::{self, BATCH, Batch, EventSource, Next, named},
    },
};
use crate::problem::ApiError;

pub(super) fn routes() -> OpenApiRouter<PublicApi> {
    OpenApiRouter::new().routes(routes!(events))
}

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct EventParams {
    /// Only events with a larger `cursor`. Without it (and without `Last-Event-ID`) a stream begins with the next event, and
    /// a page with the oldest one.
    #[param(minimum = 0)]
    after: Option<i64>,
    /// Maximum number of items, 1 to 200; default 50. A page also ends at 1 MiB. Ignored for streams.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<u32>,
    /// A kind, or several separated by commas.
    kind: Option<String>,
}

/// A page of the instance's events.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = InstanceEventPage)]
struct InstanceEventList {
    /// Ordered by `cursor`.
    #[schema(value_type = Vec<InstanceEvent>)]
    items: Vec<StoredInstanceEvent>,
    /// Pass as `after` to get the next page; null on the last page. A page can be empty although there is a next one.
    next_after: Option<i64>,
}

/// Streams or lists the events of the instance.
///
/// Events of jobs, gates, chat threads and notifications in the order of their `cursor`: an admin's stream has those of all
/// users, others have their own. The stream has no end; `Last-Event-ID` resumes it. A message that has only an id moves the
/// position and nothing else. When events after the requested position were trimmed, or it lies beyond the last event, the
/// stream starts with `event: resync` and continues at the oldest stored event. With `Accept: application/json` the answer is
/// a page.
#[utoipa::path(
    get, path = "/api/events", operation_id = "list_instance_events", tag = "events",
    params(
        EventParams,
        ("Last-Event-ID" = Option<String>, Header, description = "Resume the stream after this `cursor`."),
    ),
    responses(
        (status = 200, description = "The stream, or a page.",
            content((String = "text/event-stream"), (InstanceEventList = "application/json"))),
        (status = 429, description = "Too many open event streams."),
    )
)]
async fn events(
    State(api): State<PublicApi>,
    Caller(who): Caller,
    ApiQuery(params): ApiQuery<EventParams>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    if params.after.is_some_and(|after| after < 0) {
        return Err(ApiError::field("after", "must be at least 0"));
    }
    let kinds = filter::names("kind", params.kind.as_deref(), InstanceEventKind::ALL, InstanceEventKind::as_str)?;
    let filter = InstanceEventFilter { user: (!who.role.sees_all()).then(|| who.user.clone()), kinds, thread: None };
    if !wants_page(&headers) {
        let after = stream::last_event_id(&headers, "the `cursor` of an event")?.or(params.after);
        return open_stream(&api, who, filter, after).await;
    }
    let limit = cursor::limit(params.limit)?;
    let _permit = api.read_permit(&who).await?;
    let page = api.store.instance_events(&filter, params.after.unwrap_or(0), limit).await?;
    let next_after = page.has_more().then_some(page.read_to);
    Ok(Json(InstanceEventList { items: page.items, next_after }).into_response())
}

/// Cursors that are skipped before a message tells the client: about what a resume skips in a millisecond.
const POSITION_INTERVAL: i64 = 1_000;

/// Opens a stream of the events after `after`; without it, of those that are still to come.
async fn open_stream(
    api: &PublicApi,
    who: Identity,
    filter: InstanceEventFilter,
    after: Option<i64>,
) -> Result<Response, ApiError> {
    let permit = api.stream_permit(&who)?;
    let topic = filter.user.clone().map_or(Topic::AllUsers, Topic::User);
    let subscription = api.store.event_notifier().subscribe(topic);
    let reader = InstanceReader::open(api.store.clone(), filter, after, message).await?;
    Ok(stream::respond(api, who, permit, InstanceEvents { subscription, reader }))
}

struct InstanceEvents {
    subscription: EventSubscription,
    reader: InstanceReader,
}

impl EventSource for InstanceEvents {
    async fn changed(&mut self) {
        self.subscription.changed().await;
    }

    async fn read(&mut self) -> Result<Batch, StoreError> {
        self.reader.read(i64::MAX).await
    }
}

/// Reads the events of the instance that match a filter, one batch after the other.
pub(super) struct InstanceReader {
    store: Store,
    filter: InstanceEventFilter,
    message: fn(&StoredInstanceEvent) -> Sse,
    /// Everything up to this cursor was read.
    after: i64,
    /// The client asked for a position that does not exist, and has not been told.
    is_unknown: bool,
    /// The largest deleted cursor that the client was told about.
    trimmed: i64,
    /// The position that the client would resume from, if it has one.
    reported: Option<i64>,
}

impl InstanceReader {
    /// A reader of the events after `after`, or of those that are still to come. Subscribe before.
    pub(super) async fn open(
        store: Store,
        filter: InstanceEventFilter,
        after: Option<i64>,
        message: fn(&StoredInstanceEvent) -> Sse,
    ) -> Result<Self, StoreError> {
        let last = store.last_cursor().await?;
        Ok(Self {
            store,
            filter,
            message,
            after: after.filter(|after| *after <= last).unwrap_or(if after.is_some() { 0 } else { last }),
            // The client's position is of another database, such as one that was restored from a backup.
            is_unknown: after.is_some_and(|after| after > last),
            trimmed: 0,
            reported: after,
        })
    }

    /// Reads the next events up to a cursor.
    pub(super) async fn read(&mut self, up_to: i64) -> Result<Batch, StoreError> {
        let page = self.store.instance_events(&self.filter, self.after, BATCH).await?;
        let mut messages = vec![];
        let is_trimmed = page.trimmed > self.after && page.trimmed > self.trimmed;
        if std::mem::take(&mut self.is_unknown) || is_trimmed {
            let oldest = self.store.first_cursor_after(self.after).await?;
            messages.push(named("resync", &json!({"cursor": oldest})));
            self.trimmed = page.trimmed;
        }
        let read_to = page.read_to.min(up_to).max(self.after);
        let next = if read_to < page.last.min(up_to) { Next::Read } else { Next::Wait };
        for event in page.items.iter().take_while(|event| event.cursor <= up_to) {
            self.reported = Some(event.cursor);
            messages.push((self.message)(event));
        }
        self.after = read_to;
        if self.reported.is_none_or(|reported| self.after - reported >= POSITION_INTERVAL) {
            self.reported = Some(self.after);
            messages.push(Sse::default().id(self.after.to_string()));
        }
        Ok(Batch { messages, next })
    }
}

fn message(event: &StoredInstanceEvent) -> Sse {
    let data = serde_json::to_string(event).unwrap_or_default();
    Sse::default().id(event.cursor.to_string()).event(event.kind.as_str()).data(data)
}
