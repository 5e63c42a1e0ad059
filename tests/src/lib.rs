//! The World harness that the stories, rings and fault tests share.
//!
//! Owns a whole orchestrator with real HTTP, a real database and real sockets, on an engine that makes no containers: the
//! test itself plays the worker, or the worker's binary runs as a plain process. What a story sees, a user, a worker or
//! an engine would see; but for one look into the database, for what only the database tells (`World::prompts_taken`).

#![expect(clippy::missing_panics_doc, reason = "a harness fails by panicking, everywhere")]
#![expect(clippy::return_self_not_must_use, reason = "a check chains where that reads well, and need not")]

mod engine;
mod hand;
pub mod install;
mod metrics;
mod process;
mod reply;
mod script;
mod stream;
mod user;
mod world;

pub use engine::{Container, FakeEngine, NotStarted, Workers};
pub use hand::HandWorker;
pub use metrics::Metrics;
pub use reply::Reply;
pub use script::{echo_script, script_of};
pub use stream::{EventStream, Told};
pub use user::User;
pub use world::{World, WorldBuilder, check_events};

use std::time::Duration;

/// Nothing in a story takes longer, or it does not come.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Waits for a named point; a story that waits in vain says for what.
pub async fn within<T>(what: &str, point: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, point).await {
        Ok(reached) => reached,
        Err(elapsed) => panic!("waited {} s in vain for {what}: {elapsed}", PATIENCE.as_secs()),
    }
}
