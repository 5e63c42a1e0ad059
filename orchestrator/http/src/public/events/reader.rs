//! Reads the stored events of the instance for a stream, one batch after the other.
//!
//! Owns the position, and what the client is told about it. Events of others are skipped on the server; a message that has
//! only an id then tells the client how far it has got, so that a resume does not skip them again.

use axum::response::sse::Event as Sse;
use serde_json::json;
use store::{InstanceEventFilter, Store, StoreError, StoredInstanceEvent};

use crate::public::response::stream::{BATCH, Batch, Next, named};

/// Cursors that are skipped before a message tells the client: about what a resume skips in a millisecond.
const POSITION_INTERVAL: i64 = 1_000;

/// Reads the events of the instance that match a filter.
pub(in crate::public) struct InstanceReader {
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
    pub(in crate::public) async fn open(
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

    /// Everything up to this cursor was read.
    pub(super) const fn position(&self) -> i64 {
        self.after
    }

    /// The last cursor that was assigned.
    pub(super) async fn last(&self) -> Result<i64, StoreError> {
        self.store.last_cursor().await
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
