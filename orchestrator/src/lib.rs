//! The program: its commands, and what the test crates use of the crates below.

mod args;
mod examples;
#[cfg(test)]
mod reference;

pub use app;
pub use auth;
pub use base::{Environment, clock, digest, error_chain};
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

pub use self::{
    args::main,
    examples::{EXAMPLES, Example, ExampleKind},
};
