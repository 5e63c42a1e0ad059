//! Tools of servers whose lists cannot be read: each call says why. Never connects to a server.

use agent::{BoxFuture, Invocation, RegisteredTool, Tool, ToolError, ToolOutput, ToolSpec};
use mcp::McpError;
use serde_json::json;

use crate::builtin::spec;

/// A tool that fails.
struct UnavailableTool {
    name: String,
    error: McpError,
}

/// The tool of this name, whose calls fail with this error; none if no tool can have the name.
pub(super) fn unavailable_tool(name: &str, error: McpError) -> Option<RegisteredTool> {
    RegisteredTool::new(Box::new(UnavailableTool { name: name.to_owned(), error })).ok()
}

impl Tool for UnavailableTool {
    fn spec(&self) -> ToolSpec {
        // A call that fails needs no approval.
        spec(&self.name, &format!("Not available: {}.", self.error), json!({"type": "object"}))
    }

    fn call(&self, _invocation: Invocation) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        Box::pin(std::future::ready(Err(self.error.clone().into())))
    }
}
