//! Ends connections that are idle, broken or in the way of others.

use std::{sync::Arc, time::Duration};

use tokio::sync::OwnedMutexGuard;

use super::McpClient;
use crate::slot::{Slot, SlotState};

/// Time without a call after which a connection ends.
const IDLE: Duration = Duration::from_mins(5);

impl McpClient {
    /// Ends the connections that nothing uses, and those that are broken.
    pub(super) fn end_idle(self: &Arc<Self>) {
        let now = self.clock.monotonic();
        let slots: Vec<Arc<Slot>> = self.slots.lock().values().cloned().collect();
        for slot in slots {
            let (is_free, unused) = {
                let usage = slot.usage.lock();
                (usage.is_open && usage.calls == 0, now.saturating_sub(usage.last_used))
            };
            if is_free && (unused >= IDLE || is_broken(&slot)) {
                self.end_later(&slot);
            }
        }
    }

    pub(super) fn end_later(self: &Arc<Self>, slot: &Arc<Slot>) {
        // No longer counted from now on.
        slot.usage.lock().is_open = false;
        let (this, slot) = (Arc::clone(self), Arc::clone(slot));
        self.tasks.spawn(async move {
            let state = Arc::clone(&slot.state).lock_owned().await;
            let is_used = slot.usage.lock().calls > 0;
            if is_used && state.connection.is_some() {
                // A call has begun in the meantime.
                slot.usage.lock().is_open = true;
            } else {
                this.end(state, slot).await;
            }
        });
    }

    /// Ends the connection of a slot, if it has one.
    pub(super) async fn end(
        &self,
        mut state: OwnedMutexGuard<SlotState>,
        slot: Arc<Slot>,
    ) -> OwnedMutexGuard<SlotState> {
        if let Some(connection) = state.take(self.clock.monotonic()) {
            connection.close();
            if let Some(error) = connection.limit_error() {
                self.note(&connection.server, Some(&error));
            }
            if let Some(container) = &connection.container {
                container.remove().await;
            }
        }
        slot.usage.lock().is_open = false;
        state
    }
}

/// Whether the server has ended its connection. One that is being opened is not.
fn is_broken(slot: &Slot) -> bool {
    let state = slot.state.try_lock();
    state.is_ok_and(|state| state.connection.as_ref().is_some_and(|connection| !connection.is_open()))
}
