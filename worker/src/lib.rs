//! The worker: the process in the container. It fetches its job over the socket, runs the agent loop with a model, tools, a
//! journal and signals, and reports the outcome.
//!
//! Owns the container-domain tools and the client of the worker API. Never enforces the sandbox (that is done outside the
//! container), never holds a provider key, and has no agent loop besides the one in `agent`.

mod cgroup;
mod client;
mod connection;
mod egress;
mod environment;
mod journal;
mod model;
mod probe;
mod search;
mod session;
mod supervisor;
mod tools;

pub use connection::TransportError;
pub use environment::{Environment, EnvironmentError, ShellEnvironment};
pub use probe::{ProbeError, probe};
pub use search::run as run_search;
pub use session::{SessionEnd, SessionError, run as run_session};
pub use supervisor::{SupervisorError, run as run_supervised};
