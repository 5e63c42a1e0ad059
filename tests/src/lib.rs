//! The test harness of the stories, the engine tests and the fault tests.
//!
//! Owns a whole orchestrator with real HTTP, a real database and real sockets on a fake engine: the test itself acts as
//! the worker, or the worker binary runs as a plain process. Tests see what users, workers and the engine see, except
//! for one look into the database (`World::prompts_taken`).

#![expect(clippy::missing_panics_doc, reason = "a harness fails by panicking, everywhere")]
#![expect(clippy::return_self_not_must_use, reason = "a check chains where that reads well, and need not")]

mod engine;
pub mod install;
mod manual_worker;
mod metrics;
mod process;
mod query_plans;
mod reply;
pub mod routines;
mod script;
mod stream;
mod user;
mod world;

pub use engine::{Container, FakeEngine, NotStarted, Workers};
pub use manual_worker::ManualWorker;
pub use metrics::Metrics;
pub use query_plans::check_source;
pub use reply::Reply;
pub use script::{echo_script, script_of};
pub use stream::{ChatStream, ChatStreamMessage, EventStream, InstanceMessage, InstanceStream, StreamMessage};
pub use user::User;
pub use world::{World, WorldBuilder, check_events};

use std::time::Duration;

/// Delay between two checks of a condition that has no notification.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The timeout of every wait: long, because a busy machine is no failure.
pub const WAIT_TIMEOUT: Duration = Duration::from_mins(1);

/// Waits for a condition. Panics with its name after [`WAIT_TIMEOUT`].
pub async fn within<T>(what: &str, point: impl Future<Output = T>) -> T {
    match tokio::time::timeout(WAIT_TIMEOUT, point).await {
        Ok(reached) => reached,
        Err(elapsed) => panic!("timed out after {} s waiting for {what}: {elapsed}", WAIT_TIMEOUT.as_secs()),
    }
}

/// Repeats `check` until it returns a value. Panics with the condition's name after [`WAIT_TIMEOUT`].
pub async fn poll<T>(what: &str, check: impl AsyncFn() -> Option<T>) -> T {
    let found = async {
        loop {
            if let Some(found) = check().await {
                return found;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    within(what, found).await
}

/// Repeats `check` until it returns true. Panics with the condition's name after [`WAIT_TIMEOUT`].
pub async fn until(what: &str, check: impl AsyncFn() -> bool) {
    poll(what, async || check().await.then_some(())).await;
}
