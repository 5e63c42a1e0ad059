//! The worker: the process in the container. It fetches its job over the socket, gives the loop a model, tools, a
//! journal and signals, and reports how it ended.
//!
//! Owns the container-domain tools and everything that speaks the worker API from this side. Never enforces the
//! sandbox (the wall is outside the container), never holds a key, never writes a loop of its own.

mod cgroup;
mod client;
mod environment;
mod heartbeat;
mod init;
mod journal;
mod model;
mod probe;
mod processes;
mod prompts;
mod session;
mod stop;
mod tools;

pub use environment::{Environment, EnvironmentError, ShellEnvironment};
pub use init::{is_process_one, run as run_as_init};
pub use probe::{ProbeError, probe};
pub use session::{SessionEnd, SessionError, run as run_session};
