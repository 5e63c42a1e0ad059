//! The events of the instance as a stream, as far as the caller may see them. It has no end.
//!
//! Owns where the stream starts. Events of others are skipped on the server; a message that has only an id then tells the client
//! how far it has got, so that a resume does not skip them again.

use axum::response::{Response, sse::Event as Sse};
use serde_json::json;

use super::{
    PublicApi,
    stream::{self, BATCH, Batch, EventSource, Next, named},
};
use auth::Identity;
use store::{EventSubscription, InstanceEventFilter, Store, StoreError, StoredInstanceEvent, Topic};

use crate::problem::ApiError;

/// Cursors that are skipped before a message tells the client: about what a resume skips in a millisecond.
const POSITION_INTERVAL: i64 = 1_000;

/// Opens a stream of the events after `after`; without it, of those that are still to come.
pub(super) async fn open(
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
