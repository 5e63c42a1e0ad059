//! The orchestrator-domain tools, one per file, and the registry of those that are built in.

mod builtin;
mod call_host;
mod echo;
mod http;
mod jobs;
mod json;
mod mcp;
mod memory;
mod message;
mod secret_list;
mod time;
mod tool_list;

pub use builtin::{BuiltinTools, ToolServices, UserTool};
pub use jobs::JobAccess;
pub use mcp::McpTools;
