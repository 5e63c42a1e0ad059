//! The worker: the process in the container. It fetches its job over the socket, gives the loop a model, tools, a
//! journal and signals, and reports how it ended.
//!
//! Owns the container-domain tools and everything that speaks the worker API from this side. Never enforces the
//! sandbox (the wall is outside the container), never holds a key, never writes a loop of its own.

mod cgroup;
mod client;
mod connection;
mod environment;
mod heartbeat;
mod journal;
mod model;
mod probe;
mod prompts;
mod report;
mod resume;
mod search;
mod secret;
mod session;
mod stop;
mod supervisor;
mod tools;

pub use connection::TransportError;
pub use environment::{Environment, EnvironmentError, ShellEnvironment};
pub use probe::{ProbeError, probe};
pub use search::run as run_search;
pub use session::{SessionEnd, SessionError, run as run_session};
pub use supervisor::{SupervisorError, run as run_supervised};
