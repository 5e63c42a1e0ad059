//! Connections to MCP servers: streamable HTTP through the egress policy, and programs in containers over standard
//! input and output.
//!
//! Owns the protocol (the only user of rmcp), the credentials of a connection, how many connections there are, and how
//! much a server may send. Never decides which tools a model is offered.

mod answer;
mod client;
mod connection;
mod credentials;
mod error;
mod events;
mod http;
mod listed_tool;
mod message;
mod progress;
mod receive_limit;
mod reconnects;
mod redaction;
mod server;
mod slot;
mod stderr;
mod stdio;

pub use answer::{Answer, AnswerPart};
pub use client::{Listed, McpClient, McpParts, ServerStatus};
pub use error::McpError;
pub use listed_tool::ListedTool;
pub use server::{ConfiguredServer, InvalidServer};
