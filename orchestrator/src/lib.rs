//! What the test crates use of the program. Contents only.

pub use app;
pub use auth;
pub use base::{Environment, clock, digest, error_chain};
pub use cli;
pub use config;
pub use dispatch;
pub use domain;
pub use egress;
pub use engine;
pub use llm;
pub use mcp;
pub use routine;
pub use secrets;
pub use store;
pub use telemetry;
pub use workspace;
