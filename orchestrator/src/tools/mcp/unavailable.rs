//! Tools of servers whose lists cannot be read: each call says why. Never connects to a server.

use agent::{ApprovalRequirement, BoxFuture, Invocation, RegisteredTool, Tool, ToolError, ToolOutput, ToolSpec};
use protocol::{ToolDefinition, ToolDomain};
use serde_json::{Value, json};

use crate::mcp::McpError;

/// Time limit of a call, which does nothing.
const TIMEOUT: std::time::Duration = std::time::Duration::from_secs(1);

/// A tool that fails.
struct UnavailableTool {
    definition: ToolDefinition,
    error: McpError,
}

/// The tool of this name, whose calls fail with this error; none if no tool can have the name.
pub(super) fn unavailable_tool(name: &str, error: McpError) -> Option<RegisteredTool> {
    let description = format!("Not available: {error}.");
    let definition = ToolDefinition::new(name, &description, json!({"type": "object"}), ToolDomain::Orchestrator);
    RegisteredTool::new(Box::new(UnavailableTool { definition, error })).ok()
}

impl Tool for UnavailableTool {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            definition: self.definition.clone(),
            timeout: TIMEOUT,
            sensitive: Vec::new(),
            parallel: true,
            estimated_cost_micro_usd: 0,
        }
    }

    /// A call that fails needs no approval.
    fn approval(&self, _arguments: &Value) -> ApprovalRequirement {
        ApprovalRequirement::Never
    }

    fn call(&self, _invocation: Invocation) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        Box::pin(std::future::ready(Err(self.error.clone().into())))
    }
}
