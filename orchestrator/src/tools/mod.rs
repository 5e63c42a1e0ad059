//! The orchestrator-domain tools and the one path to them. One tool per file.

mod echo;
mod host;
mod json;
mod message;
mod time;

pub use host::{Caller, Done, HostTools};
