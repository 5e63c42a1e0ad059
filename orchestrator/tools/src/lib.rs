//! The orchestrator-domain tools, one per file, and the registry of those that are built in.

mod builtin;
mod call_host;
mod echo;
mod event_emit;
mod http;
mod jobs;
mod json;
mod mcp;
mod memory;
mod message;
mod nothing_to_report;
mod routines;
mod secret_list;
mod time;
mod tool_list;

pub use builtin::{BuiltinTools, ToolServices, UserTool};
pub use jobs::JobAccess;
pub use mcp::McpTools;
