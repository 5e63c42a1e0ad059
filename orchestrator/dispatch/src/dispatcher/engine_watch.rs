//! Wakes the dispatcher when a container may have changed. A separate task, because the dispatcher's loop would cancel
//! and restart the wait, and with it a reconnection or a ping, on each tick.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::DispatcherWaker;
use engine::Engine;

/// Waits for changes of the engine's containers.
pub struct EngineWatch {
    pub engine: Arc<dyn Engine>,
    pub waker: DispatcherWaker,
}

impl EngineWatch {
    /// Runs until the drain fires.
    pub async fn run(self, drain: CancellationToken) {
        loop {
            tokio::select! {
                () = drain.cancelled() => return,
                () = self.engine.changed() => self.waker.wake(),
            }
        }
    }
}
